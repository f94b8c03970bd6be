"""Pairs of continuations after replies of low value, from sampled forks."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest
from fork_toys import group
from runner_helpers import make_runner
from saving_helpers import Driver
from team_helpers import tiny_model

from rllib_llm import GRPOConfig
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError
from rllib_llm.offline.calibrations import calibrations, deviations
from rllib_llm.offline.conversation_files import parse_pair

SENTENCE, MARGIN = "Not good.", 0.1


class Climb(TextEnv):
    """The last character's code decides: up if it is even, else down; 2 steps up."""

    max_turns = 5

    def start(self, rng) -> str:
        self.height = 0
        return f"Climb from {int(rng.integers(100))}."

    def parse(self, completion):
        return completion or "nothing"

    def reply(self, action):
        self.height += 1 if ord(action[-1]) % 2 == 0 else -1
        done = self.height == 2
        return TurnResult(f"At {self.height}.", float(done), done, success=done)

    def random_action(self, rng):
        return "ab"[int(rng.integers(2))]


class Literal(Climb):
    """As above, but after a reply with a reflection the top is out of reach."""

    def reply(self, action):
        self.height -= self.max_turns * action.startswith(SENTENCE)
        return super().reply(action)


@pytest.fixture(scope="module")
def sampled():
    """Three trees of 32 episodes that a model of random weights sampled."""
    fork = {"name": "every_turn", "roots": 4}
    runner = make_runner(
        Climb, fork=fork, group_size=32, episodes_per_iteration=96, slots=32
    )
    tasks = [task for number in range(3) for task in group(32, number=number)]
    episodes = SampledEpisodes(runner.sample(tasks=tasks))
    runner.stop()
    assert any(len(t.path) > 1 for t in episodes.trajectories)
    return episodes


def sampler(trajectory, turn):
    """Return what identifies the sampling of a turn, by its path."""
    branch = [b for b in trajectory.path if b.turn <= turn][-1]
    return (branch.rollout, branch.attempt, turn)


def slow_deviations(trajectories, margin):
    """Return the episodes and turn of each deviated reply, by definition."""
    replies = defaultdict(list)
    for trajectory in trajectories:
        task = trajectory.task.group_id
        for turn, text in enumerate(trajectory.completions):
            place = (task, sampler(trajectory, turn - 1) if turn else "prompt")
            replies[place, text].append((trajectory, turn))
    values = {
        key: np.mean([t.episode_return for t, _ in members])
        for key, members in replies.items()
    }
    found = []
    for (place, text), members in replies.items():
        best = max(v for (other, _), v in values.items() if other == place)
        if best - values[place, text] > margin:
            found.append((sorted(t.episode for t, _ in members), members[0][1]))
    return found


@pytest.mark.parametrize("margin", [0.0, MARGIN, 0.6])
def test_replies_deviate_whose_value_is_below_the_best_at_their_place(sampled, margin):
    found = [
        (sorted(t.episode for t in members), turn)
        for members, turn in deviations(sampled.table(), margin)
    ]
    assert sorted(found) == sorted(slow_deviations(sampled.trajectories, margin))
    assert len(found) > 5


def test_a_larger_margin_leaves_replies_out(sampled):
    few, many = (len(deviations(sampled.table(), m)) for m in (0.6, 0.0))
    assert 0 < few < many


def replies(messages):
    return [m["content"] for m in messages if m["role"] == "assistant"]


def trained(messages):
    return [m.get("train", True) for m in messages if m["role"] == "assistant"]


def test_the_chosen_side_reflects_and_is_solved_the_rejected_one_was_sampled(sampled):
    rows = calibrations(Climb(), sampled.table(), SENTENCE, MARGIN)
    assert len(rows) > 3
    started = {t.observations[0]: t.task for t in sampled.trajectories}
    failed = {
        (t.observations[0], *replies(t.messages))
        for t in sampled.trajectories
        if not t.is_solved
    }
    for row in rows:
        chosen, rejected = row["chosen"], row["rejected"]
        first = next(m["content"] for m in chosen if m["role"] == "user")
        env = Climb()
        task = started[first]
        seen = [env.reset(seed=task.seed, options=dict(task.options))[0]]
        for text in replies(chosen):
            observation, _, over, _, info = env.step(text)
            seen.append(observation)
        assert over and info["success"]
        assert seen[:-1] == [m["content"] for m in chosen if m["role"] == "user"]
        (at,) = [n for n, text in enumerate(replies(chosen)) if SENTENCE in text]
        assert at > 0 and replies(chosen)[at].startswith(f"{SENTENCE} ")
        for side in (chosen, rejected):
            flags = trained(side)
            assert flags == [False] * at + [True] * (len(flags) - at)
        # Both went on from the same deviated reply.
        assert replies(chosen)[:at] == replies(rejected)[:at]
        assert (first, *replies(rejected)) in failed
        assert parse_pair(json.dumps(row).encode()).chosen.trained == tuple(
            trained(chosen)
        )


def test_the_shortest_recovery_is_chosen(sampled):
    rows = calibrations(Climb(), sampled.table(), SENTENCE, MARGIN)
    lengths = set()
    for members, turn in deviations(sampled.table(), MARGIN):
        after = [t for t in members if len(t) > turn + 1]
        solved = [len(t) for t in after if t.is_solved]
        if solved and len(solved) < len(after):
            key = (members[0].observations[0], *members[0].completions[: turn + 1])
            lengths.add((key, min(solved)))
    shown = set()
    for row in rows:
        texts = replies(row["chosen"])
        context = texts[: trained(row["chosen"]).index(True)]
        first = next(m["content"] for m in row["chosen"] if m["role"] == "user")
        shown.add(((first, *context), len(texts)))
    assert shown == lengths


def test_what_the_environment_does_not_solve_again_is_left_out(sampled):
    assert not calibrations(Literal(), sampled.table(), SENTENCE, MARGIN)


def config_with(**given):
    config = GRPOConfig().environment(Climb)
    fork = {"name": "every_turn"}
    return config.rollouts(**{"save_as": "calibrations", "fork": fork, **given})


def test_the_margin_and_the_sentence_are_those_of_the_settings(sampled, tmp_path):
    counts = []
    for number, margin in enumerate((0.0, 0.6)):
        folder = tmp_path / str(number)
        config = config_with(
            save_episodes=str(folder), calibration_margin=margin, correction=SENTENCE
        ).language_model(model=tiny_model())
        config.validate()
        driver = Driver()
        driver.setup(config)
        driver.save_episodes(sampled)
        (file,) = folder.glob("*.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert all(SENTENCE in str(row["chosen"]) for row in rows)
        assert driver.metrics.peek("num_episodes_saved") == len(rows)
        counts.append(len(rows))
    assert counts[0] > counts[1] > 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "nothing is saved"),
        ({"save_episodes": "x", "fork": None}, "Set fork"),
        ({"save_episodes": "x", "save_where": "success"}, "chooses the episodes"),
        ({"save_episodes": "x", "save_as": "corrections", "calibration_margin": 0.5},
         "no effect"),
        ({"save_episodes": "x", "calibration_margin": -1.0}, "calibration_margin"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(given, expected):
    with pytest.raises(ConfigError, match=expected):
        config_with(**given).validate()
