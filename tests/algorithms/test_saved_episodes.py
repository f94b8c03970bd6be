"""Episodes in the package's file format: written, read, and trained on."""

from __future__ import annotations

import copy
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from learner_helpers import make_batch, make_learner
from ray.rllib.core.columns import Columns

from rllib_llm import GRPOConfig, LLMPPOConfig, SFTConfig
from rllib_llm.algorithms.driver.saved_episodes import EpisodeSaver
from rllib_llm.components import component
from rllib_llm.connectors.fingerprint import tokenizer_fingerprint
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import FinishReason, StopReason, Task
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.demonstrations import demonstrate
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.offline.row_file import RowFile, SharedRows
from rllib_llm.offline.saved_rows import dump_row, episode_row
from rllib_llm.offline.sft_before_rl import demonstration_episode
from rllib_llm.offline.stage_files import paths_by_entry
from rllib_llm.offline.stored_episodes import conversation_episode

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}


def config_of(config_class, **rollouts):
    config = (
        config_class()
        .environment("guess_number-v0")
        .language_model(tiny=TINY)
        .rollouts(**rollouts)
    )
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return config


@pytest.fixture(scope="module")
def ready():
    return config_of(SFTConfig)


@pytest.fixture(scope="module")
def renderer(ready):
    return ready.chat_renderer()


@pytest.fixture(scope="module")
def env(ready):
    return ready.make_text_env()


def played(env, renderer, seed, success=True):
    """An episode whose tokens are those of its texts, as if it had been sampled."""
    demo = demonstrate(env, seed=seed, mistake_rate=0.5)
    episode = demonstration_episode(demo, renderer, "Guess well.")
    data = episode_data(episode)
    data.task = Task(group_id=seed, rollout=0, seed=seed, options={"split": "train"})
    data.stop_reason, data.success = StopReason.TERMINATED, success
    for turn in episode.get_extra_model_outputs(columns.TURN):
        turn.action_logps = -np.linspace(0.1, 2, len(turn.action_ids), dtype=np.float32)
    return episode


def row_of(episode, renderer, **settings):
    prints = {"default_policy": tokenizer_fingerprint(renderer.tokenizer)}
    row = episode_row(episode, prints, env="guess_number-v0", **settings)
    return json.loads(dump_row(row))


def read(row):
    return parse_row(json.dumps(row).encode())


def without_ids(row):
    row = copy.deepcopy(row)
    for agent in row["agents"]:
        for turn in agent["turns"]:
            del turn["prompt_ids"], turn["action_ids"], turn["action_logps"]
    return row


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# Round trips --------------------------------------------------------------------------


def test_recorded_ids_are_used_as_they_are(env, renderer):
    live = played(env, renderer, 3)
    # Tokens that no text has: the last one once more.
    turn = live.get_extra_model_outputs(columns.TURN)[0]
    turn.action_ids = np.append(turn.action_ids[:-1], turn.action_ids[-2:])
    turn.action_logps = np.append(turn.action_logps, np.float32(-0.123456789))
    back = conversation_episode(read(row_of(live, renderer)), renderer)
    pairs = zip(
        live.get_extra_model_outputs(columns.TURN),
        back.get_extra_model_outputs(columns.TURN),
        strict=True,
    )
    for ours, theirs in pairs:
        assert ours.prompt_ids.tolist() == theirs.prompt_ids.tolist()
        assert ours.action_ids.tolist() == theirs.action_ids.tolist()
        # Bit by bit: they are denominators of ratios.
        assert (ours.action_logps == theirs.action_logps).all()
        assert (ours.extends, ours.env_t) == (theirs.extends, theirs.env_t)
    assert list(back.get_rewards()) == list(live.get_rewards())
    data = episode_data(back)
    assert (data.success, data.stop_reason) == (True, StopReason.TERMINATED)
    assert data.messages == episode_data(live).messages


def test_rendered_again_the_texts_have_the_recorded_ids(env, renderer):
    for seed in range(6):
        live = played(env, renderer, seed)
        stored = read(without_ids(row_of(live, renderer)))
        back = conversation_episode(stored, renderer, "Another system message.")
        assert episode_data(back).ids == episode_data(live).ids
        assert list(back.get_rewards()) == list(live.get_rewards())


def test_a_cut_turn_is_rendered_without_its_end(env, renderer):
    live = played(env, renderer, 3)
    row = without_ids(row_of(live, renderer))
    row["agents"][0]["turns"][0]["finish"] = "length"
    back = conversation_episode(read(row), renderer)
    first, second, *_ = back.get_extra_model_outputs(columns.TURN)
    assert first.finish is FinishReason.LENGTH
    assert renderer.end_of_turn_id not in first.action_ids
    # As live: the next prompt closes the turn.
    assert second.prompt_ids[0] == renderer.end_of_turn_id


@pytest.mark.parametrize("has_ids", [True, False])
def test_rows_of_a_file_equal_those_of_the_live_episode(ready, env, renderer, has_ids):
    live = [played(env, renderer, seed) for seed in range(3)]
    episode_data(live[0]).masked_turns = frozenset({0})
    rows = [
        row_of(e, renderer, untrained={0: {0}} if e is live[0] else {}) for e in live
    ]
    if not has_ids:
        rows = [without_ids(row) for row in rows]
    back = [conversation_episode(read(row), renderer) for row in rows]
    learner = make_learner(ready)
    ours, theirs = (make_batch(learner, episodes) for episodes in (live, back))
    names = [columns.INPUT_IDS, columns.TURN_IDS, columns.TURN_STEPS]
    names += [columns.TOKEN_REWARDS, columns.LOSS_WEIGHTS, columns.SUCCESS]
    names += [Columns.LOSS_MASK, *([columns.BEHAVIOUR_LOGP] if has_ids else [])]
    for name in names:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)
    of_first = ours[columns.EPISODE_INDEX] == 0
    is_masked = ours[columns.TURN_IDS][of_first] == 0
    assert is_masked.any()
    assert not ours[Columns.LOSS_MASK][of_first][is_masked].any()


def test_turns_that_are_not_trained_have_no_loss(ready, env, renderer):
    live = played(env, renderer, 3)
    count = len(live)
    row = row_of(live, renderer, untrained={0: range(count - 1)})
    assert [t["train"] for t in row["agents"][0]["turns"]] == [False] * (count - 1) + [
        True
    ]
    for each in (row, without_ids(row)):
        episode = conversation_episode(read(each), renderer)
        batch = make_batch(make_learner(ready), [episode])
        turns = batch[columns.TURN_IDS][batch[Columns.LOSS_MASK]]
        assert set(turns.tolist()) == {count - 1}


def test_another_tokenizer_renders_the_texts(env, renderer):
    row = row_of(played(env, renderer, 3), renderer)
    row["agents"][0]["tokenizer"] = "0123456789abcdef"
    row["agents"][0]["turns"][0]["action_ids"][0] += 1
    back = conversation_episode(read(row), renderer)
    # The changed id was not read.
    expected = conversation_episode(read(without_ids(row)), renderer)
    assert episode_data(back).ids == episode_data(expected).ids
    row["agents"][0]["turns"][0]["messages"] = None
    with pytest.raises(ConfigError, match="no 'messages', and its ids are those of"):
        conversation_episode(read(row), renderer)


def test_ids_beyond_the_vocabulary(env, renderer):
    row = row_of(played(env, renderer, 3), renderer)
    row["agents"][0]["turns"][1]["action_ids"][0] = 10**6
    with pytest.raises(ConfigError, match="has the token id 1000000"):
        conversation_episode(read(row), renderer)


def test_the_fingerprint_is_of_ids_and_template(renderer):
    tokenizer = copy.deepcopy(renderer.tokenizer)
    ours = tokenizer_fingerprint(renderer.tokenizer)
    tokenizer(["a", "bb"], padding=True, truncation=True, max_length=8)
    assert tokenizer_fingerprint(tokenizer) == ours
    tokenizer.chat_template += " "
    assert tokenizer_fingerprint(tokenizer) != ours
    tokenizer.chat_template = renderer.tokenizer.chat_template
    tokenizer.add_tokens(["a new token"])
    assert tokenizer_fingerprint(tokenizer) != ours


def test_a_game_of_two(renderer, env):
    one = row_of(played(env, renderer, 3), renderer)
    two = row_of(played(env, renderer, 4), renderer)
    agents = [one["agents"][0], two["agents"][0]]
    for number, agent in enumerate(agents):
        agent |= {"agent_id": f"agent_{number}", "agent_index": number}
    game = {**one, "agents": agents}
    for row in (game, without_ids(game)):
        unit = conversation_episode(read(row), renderer)
        parts = unit.agent_episodes
        assert list(parts) == ["agent_0", "agent_1"]
        assert len(unit) == sum(map(len, parts.values()))
        assert {part.module_id for part in parts.values()} == {"default_policy"}


# Bad rows -----------------------------------------------------------------------------

GOOD = {"completion": "4", "observation": "Guess."}


def agents(*turns, **more):
    return {"agents": [{"turns": list(turns), **more}]}


@pytest.mark.parametrize(
    "row, message",
    [
        ({"agents": []}, r"agents=\[\]"),
        ({"agents": [3]}, r"agents\[0\]=3 must be an object"),
        (agents(), r"agents\[0\].turns: an agent needs a turn"),
        (agents({"observation": "a"}), r"turns\[0\].completion=None must be a text"),
        (agents({"completion": "4"}), r"turns\[0\] needs 'messages' or 'observation'"),
        (agents({**GOOD, "reward": "x"}), "reward='x' must be a number"),
        (agents({**GOOD, "reward": True}), "reward=True must be a number"),
        (agents({**GOOD, "train": 1}), "train=1 must be true or false"),
        (agents({**GOOD, "train": False}), "nothing is imitated"),
        (agents({**GOOD, "action_ids": [3]}), "both 'prompt_ids' and 'action_ids'"),
        (
            agents({**GOOD, "prompt_ids": [1], "action_ids": [3]}),
            "has ids, but no 'tokenizer'",
        ),
        (
            agents({**GOOD, "prompt_ids": [1], "action_ids": [-3]}, tokenizer="a"),
            "whole numbers from 0",
        ),
        (
            agents(
                {**GOOD, "prompt_ids": [], "action_ids": [3], "action_logps": []},
                tokenizer="a",
            ),
            "action_logps has 0 values for 1 action_ids",
        ),
        (agents({**GOOD, "finish": "end"}), "finish='end' must be one of stop, length"),
        (
            agents(
                {"completion": "4", "messages": [{"role": "robot", "content": "a"}]}
            ),
            r"turns\[0\].messages\[0\]",
        ),
        ({**agents(GOOD), "success": 1}, "success=1 must be true, false or null"),
        ({**agents(GOOD), "stop_reason": "bored"}, "stop_reason='bored' must be one"),
        ({**agents(GOOD), "version": 9}, "newer version"),
        ({"agents": agents(GOOD)["agents"] * 2}, "'agent_id's .* must differ"),
        (agents(GOOD, tools="{"), "is not JSON"),
        (agents(GOOD, tools=[3]), "must be a list of JSON schemas"),
    ],
)
def test_what_is_wrong_with_an_episode(row, message):
    with pytest.raises(RowError, match=message):
        read(row)


def test_an_id_that_comes_twice(tmp_path):
    rows = [{**agents(GOOD), "id": name} for name in ("a", "b", "a")]
    with pytest.raises(
        ConfigError, match="line 3: the id 'a' is that of x.jsonl, line"
    ):
        RowFile([write(tmp_path / "x.jsonl", rows)], parse_row)
    again = [write(tmp_path / "y.jsonl", rows[:2]), str(tmp_path / "y.jsonl")]
    with pytest.raises(ConfigError, match="2 of 4 rows"):
        RowFile(again, parse_row)


def test_a_file_that_ends_within_a_line(tmp_path, env, renderer):
    path = tmp_path / "x.jsonl"
    write(path, [row_of(played(env, renderer, s), renderer) for s in (3, 4)])
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ConfigError, match="x.jsonl, line 2: not JSON"):
        RowFile([str(path)], parse_row)


def test_parquet_holds_the_same_episodes(tmp_path, env, renderer):
    rows = [row_of(played(env, renderer, seed), renderer) for seed in range(3)]
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    stored = RowFile([str(path)], parse_row)
    for number, row in enumerate(rows):
        assert stored[number] == read(row)


# Saving -------------------------------------------------------------------------------


def saver(folder, **rollouts):
    config = config_of(LLMPPOConfig, save_episodes=str(folder), **rollouts)
    return EpisodeSaver(config, folder, "trial")


def files(folder):
    return {path.name: path.read_text().count("\n") for path in folder.glob("*")}


def test_one_file_per_iteration_and_sampling_round(tmp_path, env, renderer):
    episodes = [played(env, renderer, s, success=s % 2 == 0) for s in range(4)]
    ours = saver(tmp_path, save_where=["success"])
    assert ours.save(SampledEpisodes(episodes[:2]), 7) == 1
    assert ours.save(SampledEpisodes(episodes), 7) == 2
    assert ours.save(SampledEpisodes(episodes[1:2]), 8) == 0
    expected = {"trial-000007.jsonl": 1, "trial-000007-1.jsonl": 2}
    assert files(tmp_path) == expected
    # A resumed run repeats the iteration: nothing is there twice.
    assert saver(tmp_path).save(SampledEpisodes(episodes), 7) == 4
    assert files(tmp_path) == {"trial-000007.jsonl": 4}


def test_turns_that_a_filter_masks_are_saved_without_loss(tmp_path, env, renderer):
    episode = played(env, renderer, 3)
    component("filter", "test_later_turns", effect="turns")(
        lambda table: table.turn > 0
    )
    ours = saver(tmp_path, save_where=["test_later_turns"])
    ours.save(SampledEpisodes([episode]), 1)
    (row,) = [json.loads(x) for x in (tmp_path / "trial-000001.jsonl").open()]
    flags = [turn["train"] for turn in row["agents"][0]["turns"]]
    assert flags == [False] + [True] * (len(episode) - 1)


@pytest.mark.parametrize(
    "rollouts, message",
    [
        ({"save_where": ["success"]}, "nothing is saved"),
        ({"save_episodes": "s3://bucket/x"}, "must be a folder"),
        ({"save_episodes": True, "save_where": ["no_such"]}, "no_such"),
    ],
)
def test_settings_of_saving(rollouts, message):
    with pytest.raises(ConfigError, match=message):
        config_of(LLMPPOConfig, **rollouts)
    with pytest.raises(ConfigError, match="save_episodes=True would have no effect"):
        config_of(SFTConfig, save_episodes=True)


def test_files_of_a_stage(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    assert paths_by_entry(["x.jsonl", "stage:rl"], {"rl": None}) is None
    found = paths_by_entry(["x.jsonl", "stage:rl"], {"rl": str(tmp_path)})
    assert found == [["x.jsonl"], [str(tmp_path / "a.jsonl")]]
    with pytest.raises(ConfigError, match="no earlier stage 'lr' saves.*Known: rl"):
        paths_by_entry("stage:lr", {"rl": None})
    with pytest.raises(ConfigError, match="saved no episodes in"):
        paths_by_entry("stage:rl", {"rl": str(tmp_path / "none")})


def test_min_return_leaves_rows_out(tmp_path):
    rows = [agents({**GOOD, "reward": r}) for r in (0.0, 0.5, 1.0)]
    path = write(tmp_path / "x.jsonl", rows)
    assert len(RowFile([path], parse_row, 0.5)) == 2
    with pytest.raises(ConfigError, match="none of the 3 episodes"):
        RowFile([path], parse_row, 1.5)
    chat = {"prompt": "a", "completion": "b"}
    with pytest.raises(ConfigError, match="min_return needs saved episodes"):
        RowFile([write(tmp_path / "y.jsonl", [chat])], parse_row, 0.5)


def test_shares_of_files(tmp_path):
    paths = [
        write(tmp_path / f"{name}.jsonl", [{"prompt": name, "completion": "b"}] * count)
        for name, count in (("a", 3), ("b", 50), ("c", 7))
    ]
    parts = [RowFile([path], parse_row) for path in paths]
    rows = SharedRows(parts, [0.2, 0.5, 0.3])
    seen = [c.messages[0]["content"] for c in rows.in_passes(0, 0, 100)]
    assert [seen.count(name) for name in "abc"] == [20, 50, 30]
    # In every stretch, so in every iteration.
    for first in range(0, 90, 10):
        assert [seen[first : first + 10].count(name) for name in "abc"] == [2, 5, 3]
    # From anywhere: a restored run continues.
    fresh = SharedRows(parts, [0.2, 0.5, 0.3])
    again = [c.messages[0]["content"] for c in fresh.in_passes(0, 37, 20)]
    assert again == seen[37:57]


@pytest.mark.parametrize(
    "data, message",
    [
        ({"shares": [1.0]}, "shares=.*files is None"),
        ({"files": ["x", "y"], "shares": [1.0]}, "1 shares for 2 entries"),
        ({"files": ["x", "y"], "shares": [0.5, 0.4]}, "must sum to 1"),
        ({"files": ["x"], "shares": [0.0]}, "shares"),
    ],
)
def test_settings_of_shares(data, message):
    config = SFTConfig().environment("guess_number-v0").language_model(tiny=TINY)
    with pytest.raises(ConfigError, match=message):
        config.data(**data).validate()


@pytest.mark.ray
def test_a_run_saves_what_another_imitates(ray_session, tmp_path):
    config = config_of(
        GRPOConfig,
        episodes_per_iteration=8,
        group_size=4,
        save_episodes=str(tmp_path / "saved"),
    )
    algo = config.generation(max_new_tokens=8).build_algo()
    result = algo.train()
    assert result["num_episodes_saved"] == 8
    algo.stop()
    stored = RowFile([str(tmp_path / "saved" / "*.jsonl")], parse_row)
    assert len(stored) == 8
    renderer = config.chat_renderer()
    for number in range(8):
        for agent in stored[number].agents:
            for turn in agent.turns:
                text = renderer.decode(turn.action_ids)
                assert text == turn.completion
                assert len(turn.action_logps) == len(turn.action_ids)
    imitation = config_of(SFTConfig, episodes_per_iteration=8)
    imitation.data(files=str(tmp_path / "saved" / "*.jsonl"))
    algo = imitation.training(lr=1e-2).build_algo()
    nll = [algo.train()["learners"]["default_policy"]["nll"] for _ in range(3)]
    assert nll[0] > nll[-1] > 0
    algo.stop()
