"""Test environments for check_env: PettingZoo games, slow resets, one-thread code."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time

import numpy as np
import torch
from pettingzoo import AECEnv, ParallelEnv

from rllib_llm.data.types import TurnResult
from rllib_llm.envs import IsolatedRandomState, TextEnv


class Agree(ParallelEnv):
    """The README's game, without spaces and without infos at reset."""

    def __init__(self, env_config):
        self.possible_agents = ["ann_0", "ben_0"]

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, "Say red, green or blue."), {}

    def step(self, actions):
        self.agents, same = [], len(set(actions.values())) == 1
        rewards, over = (
            dict.fromkeys(actions, float(same)),
            dict.fromkeys(actions, True),
        )
        return {}, rewards, over, {}, {a: {"success": same} for a in actions}

    def random_action(self, agent, rng):
        return str(rng.choice(["red", "green", "blue"]))


class Give(AECEnv):
    """A game of two agents in turn; observations are strings, not arrays."""

    metadata = {"name": "give_v0"}

    def __init__(self, env_config):
        self.possible_agents = ["giver_0", "taker_0"]

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.rewards, self._cumulative_rewards = self._all(0.0), self._all(0.0)
        self.terminations, self.truncations = self._all(False), self._all(False)
        self.infos, self.agent_selection = {a: {} for a in self.agents}, "giver_0"
        self.last_text, self.scores = "nothing", {}

    def _all(self, value):
        return dict.fromkeys(self.agents, value)

    def observe(self, agent):
        return f"You hear {self.last_text!r}."

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.last_text = action
        if agent == "giver_0":
            self.agent_selection = "taker_0"
        else:
            self.rewards, self.terminations = self._all(1.0), self._all(True)
            self.agent_selection = "giver_0"
        self._accumulate_rewards()


class BuggyGive(Give):
    """A game with a bug in its own code."""

    def step(self, action):
        super().step(action)
        self.scores["giver_0"] += 1


class BuggyStart(Give):
    """A game that fails in its constructor."""

    def __init__(self, env_config):
        raise KeyError("words")


class Say(TextEnv):
    """A task of one turn; the base of the others."""

    max_turns = 1

    def start(self, rng):
        self.digit = int(rng.integers(10))
        return f"Say {self.digit}."

    def reply(self, action):
        right = action == str(self.digit)
        return TurnResult("Over.", reward=float(right), terminated=True, success=right)

    def random_action(self, rng):
        return str(rng.integers(10))


class SlowReset(Say):
    """A task with a slow reset."""

    def start(self, rng):
        time.sleep(0.02)
        return super().start(rng)


class Disturbed(Say):
    """A task in whose process another thread draws ``disturbances`` numbers."""

    disturbances = 0

    def start(self, rng):
        if Disturbed.disturbances:
            Disturbed.disturbances -= 1
            neighbour = threading.Thread(target=random.random)
            neighbour.start()
            neighbour.join()
        return super().start(rng)


class SeedsDisturbed(Disturbed):
    """A task that reads the process-wide state while another thread may draw."""

    noise = itertools.repeat(0)

    def start(self, rng):
        random.seed(int(rng.integers(2**31)))
        super().start(rng)
        self.digit = random.randrange(10**6) + next(self.noise)
        return f"Say {self.digit}."


class MainThreadOnly(Say):
    """A task that installs a signal handler, which requires the main thread."""

    def start(self, rng):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return super().start(rng)


class Seeds(Say):
    """A task that seeds the global state it draws from, so that replays agree."""

    def start(self, rng):
        self.reseed(int(rng.integers(2**31)))
        return super().start(np.random.default_rng(random.randrange(100)))

    def reseed(self, seed):
        random.seed(seed)
        torch.manual_seed(seed)


class SeedsTamed(Seeds):
    """The same task with isolated random states."""

    def start(self, rng):
        state = IsolatedRandomState(int(rng.integers(2**31)), torch=True)
        with state.swapped_in():
            return super().start(rng)
