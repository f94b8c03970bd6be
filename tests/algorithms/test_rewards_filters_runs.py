"""Rewards, filters and curricula inside a run."""

import numpy as np
import pytest
from team_helpers import Run, tiny_model, worth

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import example_table
from rllib_llm.data.types import StopPolicy, TurnResult
from rllib_llm.envs.text_env import TextEnv


class Counting(TextEnv):
    """Pays 1 in the last of three turns, whatever is said."""

    max_turns = 3

    def start(self, rng):
        """Begin."""
        return "Go."

    def parse(self, completion):
        """Take anything but an empty word."""
        return completion or None

    def reply(self, action):
        """Pay at the end."""
        return TurnResult("On.", float(self.turn == 3), terminated=self.turn == 3)

    def random_action(self, rng):
        """Say a digit."""
        return str(rng.integers(10))


def config(**rollouts):
    return (
        GRPOConfig()
        .environment(Counting)
        .language_model(model=tiny_model())
        .generation(max_new_tokens=4)
        .rollouts(
            episodes_per_iteration=8, group_size=4, max_failed_fraction=1.0, **rollouts
        )
        .training(drop_zero_variance_groups=False)
        .env_runners(num_envs_per_env_runner=8)
        .debugging(seed=0)
    )


def wording(trajectory):
    return [-worth(text) for text in trajectory.completions]


class Asked:
    """Pays how often it was asked."""

    def __init__(self):
        self.asked = 0

    def __call__(self, trajectory):
        """Pay."""
        self.asked += 1
        return float(self.asked)

    def get_state(self):
        """Return the count."""
        return self.asked

    def set_state(self, state):
        """Bring it back."""
        self.asked = state


def odd_rollouts(table):
    return np.array([t.task.rollout % 2 == 1 for t in table.trajectories])


@pytest.fixture(scope="module")
def algo(ray_session):
    built = config(
        rewards=[wording],
        filters=[{"name": odd_rollouts, "effect": "mask"}],
        curriculum={"name": "horizon", "turns": [2, 3], "every": 1},
    ).build_algo()
    yield built
    built.stop()


def test_a_run_applies_rewards_filters_and_curriculum(algo):
    first, second = algo.train(), algo.train()
    assert first["env_runners"]["episode_len_mean"] == 2
    assert second["env_runners"]["episode_len_mean"] == 3
    assert first["reward_parts"]["environment"] == 0.0
    assert second["reward_parts"]["environment"] == 1.0
    assert second["reward_parts"]["wording"] < 0
    assert second["filtered_frac"]["odd_rollouts"] == 0.5


def test_advantages_use_the_new_rewards_and_masks(algo):
    episodes = algo.collect()
    for episode in episodes:
        data = episode_data(episode)
        rewards = [-worth(str(text)) for text in episode.get_actions()]
        rewards[-1] += 1.0
        assert np.allclose(episode.get_rewards(), rewards)
        is_masked = data.stop_policy is StopPolicy.MASK
        assert is_masked == (data.task.rollout % 2 == 0)
    returns = np.array([e.get_return() for e in episodes])
    advantage_estimator = np.array([episode_data(e).advantage for e in episodes])
    order = np.argsort([episode_data(e).task.group_id for e in episodes], kind="stable")
    groups = returns[order].reshape(2, 4), advantage_estimator[order].reshape(2, 4)
    assert np.abs(groups[1].sum(1)).max() < 1e-6  # masked ones are in the mean
    for group_returns, group_advantages_of_turns in zip(*groups, strict=True):
        assert np.corrcoef(group_returns, group_advantages_of_turns)[0, 1] > 0.999


def test_new_rewards_of_teams_enter_the_reward_log():
    run = Run(
        (
            GRPOConfig()
            .environment("secret_sum-v0")
            .multi_agent(
                policies=["a", "b"], policy_mapping_fn={"alice": "a", "bob": "b"}
            )
            .language_model(model=tiny_model())
            .generation(max_new_tokens=4)
            .rollouts(episodes_per_iteration=8, group_size=4, rewards=[wording])
            .debugging(seed=0)
        ),
        learner=False,
    )
    episodes = run.sample(2)
    DriverComponents(run.config).assign_rewards(SampledEpisodes(episodes), 0)
    for episode in episodes:
        reward_log = episode.custom_data["rewards"]
        for part in agent_episodes(episode):
            rewards = sum(r for _, agent, r in reward_log if agent == part.agent_id)
            assert rewards == pytest.approx(part.get_return())
            assert part.get_return() < 1.0


def test_rewards_that_remember_are_in_the_state():
    first, second = (
        DriverComponents(config(rewards=[Asked, "format"])) for _ in range(2)
    )
    first.only.rewards(example_table().trajectories)
    second.set_state(first.get_state())
    assert second.only.rewards.parts[1].call.asked == 8
    assert DriverComponents(config()).assign_rewards(SampledEpisodes(), 0) == {}
