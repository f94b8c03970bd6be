"""Group-relative advantages and shared rewards with several agents."""

import copy

import numpy as np
import pytest

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.grpo.grpo import estimators_of_policies
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.shared_reward import share_rewards

pytestmark = pytest.mark.ray
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


def make_config(**training):
    return (
        GRPOConfig()
        .environment("dilemma-v0", env_config={"min_rounds": 2, "max_rounds": 2})
        .language_model(tiny=TINY)
        .rollouts(episodes_per_iteration=8, group_size=4)
        .generation(max_new_tokens=3)
        .training(drop_zero_variance_groups=False, **training)
    )


@pytest.fixture(scope="module")
def algo(ray_session):
    algo = make_config().build_algo()
    yield algo
    algo.stop()


@pytest.fixture
def episodes(algo):
    """Sampled episodes whose rewards are overwritten by distinct numbers."""
    rng = np.random.default_rng(0)
    played = algo.sample_groups(2)
    for episode in played:
        reward_log = episode.custom_data["rewards"]
        reward_log.clear()
        for agent, part in episode.agent_episodes.items():
            rewards = rng.normal(size=len(part)).tolist()
            turns = part.get_extra_model_outputs("turn")
            pairs = zip(turns, rewards, strict=True)
            reward_log += [(turn.env_t + 1, agent, r) for turn, r in pairs]
            part.set_rewards(new_data=rewards)
    return played


def standardised(values):
    values = np.asarray(values)
    return (values - values.mean()) / (values.std(ddof=1) + 1e-6)


def advantage_estimator(algo, episodes, **training):
    algo.config = algo.config.copy(copy_frozen=False).training(**training)
    algo._advantage_estimators = estimators_of_policies(algo.config)
    algo._set_advantages(SampledEpisodes(episodes))
    return {
        (i, episode_data(p).agent_index): episode_data(p).advantage
        for i, e in enumerate(episodes)
        for p in agent_episodes(e)
    }


def test_each_agent_is_compared_with_itself(algo, episodes):
    found = advantage_estimator(algo, episodes, advantage_group_by="agent")
    for first in (0, 4):
        for index, agent in enumerate(
            algo.env_runner.config.make_text_env().possible_agents
        ):
            returns = [
                episodes[i].agent_episodes[agent].get_return()
                for i in range(first, first + 4)
            ]
            mine = [found[i, index] for i in range(first, first + 4)]
            np.testing.assert_allclose(mine, standardised(returns), rtol=1e-3)


def test_all_agents_of_a_task_are_compared(algo, episodes):
    found = advantage_estimator(algo, episodes, advantage_group_by="task")
    keys = [key for key in found if key[0] < 4]
    returns = [
        list(episodes[i].agent_episodes.values())[a].get_return() for i, a in keys
    ]
    np.testing.assert_allclose(
        [found[key] for key in keys], standardised(returns), rtol=1e-3
    )


def test_turns_are_compared_by_what_followed_them(algo, episodes):
    found = advantage_estimator(
        algo, episodes, advantage_group_by="turn", turn_discount=0.5
    )
    advantage_estimator(algo, episodes, advantage_group_by="agent", turn_discount=1.0)
    agent = next(iter(episodes[0].agent_episodes))
    index = episode_data(episodes[0].agent_episodes[agent]).agent_index
    rewards = [list(e.agent_episodes[agent].get_rewards()) for e in episodes[:4]]
    for turn in range(max(map(len, rewards))):
        there = [i for i in range(4) if len(rewards[i]) > turn]
        to_go = [
            sum(0.5**k * later for k, later in enumerate(rewards[i][turn:]))
            for i in there
        ]
        if len(there) == 1:
            assert found[there[0], index][turn] == 0.0
            continue
        mine = [found[i, index][turn] for i in there]
        np.testing.assert_allclose(mine, standardised(to_go), rtol=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_shared_rewards_keep_their_sum(episodes, share):
    before = copy.deepcopy(episodes)
    share_rewards(episodes, share)
    for old, new in zip(before, episodes, strict=True):
        own = {a: p.get_return() for a, p in old.agent_episodes.items()}
        mean = sum(own.values()) / len(own)
        for agent, part in new.agent_episodes.items():
            expected = (1 - share) * own[agent] + share * mean
            assert part.get_return() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"advantage_group_by": "turns"}, "Did you mean 'turn'"),
        ({"turn_discount": 0.5}, "no effect"),
        ({"turn_discount": 2.0, "advantage_group_by": "turn"}, r"number in \[0, 1\]"),
        ({"shared_reward_fraction": 1.5}, "shared_reward_fraction=1.5"),
    ],
)
def test_wrong_settings_are_refused(training, message):
    with pytest.raises(ConfigError, match=message):
        make_config(**training).validate()
