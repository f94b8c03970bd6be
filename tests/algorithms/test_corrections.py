"""Conversations with a wrong turn and its correction."""

from __future__ import annotations

import json

import pytest
from component_helpers import trajectory
from learner_helpers import make_config
from saving_helpers import Driver

from rllib_llm import GRPOConfig, SFTConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.corrections import corrections
from rllib_llm.offline.stored_episodes import conversation_episode


def played(replies, *, solved, task=0, rollout=0, opening=()):
    """Return a trajectory whose observations tell what came before."""
    observations = ["start", *(f"after {r}" for r in replies[:-1])]
    messages = list(opening)
    for observation, reply in zip(observations, replies, strict=True):
        messages.append({"role": "user", "content": observation})
        messages.append({"role": "assistant", "content": reply})
    return trajectory(
        task,
        rollout,
        rewards=[0.0] * (len(replies) - 1) + [float(solved)],
        observations=observations,
        completions=list(replies),
        messages=messages,
        success=solved,
    )


def texts(row):
    return [(m["content"], m.get("train", True)) for m in row["messages"]]


GOOD = played(["a", "b", "c"], solved=True)


def test_a_wrong_turn_is_followed_by_the_sentence_and_the_solved_rest():
    bad = played(["a", "x", "y"], solved=False, rollout=1)
    (row,) = corrections([GOOD, bad], "No.")
    assert texts(row) == [
        ("start", True),
        ("a", True),
        ("after a", True),
        ("x", False),
        ("after x", True),
        ("No. b", True),
        ("after b", True),
        ("c", True),
    ]


def test_the_solved_episode_with_most_turns_in_common_is_taken():
    bad = played(["a", "b", "y", "z"], solved=False, rollout=1)
    other = played(["q", "r"], solved=True, rollout=2)
    for members in ([GOOD, other, bad], [other, GOOD, bad]):
        (row,) = corrections(members, "No.")
        assert [m["content"] for m in row["messages"]][-4:] == [
            "after b", "y", "after y", "No. c",
        ]  # fmt: skip


@pytest.mark.parametrize(
    "members",
    [
        [GOOD],
        [played(["x", "y"], solved=False)],
        # Files of conversations have no empty messages.
        [GOOD, played(["a", " ", "y"], solved=False, rollout=1)],
        # It ended with its wrong turn.
        [GOOD, played(["a", "x"], solved=False, rollout=1)],
        # Of another task.
        [GOOD, played(["x", "y"], solved=False, task=1)],
    ],
)
def test_what_cannot_be_corrected_is_left_out(members):
    assert corrections(members, "No.") == []


def test_an_opening_with_replies_stays():
    opening = [
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "example"},
        {"role": "assistant", "content": "answer"},
    ]
    good = played(["a", "b"], solved=True, opening=opening)
    bad = played(["x", "y"], solved=False, rollout=1, opening=opening)
    (row,) = corrections([good, bad], "No.")
    assert row["messages"][:3] == opening
    assert [m["content"] for m in row["messages"][3:]] == [
        "start", "x", "after x", "No. a", "after a", "b",
    ]  # fmt: skip


def test_the_wrong_turn_is_not_trained():
    bad = played(["a", "x", "y"], solved=False, rollout=1)
    (row,) = corrections([GOOD, bad], "No.")
    stored = parse_row(json.dumps(row).encode())
    assert stored.trained == (True, False, True, True)
    config = make_config(SFTConfig)
    episode = conversation_episode(stored, config.chat_renderer())
    assert episode_data(episode).masked_turns == frozenset({1})
    decode = config.chat_renderer().decode
    replies = [
        decode(turn.action_ids.tolist())
        for turn in episode.get_extra_model_outputs(columns.TURN)
    ]
    assert replies == ["a", "x", "No. b", "c"]


class Sampled:
    """Sampled episodes as far as a driver reads them here."""

    def __init__(self, trajectories):
        self.trajectories = trajectories


def test_corrections_are_saved_in_place_of_episodes(tmp_path):
    config = make_config(GRPOConfig).rollouts(
        save_episodes=str(tmp_path), save_as="corrections", correction="Wrong."
    )
    config.validate()
    driver = Driver()
    driver.setup(config)
    bad = played(["a", "x", "y"], solved=False, rollout=1)
    driver.save_episodes(Sampled([GOOD, bad]))
    (file,) = tmp_path.glob("*.jsonl")
    (line,) = file.read_text().splitlines()
    assert ("Wrong. b", True) in texts(json.loads(line))
    assert driver.metrics.peek("num_episodes_saved") == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"save_as": "corrections"}, "nothing is saved"),
        ({"correction": "No.", "save_episodes": "x"}, "no effect"),
        (
            {"save_as": "corrections", "save_episodes": "x", "save_where": "success"},
            "save_where",
        ),
        (
            {"save_as": "corrections", "save_episodes": "x", "group_size": 1},
            "group_size",
        ),
    ],
)
def test_settings_that_do_not_fit(given, expected):
    config = GRPOConfig().environment("guess_number-v0")
    config.training(advantage_estimator="return", drop_zero_variance_groups=False)
    with pytest.raises(ConfigError, match=expected):
        config.rollouts(**given).validate()


def test_several_agents_have_no_corrections():
    config = GRPOConfig().environment("team-v0")
    config.rollouts(save_as="corrections", save_episodes="x")
    with pytest.raises(ConfigError, match="agent"):
        config.validate()
