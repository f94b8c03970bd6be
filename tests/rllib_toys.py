"""One game as RLlib's MultiAgentEnv and for PettingZoo."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Discrete, Text
from pettingzoo import ParallelEnv
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from rllib_llm.envs.spaces import UnicodeText

AGENTS = ["giver_0", "taker_0", "judge_0"]


class Rules:
    """The giver knows a number and leaves; the taker says one; both get a late reward.

    Attributes:
        rounds: Turns of the taker.
        cut: Whether the game ends by a limit.
    """

    def __init__(self, config):
        self.rounds = config.get("rounds", 2)
        self.cut = config.get("cut", False)

    def begin(self, seed):
        """Return the giver's first observation."""
        self.number = int(np.random.default_rng(seed).integers(5))
        self.turn, self.texts = 0, []
        return {"giver_0": f"The number is {self.number}."}

    def play(self, actions):
        """Return observations, rewards, those who end, and whether it is over."""
        self.turn += 1
        self.texts += actions.values()
        if self.turn == 1:
            return {"taker_0": f"It says {self.texts[-1]!r}."}, {}, {"giver_0"}, False
        over = self.turn > self.rounds
        rewards = {"taker_0": 1.0, "giver_0": 0.5} if over else {"taker_0": 0.25}
        return {"taker_0": f"Turn {self.turn}."}, rewards, set(), over


class RelayRLlib(MultiAgentEnv):
    """The game for RLlib; between two turns is a step without an acting agent."""

    def __init__(self, config=None):
        self.rules = Rules(config or {})
        self.agents = self.possible_agents = list(AGENTS)
        space = Text(10_000)
        self.observation_spaces = dict.fromkeys(AGENTS, space)
        self.action_spaces = dict.fromkeys(AGENTS, space)
        self.worker_index = getattr(config, "worker_index", None)
        super().__init__()

    def reset(self, *, seed=None, options=None):
        """Show the number to the giver alone."""
        self.waiting = None
        return self.rules.begin(seed), {}

    def step(self, action_dict):
        """Return no observations after a turn, and its result in the next step."""
        if self.waiting is None:
            self.waiting = self.rules.play(action_dict)
            return {}, {}, {"__all__": False}, {"__all__": False}, {}
        assert not action_dict
        observations, rewards, ended, over = self.waiting
        self.waiting = None
        terminateds = dict.fromkeys(ended, True)
        terminateds["__all__"] = over and not self.rules.cut
        truncateds = {"__all__": over and self.rules.cut}
        infos = {"__common__": {"success": True, "metrics": {"turns": 2.0}}}
        return observations, rewards, terminateds, truncateds, infos if over else {}


class RelayTogether(ParallelEnv):
    """The game for PettingZoo."""

    metadata = {"name": "relay"}

    def __init__(self, config=None):
        self.rules = Rules(config or {})
        self.possible_agents = list(AGENTS)
        self.observation_spaces = dict.fromkeys(AGENTS, UnicodeText())
        self.action_spaces = dict.fromkeys(AGENTS, UnicodeText())

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        """Show the number to the giver alone."""
        self.agents = list(AGENTS)
        return self.rules.begin(seed), {}

    def step(self, actions):
        """Play a turn with the actions that are not empty."""
        given = {a: text for a, text in actions.items() if text}
        observations, rewards, ended, over = self.rules.play(given)
        done = dict.fromkeys(self.agents if over else ended, True)
        cut = over and self.rules.cut
        self.agents = [a for a in self.agents if a not in done]
        info = {"success": True, "metrics": {"turns": 2.0}}
        return (
            observations,
            rewards,
            {} if cut else done,
            done if cut else {},
            {"taker_0": info} if over else {},
        )


class TextToNumbers(RelayRLlib):
    """Observes text and acts in numbers, which no policy supports."""

    def __init__(self, config=None):
        super().__init__(config)
        self.action_spaces = dict.fromkeys(AGENTS, Discrete(3))


ready_made = RelayRLlib({"rounds": 3})
"""An instance that a module holds."""
