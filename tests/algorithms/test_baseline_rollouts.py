"""The reward `gain`: tasks are played again under other options."""

from __future__ import annotations

import pytest
from component_helpers import trajectory
from team_helpers import single_config

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.driver.baseline_rollouts import baseline_tasks
from rllib_llm.components.registry import bind
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.turn_table import MissingInfo
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError

GREEDY = {"name": "group", "baseline": "greedy", "scale": "none"}
GAIN = {"name": "gain", "options": {"bonus": 0.5}}


class Rewarding(TextEnv):
    """One turn; the reward is the option, plus the text's class of 0 or 1."""

    max_turns = 1

    def start(self, rng, bonus: float = 2.0):
        self.bonus = bonus
        return f"Number {int(rng.integers(100))}."

    def parse(self, completion):
        return completion or "-"

    def reply(self, action):
        value = float(sum(map(ord, action)) % 2)
        return TurnResult("Over.", reward=self.bonus + value, terminated=True)


def config(rewards, cls=GRPOConfig, env=Rewarding, **sections):
    return single_config(
        cls,
        env=env,
        rollouts={"episodes_per_iteration": 8, "group_size": 2, "rewards": rewards},
        **sections,
    )


def test_the_mean_of_the_baseline_is_subtracted_in_the_last_turn():
    gain = bind("reward", GAIN).call
    one = trajectory(0, 0, rewards=[0.0, 1.0])
    one.baselines = {gain.key: 0.25, "other": 9.0}
    assert gain(one) == -0.25
    with pytest.raises(MissingInfo, match="compares with rollouts under"):
        gain(trajectory(0, 0, rewards=[1.0]))
    with pytest.raises(ConfigError, match="would play the same task again"):
        bind("reward", {"name": "gain", "options": {}})


def test_each_task_is_played_again_under_the_options_with_other_seeds():
    gain = bind("reward", {**GAIN, "rollouts": 3}).call
    played = [trajectory(g, r, rewards=[1.0]) for g in (4, 2) for r in range(2)]
    for each in played:
        each.task.options.update(split="train", bonus=7.0)
    tasks = baseline_tasks(gain, played, first=2)
    assert [(t.group_id, t.rollout) for t in tasks] == [
        (group, rollout) for group in (2, 4) for rollout in (2, 3, 4)
    ]
    assert {t.seed for t in tasks[:3]} == {102}
    assert all(t.options == {"split": "train", "bonus": 0.5} for t in tasks)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("rollouts", [1, 4])
def test_returns_are_those_above_the_same_task_without(rollouts):
    made = config([{**GAIN, "rollouts": rollouts}]).build_algo()
    episodes = made.sample_groups(4)
    result = made.metrics.reduce()
    made.stop()
    assert len(episodes) == 8
    assert int(result["num_baseline_rollouts"]) == 4 * rollouts
    baselines = {}
    for each in episodes.trajectories:
        (baseline,) = each.baselines.values()
        texts = sum(map(ord, each.completions[0] or "-")) % 2
        assert each.is_trained
        assert each.rewards == [2.0 + texts - baseline]
        assert 0.5 <= baseline <= 1.5
        # Equal for all rollouts of a task.
        assert baselines.setdefault(each.task.group_id, baseline) == baseline
        assert each.task.options.get("bonus") is None
    mean = sum(baselines.values()) / 4
    assert float(result["baseline_return_mean"]) == pytest.approx(mean)
    # The environment's metrics do not count them.
    assert int(result["env_runners"]["num_episodes"]) == 8
    assert all(episode_data(e).task.rollout < 2 for e in episodes)


@pytest.mark.parametrize(
    ("rewards", "sections", "message"),
    [
        ([{"name": "gain", "options": {"bonsu": 1}}], {}, "Did you mean 'bonus'"),
        (
            [GAIN],
            {"env_runners": {"sample_ahead": 1, "num_env_runners": 1}},
            "sample_ahead=1 keeps EnvRunners busy",
        ),
        (
            [GAIN],
            {"training": {"advantage_estimator": GREEDY}},
            "Greedy rollouts have no reward 'gain'",
        ),
    ],
)
def test_unsuitable_settings_are_refused(rewards, sections, message):
    with pytest.raises(ConfigError, match=message):
        config(rewards, **sections).validate()


def test_ppo_takes_it():
    made = config([GAIN], LLMPPOConfig)
    made.rollouts(group_size=1)
    made.validate()
