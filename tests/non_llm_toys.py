"""Games of a speaker, which reads text, and a runner, which reads numbers."""

from __future__ import annotations

import copy

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from pettingzoo import ParallelEnv
from ray.rllib.core import DEFAULT_MODULE_ID
from team_helpers import team_config, worth

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.envs import MultiAgentTextEnv, Outcome
from rllib_llm.envs.spaces import UnicodeText

MLP = {"rl_module": {"model_config": {"fcnet_hiddens": [16]}}}


class Errand(MultiAgentTextEnv):
    """Rewards the runner for the index of its larger number, the speaker for its words.

    In turn, ``rounds`` times each. The language model observes the runner's actions.
    """

    possible_agents = ["speaker_0", "runner_0"]
    max_turns = 20
    reads, acts = Box(-1.0, 1.0, (2,), np.float32), Discrete(2)

    def start(self, rng, rounds: int = 3):
        self.rounds, self.done, self.seen = rounds, 0, []
        self.numbers = rng.uniform(-1, 1, (rounds + 1, 2)).astype(np.float32)

    def spaces_for(self, agent):
        return (self.reads, self.acts) if agent == "runner_0" else None

    def observed(self):
        return self.numbers[min(self.done, self.rounds)]

    def is_right(self, action):
        return int(action) == int(np.argmax(self.numbers[self.done]))

    def prompt_for(self, agent):
        return self.observed() if agent == "runner_0" else f"Turn {self.turn}."

    def parse(self, agent, text):
        return text or "-"

    def apply(self, agent, action):
        if agent == "speaker_0":
            return Outcome({agent: worth(action)})
        self.seen.append(action)
        reward = float(self.is_right(action))
        self.done += 1
        return Outcome({agent: reward}, terminated=self.done == self.rounds)


class Discretely(Errand):
    """Discrete spaces: the runner reads one of three cells and acts in two parts."""

    reads, acts = Discrete(3), MultiDiscrete([2, 3])

    def observed(self):
        return int(self.done % 3)

    def is_right(self, action):
        return int(action[0]) == self.done % 2


class Steering(Errand):
    """Continuous actions: the runner acts with one number between 2 and 4."""

    acts = Box(2.0, 4.0, (1,), np.float32)

    def is_right(self, action):
        return float(action[0]) > 3


class Beside(ParallelEnv):
    """Plain ParallelEnv: speaker and runners act at once, one runner ends early."""

    metadata = {"render_modes": []}
    render_mode = None
    possible_agents = ["speaker_0", "runner_0", "runner_1"]
    reads, acts = Box(0.0, 9.0, (1,), np.float32), Discrete(4)

    def __init__(self, env_config=None):
        runners = self.possible_agents[1:]
        self.observation_spaces = {a: copy.deepcopy(self.reads) for a in runners}
        self.action_spaces = {a: copy.deepcopy(self.acts) for a in runners}
        for spaces in (self.observation_spaces, self.action_spaces):
            spaces["speaker_0"] = UnicodeText()

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def _tell(self, names):
        observations = {a: np.array([self.t], np.float32) for a in names}
        return observations | (
            {"speaker_0": f"At {self.t}."} if "speaker_0" in names else {}
        )

    def reset(self, seed=None, options=None):
        self.t, self.agents, self.got = 0, list(self.possible_agents), []
        return self._tell(self.agents), {a: {} for a in self.agents}

    def step(self, actions):
        self.t += 1
        self.got.append(actions)
        present = list(self.agents)
        ended = {a: self.t == 2 and a == "runner_1" for a in present}
        cut = dict.fromkeys(present, self.t == 4)
        rewards = {a: float(actions[a] == 3) for a in present}
        rewards["speaker_0"] = worth(actions["speaker_0"])
        self.agents = [a for a in present if not (ended[a] or cut[a])]
        return self._tell(present), rewards, ended, cut, {a: {} for a in present}


def non_llm_config(env=Errand, config_class=LLMPPOConfig, *, runner=MLP, **sections):
    """Return a config with a tiny model as speaker and an MLP as runner."""
    policies = sections.pop("policies", {"talk": {}, "run": runner})
    mapping = {"speaker": "talk", "runner": "run"}
    return team_config(
        env,
        config_class,
        policies=policies,
        mapping=sections.pop("mapping", mapping),
        **sections,
    )


class NonLLMRun:
    """EnvRunner and Learner with shared weights in this process."""

    def __init__(self, config, seed=3):
        config.validate()
        self.config = config
        self.runner = LLMEnvRunner(config=config, worker_index=0)
        self.source = TaskSource(seed=seed, group_size=config.group_size)
        self.learner = config.build_learner(spaces=self.runner.get_spaces())
        self.share()

    def share(self):
        modules = self.learner.module
        self.runner.share_weights_of(
            {m: modules[m].unwrapped() for m in self.config.sampled_module_ids}
        )

    def sample(self, groups=4, **kwargs):
        tasks = self.source.next_groups(groups)
        return self.runner.sample(tasks=tasks, **kwargs)

    def update(self, episodes, **kwargs):
        result = self.learner.update(
            training_data=LLMTrainingData(episodes=episodes), timesteps={}, **kwargs
        )
        self.runner.set_weights_version(self.learner._weights_seq_no)
        return result

    def weights(self, module_id=DEFAULT_MODULE_ID):
        module = self.learner.module[module_id].unwrapped()
        return {n: p.detach().clone() for n, p in module.named_parameters()}
