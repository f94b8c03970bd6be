"""RLlib's stock multi-agent runner with a MultiAgentAdapter."""

import gymnasium as gym
import numpy as np
import pytest
from multi_toys import Chaos, ChaosTogether, Scripted, Together, made, over
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module import MultiRLModuleSpec, RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.tune import register_env

from rllib_llm.env_runner.rllib_multi_agent_env import to_rllib_env
from rllib_llm.envs import MultiAgentAdapter, Outcome, make_env


def played(cls, plan=(), texts=(), config=None, **attributes):
    """Record an episode as RLlib's runner does; return it and the last infos."""
    env = to_rllib_env(MultiAgentAdapter(made(cls, plan, **attributes)(config)))
    episode = MultiAgentEpisode()
    observations, infos = env.reset(seed=0)
    episode.add_env_reset(observations=observations, infos=infos)
    while not episode.is_done:
        actions = dict.fromkeys(observations, "x")
        observations, rewards, terminated, truncated, infos = env.step(actions)
        episode.add_env_step(
            observations,
            actions,
            rewards,
            infos,
            terminateds=terminated,
            truncateds=truncated,
        )
    return episode, infos


def returns(episode):
    return {a: e.get_return() for a, e in episode.agent_episodes.items()}


def ends(episode):
    return {
        a: "terminated" if e.is_terminated else "truncated" if e.is_truncated else None
        for a, e in episode.agent_episodes.items()
    }


def test_rewards_before_between_and_after_turns_are_kept():
    plan = [
        Outcome({"ben_0": 1.0, "cid_0": 2.0}, terminated=["ann_0"]),
        Outcome({"ben_0": 0.5}),
        over({"ann_0": 4.0, "ben_0": 8.0, "cid_0": 16.0}),
    ]
    episode, _ = played(Scripted, plan)
    assert returns(episode) == {"ann_0": 4.0, "ben_0": 9.5, "cid_0": 18.0}
    assert set(ends(episode).values()) == {"terminated"}
    assert [len(e) for e in episode.agent_episodes.values()] == [1, 1, 1]


def test_the_first_agent_may_end_before_others_appear():
    episode, _ = played(Scripted, [Outcome(terminated=["ann_0"]), None, over()])
    assert {a: len(e) for a, e in episode.agent_episodes.items()} == {
        "ann_0": 1,
        "ben_0": 1,
        "cid_0": 1,
    }


def test_mixed_ends_finish_the_episode_and_keep_the_truncation():
    end = Outcome(terminated=["ann_0"], truncated=["ben_0", "cid_0"])
    episode, _ = played(Together, [None, end])
    assert episode.is_done
    assert ends(episode) == {
        "ann_0": "terminated",
        "ben_0": "truncated",
        "cid_0": "truncated",
    }
    last = episode.agent_episodes["ben_0"].observations[-1]
    assert last == "hello ben_0, turn 2"


def test_agents_that_never_acted_do_not_affect_the_end():
    end = Outcome(terminated=["ann_0"], truncated=["ben_0", "cid_0"])
    episode, _ = played(Scripted, [end])
    assert ends(episode) == {"ann_0": "terminated"}
    assert episode.is_terminated and not episode.is_truncated


@pytest.mark.parametrize("cls", [Scripted, Together])
def test_truncation_of_all_agents_is_not_termination(cls):
    episode, _ = played(cls, config={"max_turns": 3})
    assert set(ends(episode).values()) == {"truncated"}


def test_rewards_of_agents_that_never_act_are_in_the_infos():
    plan = [over({"ann_0": 1.0, "cid_0": 2.0})]
    episode, infos = played(Scripted, plan)
    assert returns(episode) == {"ann_0": 1.0}
    assert infos["__common__"] == {"unassigned_rewards": {"cid_0": 2.0}}


def test_late_joiners_and_retries():
    def apply(self, agent, action):
        if self.turn == 2:
            self.join("cid_0")
        return over({"cid_0": 1.0}) if self.turn == 5 else None

    episode, _ = played(Scripted, late_agents=("cid_0",), apply=apply)
    assert {a: len(e) for a, e in episode.agent_episodes.items()} == {
        "ann_0": 2,
        "ben_0": 2,
        "cid_0": 1,
    }
    assert returns(episode)["cid_0"] == 1.0


class Scripts(TorchRLModule):
    """Answers every prompt of the dilemma with the move of its model config."""

    def setup(self):
        pass

    def _forward(self, batch, **kwargs):
        moves = np.empty(len(batch[Columns.OBS]), dtype=object)
        moves[:] = self.model_config["move"]
        return {Columns.ACTIONS: moves}


def test_the_stock_runner_samples_whole_games():
    register_env(
        "dilemma_toy", lambda _: to_rllib_env(MultiAgentAdapter(make_env("dilemma-v0")))
    )
    config = (
        PPOConfig()
        .environment("dilemma_toy")
        .env_runners(num_env_runners=0, episodes_to_numpy=False)
        .multi_agent(
            policies={"row_0", "column_0"}, policy_mapping_fn=lambda agent, *_: agent
        )
        .rl_module(
            rl_module_spec=MultiRLModuleSpec(
                rl_module_specs={
                    agent: RLModuleSpec(Scripts, model_config={"move": move})
                    for agent, move in (("row_0", "cooperate"), ("column_0", "defect"))
                }
            )
        )
    )
    config.normalize_actions = False
    runner = MultiAgentEnvRunner(config=config)
    episodes = runner.sample(num_episodes=3)
    assert len(episodes) == 3
    for episode in episodes:
        assert episode.is_terminated
        assert returns(episode) == pytest.approx({"row_0": 0.0, "column_0": 5 / 3})
    assert isinstance(runner.env.envs[0].unwrapped, gym.Env)
    runner.stop()


@pytest.mark.parametrize("cls", [Chaos, ChaosTogether])
def test_random_environments_lose_no_reward_and_no_end(cls):
    for seed in range(150):
        env = to_rllib_env(MultiAgentAdapter(cls({"max_turns": 12})))
        game, episode = env.env.unwrapped, MultiAgentEpisode()
        observations, infos = env.reset(seed=seed)
        episode.add_env_reset(observations=observations, infos=infos)
        turns = 0
        while not episode.is_done:
            actions = dict.fromkeys(observations, "x")
            turns += len(actions)
            observations, rewards, terminated, truncated, infos = env.step(actions)
            episode.add_env_step(
                observations,
                actions,
                rewards,
                infos,
                terminateds=terminated,
                truncateds=truncated,
            )
        assert env.agents == [] and game.agents == []
        lost = infos.get("__common__", {}).get("unassigned_rewards", {})
        assert {**lost, **{a: r for a, r in returns(episode).items() if r}} == {
            a: r for a, r in game.granted.items() if r
        }
        assert sum(len(e) for e in episode.agent_episodes.values()) == turns
        assert all(ends(episode).values())
