"""PettingZoo game of docs/pettingzoo_walkthrough.md: two agents, in text.

The page contains an exact copy of the class.
"""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Text
from pettingzoo import ParallelEnv

CHARACTERS = "".join(map(chr, range(32, 127)))
BERTHS = ("red", "blue", "green", "white", "black", "yellow")


class Harbour(ParallelEnv):
    """A lookout names the free berth to a pilot, who chooses a berth.

    The reward of both is 1 if the pilot chooses the free berth. Each agent also gets
    0.1 if its text names any berth.
    """

    metadata = {"name": "harbour_v0", "is_parallelizable": True}
    possible_agents = ["lookout_0", "pilot_0"]

    def __init__(self, env_config=None):
        self.render_mode = None
        text = Text(min_length=0, max_length=200, charset=CHARACTERS)
        self.observation_spaces = dict.fromkeys(self.possible_agents, text)
        self.action_spaces = dict.fromkeys(self.possible_agents, text)

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        """Draw the free berth from the seed only."""
        self.free = str(np.random.default_rng(seed).choice(BERTHS))
        self.agents, self.call = list(self.possible_agents), None
        observations = self._observe({"lookout_0": f"Free: {self.free}. Call?"})
        return observations, {agent: {} for agent in self.agents}

    def step(self, actions):
        """Apply the lookout's call in round 1, the pilot's berth in round 2."""
        acting = "lookout_0" if self.call is None else "pilot_0"
        berth = berth_in(actions[acting])
        rewards = dict.fromkeys(self.agents, 0.0)
        rewards[acting] += 0.1 * (berth is not None)
        infos = {agent: {} for agent in self.agents}
        observations, over = {}, self.call is not None
        if over:
            for agent in self.agents:
                rewards[agent] += float(berth == self.free)
                infos[agent] = {"success": berth == self.free}
        else:
            self.call = berth or "nothing"
            observations = {"pilot_0": f"Heard: {self.call}. Steer?"}
        ended = dict.fromkeys(self.agents, over)
        never = dict.fromkeys(self.agents, False)
        self.agents = [] if over else self.agents
        return self._observe(observations), rewards, ended, never, infos

    def expert_action(self, agent, rng):
        """Return the free berth for the lookout, the received call for the pilot."""
        return self.free if agent == "lookout_0" else str(self.call)

    def random_action(self, agent, rng):
        """Return any berth."""
        return str(rng.choice(BERTHS))

    def _observe(self, observations):
        # An agent whose observation is "" does not act.
        return {agent: observations.get(agent, "") for agent in self.possible_agents}


def berth_in(text):
    """Return the last berth that a text names, or None."""
    named = [word for word in text.lower().split() if word in BERTHS]
    return named[-1] if named else None
