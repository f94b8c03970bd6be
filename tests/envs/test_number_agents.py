"""Numeric agents beside text agents: observations, actions, and checks."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from non_llm_toys import Beside, Discretely, Errand
from pettingzoo import ParallelEnv

from rllib_llm.algorithms.config.preflight import texts_of
from rllib_llm.env_runner.rllib_multi_agent_env import to_rllib_env
from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter
from rllib_llm.envs.multi_checks import check_multi_env
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.envs.spaces import UnicodeText, is_of_numbers
from rllib_llm.errors import EnvContractError
from rllib_llm.offline.demonstrations import demonstrate_together


def test_spaces_of_numbers():
    box = Box(0.0, 1.0, (2,))
    assert all(map(is_of_numbers, [box, Discrete(2), Tuple([box]), Dict({"a": box})]))
    texts = [UnicodeText(), Text(9), Dict({"text": UnicodeText(), "more": box})]
    assert not any(map(is_of_numbers, texts))


@pytest.mark.parametrize("env", [Errand, Discretely, Beside])
def test_the_checks_play_the_speakers_and_draw_for_the_rest(env):
    report = check_multi_env(env, seeds=range(4))
    # Neither game has an expert, and nothing else is wrong.
    assert not report.problems, report.problems


def test_numbers_are_unchanged_and_text_is_extracted():
    joint = MultiAgentAdapter(Errand())
    assert joint.number_spaces("speaker_0") is None
    assert joint.number_spaces("runner_0") == (Errand.reads, Errand.acts)
    shown = joint.reset(seed=1)
    assert shown.observations == {"speaker_0": "Turn 0."} == texts_of(joint, shown)
    shown = joint.step({"speaker_0": "hi"})
    (numbers,) = shown.observations.values()
    assert numbers is joint.unwrapped.observe("runner_0")
    assert texts_of(joint, shown) == {}
    shown = joint.step({"runner_0": np.int64(1)})
    assert joint.unwrapped.seen == [1]


def test_a_parallel_game_mixes_both_and_cuts_both():
    joint = MultiAgentAdapter(Beside())
    shown = joint.reset(seed=0)
    assert list(shown.observations) == ["speaker_0", "runner_0", "runner_1"]
    while not shown.is_over:
        shown = joint.step(
            {
                a: "go" if isinstance(o, str) else 3
                for a, o in shown.observations.items()
            }
        )
    assert shown.final_observations["speaker_0"] == "At 4."
    assert shown.final_observations["runner_0"] == np.array([4.0], np.float32)
    assert [len(got) for got in joint.env.got] == [3, 3, 2, 2]


class Resting(Beside):
    """Runners act in every second round only."""

    def _tell(self, names):
        shown = super()._tell(names)
        if self.t % 2:
            shown |= {"runner_0": None, "runner_1": None}
        return {a: shown[a] for a in names}


def test_numeric_agent_skips_a_round_with_none():
    joint = MultiAgentAdapter(Resting())
    joint.reset(seed=0)
    shown = joint.step({"speaker_0": "go", "runner_0": 3, "runner_1": 3})
    assert list(shown.observations) == ["speaker_0"]
    joint.step({"speaker_0": "go"})
    assert joint.env.got[1] == {"speaker_0": "go", "runner_0": None, "runner_1": None}


class OutOfBounds(Beside):
    def _tell(self, names):
        return super()._tell(names) | {"runner_0": np.array([99.0], np.float32)}


class WrongType(Errand):
    def observed(self):
        return super().observed().astype(np.float64)


def test_values_outside_of_the_space_are_refused():
    with pytest.raises(EnvContractError, match=r"99.*'runner_0'.*observation space"):
        MultiAgentAdapter(OutOfBounds()).reset(seed=0)
    with pytest.raises(EnvContractError, match=r"prompt_for\('runner_0'\).*dtype"):
        WrongType().reset(seed=0)
    env = Errand()
    env.reset(seed=0)
    env.step("hi")
    with pytest.raises(EnvContractError, match=r"got 2 as the action of 'runner_0'"):
        env.step(2)


def test_one_player_draws_for_agents_of_numbers_by_the_seed():
    def seen(seed):
        env = OnePlayer(MultiAgentAdapter(Errand()))
        env.reset(seed=seed, options=None)
        over, rewards = False, []
        while not over:
            assert env.agent == "speaker_0"
            _, reward, terminated, truncated, _ = env.step("hi")
            rewards.append(reward)
            over = terminated or truncated
        return env.adapter.unwrapped.seen, rewards

    assert seen(1) == seen(1)
    assert len({tuple(seen(s)[0]) for s in range(8)}) > 1
    assert sum(seen(5)[1]) >= 3 * 0.1  # all rewards are reported


class Taught(Errand):
    def expert_action(self, agent, rng):
        return f"{agent} runs"

    random_action = expert_action


def test_demonstrations_are_of_speakers_only():
    (demo,) = demonstrate_together(
        MultiAgentAdapter(Taught()), seed=3, mistake_rate=0.0
    )
    assert demo.agent_id == "speaker_0"
    assert demo.completions == ["speaker_0 runs"] * 3


class Undeclared(Beside):
    """Declares spaces in attributes, which PettingZoo's default methods read."""

    observation_space = ParallelEnv.observation_space
    action_space = ParallelEnv.action_space


def test_spaces_may_stand_in_attributes_or_nowhere(recwarn):
    joint = MultiAgentAdapter(Undeclared())
    assert joint.number_spaces("runner_0") == (Beside.reads, Beside.acts)
    env = Undeclared()
    del env.observation_spaces, env.action_spaces
    assert MultiAgentAdapter(env).number_spaces("runner_0") is None
    assert not recwarn.list


@pytest.mark.parametrize("game", [Errand, Beside])
def test_rllibs_view_of_a_game_has_the_same_spaces(game):
    env = to_rllib_env(MultiAgentAdapter(game()))
    shown, _ = env.reset(seed=0)
    over, seen = False, set()
    while not over:
        seen |= set(shown)
        actions = {a: "go" if isinstance(o, str) else 1 for a, o in shown.items()}
        shown, _, terminated, truncated, _ = env.step(actions)
        over = terminated["__all__"] or truncated["__all__"]
        for agent, observation in shown.items():
            assert env.observation_spaces[agent].contains(observation), agent
    assert seen == set(env.possible_agents)
    assert env.action_spaces["runner_0"] == game.acts
