"""Records of transcripts and the selection of episodes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jsonschema
from callback_helpers import make_episode, make_result
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import Task
from rllib_llm.transcripts.annotations import write_annotations
from rllib_llm.transcripts.collector import (
    TranscriptCollector,
    pop_transcripts,
    read_result,
    transcript_record,
    without_transcripts,
)
from rllib_llm.transcripts.reader import schema
from rllib_llm.transcripts.selection import groups_of, select_episodes, select_groups
from rllib_llm.transcripts.token_texts import token_texts


def record_of(episode, **settings):
    settings = {"max_chars": 100, "max_turns": 10, **settings}
    return transcript_record(episode, split="train", selected_as="best", **settings)


def collect(
    episodes,
    collector=None,
    *,
    num_env_runners=0,
    in_evaluation=False,
    renderers=None,
):
    logger = MetricsLogger(root=True)
    config = SimpleNamespace(
        num_env_runners=num_env_runners,
        in_evaluation=in_evaluation,
        chat_renderers=lambda: renderers or {},
    )
    (collector or TranscriptCollector()).on_sample_end(
        env_runner=SimpleNamespace(config=config),
        metrics_logger=logger,
        samples=episodes,
    )
    return read_result({"env_runners": logger.compile()})


def test_selection_of_best_worst_and_random_episodes():
    episodes = [make_episode([r], seed=r) for r in (3, 9, 1, 5, 4)]
    picks = list(select_episodes(episodes, 4))
    assert [why for why, _ in picks] == ["best", "worst", "random", "random"]
    assert picks[0][1].get_return() == 9 and picks[1][1].get_return() == 1
    assert len({id(e) for _, e in picks}) == 4
    again = list(select_episodes(episodes, 4))
    assert [id(e) for _, e in picks] == [id(e) for _, e in again]
    assert [why for why, _ in select_episodes(episodes[:1], 4)] == ["best"]
    assert [why for why, _ in select_episodes(episodes, 1)] == ["random"]


def test_record_of_an_episode():
    record = record_of(make_episode([0, 1], seed=5, success=True, invalid=1))
    assert record["return"] == 1.0 and record["success"] is True
    assert record["seed"] == 5 and record["stop_reason"] == "terminated"
    assert record["num_turns"] == 2 and record["num_tokens"] == 6
    assert record["turns"][0] == {
        "turn": 0,
        "index": 0,
        "agent": None,
        "agent_index": 0,
        "policy": None,
        "observation": "hello",
        "prompt": None,
        "completion": "answer 0",
        "reward": 0.0,
        "reward_parts": {},
        "advantage": None,
        "tokens": 3,
        "logp_mean": -0.5,
        "finish": "length",
        "invalid": True,
        "columns": None,
    }
    assert not record["trained"]  # not annotated yet
    jsonschema.validate(record, schema())
    assert record["turns"][1]["observation"] == "hello 1"
    assert record["final_observation"] == "hello 2"


def test_records_are_bounded_and_encodable():
    episode = make_episode([0] * 30, text="x" * 5000 + "\ud800")
    record = record_of(episode)
    shown = [t["turn"] for t in record["turns"]]
    assert shown == [0, 1, 2, 3, 4, 25, 26, 27, 28, 29]
    assert "[4901 characters cut]" in record["turns"][0]["observation"]
    assert len(json.dumps(record).encode("utf-8")) < 6000


class Bytes:
    """Tokenizer whose tokens are the bytes of UTF-8."""

    def decode(self, ids, **kwargs):
        return bytes(int(i) for i in ids).decode("utf-8", errors="replace")


def test_token_columns():
    ids = list("h\u00e9!\u20ac".encode())
    assert token_texts(Bytes(), ids) == ["h", "", "\u00e9", "!", "", "", "\u20ac"]
    cut = list("a\u20ac".encode())[:-1]
    assert token_texts(Bytes(), cut) == ["a", "", "\ufffd"]
    junk = [0xC3] * 9 + list(b"ok")
    assert "".join(token_texts(Bytes(), junk)) == Bytes().decode(junk)
    assert token_texts(Bytes(), []) == []


def test_a_turn_has_its_prompt_and_token_columns():
    record = record_of(make_episode([1]), tokenizers={"default_policy": Bytes()})
    (turn,) = record["turns"]
    assert turn["prompt"] == "\x00\x01"
    assert turn["columns"] == {"text": ["\x00", "\x01", "\x02"], "logp": -0.5}
    jsonschema.validate(record, schema())


def rollouts(*returns):
    """Return one group of episodes for each list of returns."""
    episodes = []
    for group, of_group in enumerate(returns):
        for rollout, value in enumerate(of_group):
            episode = make_episode([value], seed=group)
            episode_data(episode).task = Task(group, rollout, seed=group)
            episodes.append(episode)
    return episodes


def test_best_and_worst_groups_with_group_mates():
    episodes = rollouts([0, 0, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1])
    records = [
        (r["group_id"], r["rollout"], r["selected_as"]) for r in collect(episodes)
    ]
    assert records == [
        (1, 0, "best"),
        (1, 1, "group"),
        (1, 2, "group"),
        (1, 3, "group"),
        (0, 0, "group"),
        (0, 1, "group"),
        (0, 2, "group"),
        (0, 3, "worst"),
    ]


def test_zero_variance_groups_are_used_last():
    episodes = rollouts([1, 1], [0, 0], [0, 1], [0, 0])
    assert {r["group_id"] for r in collect(episodes)} == {2, 0}


def test_large_groups_are_thinned_evenly():
    (group,) = groups_of(rollouts(range(20)))
    picked = list(select_groups([group], 2, max_group_mates=5))
    assert sorted(e.get_return() for _, e in picked) == [0, 5, 9, 14, 19]
    assert [e.get_return() for why, e in picked if why == "best"] == [19]
    whys = [why for why, _ in select_groups([group] * 5, 4, max_group_mates=1)]
    assert whys == ["best", "worst", "random", "random"]


def test_token_columns_stop_at_the_budget():
    class Few(TranscriptCollector):
        max_tokens = 7

    episodes = [make_episode([r], seed=r) for r in range(3)]
    tokenizers = {"default_policy": SimpleNamespace(tokenizer=Bytes())}
    records = collect(episodes, Few(), renderers=tokenizers)
    kept = [r["turns"][0]["columns"] is not None for r in records]
    assert kept == [True, True, False]  # three tokens each
    order = [int(r["return"]) for r in records]
    assert [episode_data(episodes[i]).annotates_tokens for i in order] == kept
    assert all(episode_data(e).is_annotated for e in episodes)


def test_records_beyond_max_size_are_dropped_group_mates_first():
    episodes = rollouts([0, 0, 1], [1, 1, 1], [0, 0, 0])
    whole = sum(len(json.dumps(r)) for r in collect(episodes))

    class Small(TranscriptCollector):
        max_size = whole // 2

    records = collect(rollouts([0, 0, 1], [1, 1, 1], [0, 0, 0]), Small())
    picked = [r["selected_as"] for r in records]
    assert {"best", "worst"} < set(picked) and 2 < len(picked) < 6

    class Tiny(TranscriptCollector):
        max_size = 1

    fresh = rollouts([0, 0, 1], [1, 1, 1])
    assert [r["selected_as"] for r in collect(fresh, Tiny())] == ["best"]
    assert sum(episode_data(e).is_annotated for e in fresh) == 1


def test_evaluation_episodes_are_not_annotated():
    episodes = [make_episode([1])]
    collect(episodes, in_evaluation=True)
    assert not episode_data(episodes[0]).is_annotated


def test_annotations_are_written_into_their_turns():
    episode = make_episode([0, 1])
    record = record_of(episode, tokenizers={"default_policy": Bytes()})
    notes = [
        {"episode": "another", "trained": True},
        {"episode": episode.id_, "trained": True, "return": 3.0},
        {
            "episode": episode.id_,
            "turns": [{"agent": 0, "index": i, "advantage": 0.5} for i in (0, 1, 9)],
            "tokens": [{"agent": 0, "index": 1, "ratio": 1, "entropy": [2.0]}],
        },
    ]
    write_annotations([record], notes)
    assert record["trained"] and record["return"] == 3.0 and record["advantage"] == 0.5
    assert "ratio" not in record["turns"][0]["columns"]
    assert record["turns"][1]["columns"]["ratio"] == 1
    # A turn that was chosen as a whole has numbers at its first token.
    assert record["turns"][1]["columns"]["entropy"] == [2.0, None, None]
    jsonschema.validate(record, schema())


def test_collector_divides_its_count_among_runners():
    episodes = [make_episode([r], seed=r) for r in range(6)]
    assert len(collect(episodes)) == 4
    assert len(collect(episodes, num_env_runners=2)) == 2
    assert len(collect(episodes[:1])) == 1
    (record,) = collect(episodes[:1], in_evaluation=True)
    assert record["split"] == "evaluation"

    class Off(TranscriptCollector):
        per_iteration = 0

    assert collect(episodes, Off()) == []


def test_the_driver_adds_the_iteration():
    records = collect([make_episode([1])])
    result = make_result(7, transcripts=records)
    TranscriptCollector().on_train_result(result=result)
    assert [r["iteration"] for r in read_result(result)] == [7]


def test_results_without_transcripts_are_fine():
    for value in (float("nan"), [], None):
        assert read_result({"env_runners": {"transcripts": value}}) == []
    assert read_result({}) == []


def test_pop_and_copy_remove_transcripts():
    result = make_result(1, transcripts=[{"a": 1}], evaluation={"success_rate": 0.5})
    result["evaluation"]["env_runners"]["transcripts"] = '{"b":2}'
    copy = without_transcripts(result)
    assert "transcripts" not in copy["env_runners"]
    assert "transcripts" not in copy["evaluation"]["env_runners"]
    assert copy["evaluation"]["env_runners"]["success_rate"] == 0.5
    assert pop_transcripts(result) == [{"a": 1}, {"b": 2}]
    assert read_result(result) == []
