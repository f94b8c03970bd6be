"""RLlib's MultiAgentEnv in MultiAgentAdapter."""

import dataclasses

import pytest
from ray.rllib.env.env_context import EnvContext
from ray.tune import register_env
from rllib_toys import AGENTS, RelayRLlib, RelayTogether, TextToNumbers
from team_helpers import Run, team_config

from rllib_llm import LLMPPOConfig
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.types import StopReason
from rllib_llm.env_runner.rllib_multi_agent_env import to_rllib_env
from rllib_llm.envs import MultiAgentAdapter, check_env, make_env
from rllib_llm.errors import ConfigError, EnvContractError

POLICIES = {"policies": ("a", "b", "c")}
MAPPING = dict(zip(AGENTS, "abc", strict=True))


def steps(env, answer="4"):
    """Play an episode; return the adapter's steps."""
    env = MultiAgentAdapter(env)
    observed = [env.reset(seed=3)]
    while not observed[-1].is_over:
        observed.append(env.step(dict.fromkeys(observed[-1].observations, answer)))
    return [dataclasses.replace(step, infos={}) for step in observed]


@pytest.mark.parametrize("config", [{}, {"rounds": 4}, {"cut": True}])
def test_rllib_and_pettingzoo_versions_agree(config):
    ours, theirs = steps(RelayTogether(config)), steps(RelayRLlib(config))
    assert theirs == ours
    assert theirs[0].observations == {"giver_0": "The number is 4."}
    assert theirs[1].terminated == ("giver_0",) and not theirs[1].is_over
    assert theirs[-1].success and theirs[-1].metrics == {"turns": 2.0}
    assert bool(theirs[-1].truncated) == bool(config.get("cut"))


@pytest.mark.parametrize("name", ["class", "id", "path", "instance"])
def test_specs_of_an_rllib_env(name):
    register_env("relay_of_rllib", RelayRLlib)
    env = {
        "class": RelayRLlib,
        "id": "relay_of_rllib",
        "path": "rllib_toys:RelayRLlib",
        "instance": "rllib_toys:ready_made",
    }[name]
    config = LLMPPOConfig().environment(env, env_config={})
    first, second = config.make_text_env(), config.make_text_env()
    assert first.possible_agents == AGENTS and first.env is not second.env
    if name != "instance":
        assert first.env.worker_index == 0  # an EnvContext, as RLlib gives


def test_a_classs_options_reach_it_as_an_env_context():
    env = make_env(RelayRLlib, EnvContext({"rounds": 7}, worker_index=3))
    assert (env.rules.rounds, env.worker_index) == (7, 0)
    with pytest.raises(
        ConfigError, match="env_config={'rounds': 7} would have no effect"
    ):
        make_env("rllib_toys:ready_made", {"rounds": 7})


@pytest.mark.parametrize("cut", [False, True])
def test_it_is_sampled_with_exact_rewards_and_ends(cut):
    config = {"cut": cut}
    run = Run(
        team_config(
            RelayRLlib,
            LLMPPOConfig,
            env_config=config,
            mapping=MAPPING,
            **POLICIES,
        ),
        learner=False,
    )
    for episode in run.sample():
        parts = {p.agent_id: p for p in agent_episodes(episode)}
        assert list(parts["giver_0"].get_rewards()) == [0.5]
        assert list(parts["taker_0"].get_rewards()) == [0.25, 1.0]
        assert parts["giver_0"].is_terminated
        assert parts["taker_0"].is_truncated == cut
        reason = StopReason.MAX_TURNS if cut else StopReason.TERMINATED
        assert episode_data(episode).stop_reason in (reason, StopReason.MAX_TOKENS_TURN)
        assert episode_data(episode).success


def test_check_env_accepts_an_rllib_env():
    report = check_env(RelayRLlib, seeds=range(3))
    assert report.ok, report
    assert report.measurements["random_return"] == 1.75


def test_rllibs_runner_samples_the_adapter():
    env = to_rllib_env(MultiAgentAdapter(RelayRLlib({})))
    observations, _ = env.reset(seed=3)
    assert observations == {"giver_0": "The number is 4."}
    observations, rewards, *_ = env.step({"giver_0": "x"})
    assert observations == {"taker_0": "It says 'x'."} and not any(rewards.values())


class Mute(RelayRLlib):
    """Never returns an observation."""

    def step(self, action_dict):
        return {}, {}, {"__all__": False}, {"__all__": False}, {}


class Haunted(RelayRLlib):
    """Returns an observation of an agent that has left."""

    def step(self, action_dict):
        given = super().step(action_dict)
        return ({"giver_0": "You again?"}, *given[1:]) if self.rules.turn > 1 else given


class Numbered(RelayRLlib):
    """Names agents by numbers."""

    def __init__(self, config=None):
        super().__init__(config)
        self.agents = self.possible_agents = [0, 1]


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Mute, "returned no observation in 1000 steps"),
        (Haunted, "an observation of .* after its end"),
        (Numbered, "Use strings as names"),
        (TextToNumbers, "acts in Discrete.* declare gymnasium.spaces.Text"),
    ],
)
def test_contract_violations_are_reported(cls, message):
    with pytest.raises(EnvContractError, match=message):
        steps(cls({}))
