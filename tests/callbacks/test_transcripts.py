"""What is kept of an episode, and which episodes."""

from __future__ import annotations

import json
from types import SimpleNamespace

from callback_helpers import make_episode, make_result
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_llm.callbacks.transcripts import (
    TranscriptCollector,
    pick_episodes,
    pop_transcripts,
    read_result,
    transcript_record,
    without_transcripts,
)


def record_of(episode, **settings):
    settings = {"max_chars": 100, "max_turns": 10, **settings}
    return transcript_record(episode, split="train", picked="best", **settings)


def collect(episodes, collector=None, *, num_env_runners=0, in_evaluation=False):
    logger = MetricsLogger(root=True)
    config = SimpleNamespace(
        num_env_runners=num_env_runners, in_evaluation=in_evaluation
    )
    (collector or TranscriptCollector()).on_sample_end(
        env_runner=SimpleNamespace(config=config),
        metrics_logger=logger,
        samples=episodes,
    )
    return read_result({"env_runners": logger.compile()})


def test_best_worst_and_repeatable_random_are_picked():
    episodes = [make_episode([r], seed=r) for r in (3, 9, 1, 5, 4)]
    picks = list(pick_episodes(episodes, 4))
    assert [why for why, _ in picks] == ["best", "worst", "random", "random"]
    assert picks[0][1].get_return() == 9 and picks[1][1].get_return() == 1
    assert len({id(e) for _, e in picks}) == 4
    again = list(pick_episodes(episodes, 4))
    assert [id(e) for _, e in picks] == [id(e) for _, e in again]
    assert [why for why, _ in pick_episodes(episodes[:1], 4)] == ["best"]
    assert [why for why, _ in pick_episodes(episodes, 1)] == ["random"]


def test_record_tells_the_whole_episode():
    record = record_of(make_episode([0, 1], seed=5, success=True, invalid=1))
    assert record["return"] == 1.0 and record["success"] is True
    assert record["seed"] == 5 and record["stop_reason"] == "terminated"
    assert record["num_turns"] == 2 and record["num_tokens"] == 6
    assert record["turns"][0] == {
        "turn": 0,
        "agent": None,
        "policy": None,
        "observation": "hello",
        "completion": "answer 0",
        "reward": 0.0,
        "tokens": 3,
        "logp_mean": -0.5,
        "finish": "length",
        "invalid": True,
    }
    assert record["turns"][1]["observation"] == "hello 1"
    assert record["final_observation"] == "hello 2"


def test_records_are_bounded_and_encodable():
    episode = make_episode([0] * 30, text="x" * 5000 + "\ud800")
    record = record_of(episode)
    shown = [t["turn"] for t in record["turns"]]
    assert shown == [0, 1, 2, 3, 4, 25, 26, 27, 28, 29]
    assert "[4901 characters cut]" in record["turns"][0]["observation"]
    assert len(json.dumps(record).encode("utf-8")) < 5000


def test_collector_shares_its_count_among_runners():
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


def test_pop_and_copy_take_them_out():
    result = make_result(1, transcripts=[{"a": 1}], evaluation={"success_rate": 0.5})
    result["evaluation"]["env_runners"]["transcripts"] = '{"b":2}'
    copy = without_transcripts(result)
    assert "transcripts" not in copy["env_runners"]
    assert "transcripts" not in copy["evaluation"]["env_runners"]
    assert copy["evaluation"]["env_runners"]["success_rate"] == 0.5
    assert pop_transcripts(result) == [{"a": 1}, {"b": 2}]
    assert read_result(result) == []
