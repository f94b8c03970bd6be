"""Scripted multi-agent games for tests."""

from __future__ import annotations

from gymnasium.spaces import Dict
from pettingzoo import AECEnv, ParallelEnv

from rllib_llm.envs import MultiAgentTextEnv, Outcome
from rllib_llm.envs.spaces import UnicodeText


class Scripted(MultiAgentTextEnv):
    """Plays a list of outcomes, one per applied text; logs every call."""

    possible_agents = ["ann_0", "ben_0", "cid_0"]
    format_hint = "Say something."
    plan = ()

    def start(self, rng, greeting: str = "hello"):
        self.greeting = greeting
        self.left = list(self.plan)
        self.log = []
        self.number = int(rng.integers(1000))

    def prompt_for(self, agent):
        self.log.append(("prompt", agent))
        return f"{self.greeting} {agent}, turn {self.turn}"

    def parse(self, agent, text):
        return None if text.startswith("?") else text

    def apply(self, agent, action):
        self.log.append((agent, action))
        return self.left.pop(0) if self.left else None


class Together(Scripted):
    """All agents act at once; the plan's outcomes come at the end of rounds."""

    simultaneous = True

    def apply(self, agent, action):
        self.log.append((agent, action))

    def end_round(self):
        self.log.append(("round", self.turn))
        return self.left.pop(0) if self.left else None


def made(cls, plan, **attributes):
    """Return a subclass of ``cls`` that plays ``plan``."""
    return type(cls.__name__, (cls,), {"plan": plan, **attributes})


def over(rewards=None, **kwargs):
    return Outcome(rewards or {}, terminated=True, **kwargs)


def random_outcome(env, rng):
    """Return random rewards and ends of agents; logs the rewards."""
    names = env.possible_agents
    rewards = {str(a): float(rng.integers(1, 9)) for a in rng.permutation(names)[:2]}
    for agent, reward in rewards.items():
        env.granted[agent] = env.granted.get(agent, 0.0) + reward
    if rng.random() < 0.3 and "cid_0" not in env._joined:
        env.join("cid_0")
    leaving = [a for a in env.live_agents if rng.random() < 0.15]
    cut = [a for a in env.live_agents if rng.random() < 0.1]
    return Outcome(rewards, terminated=leaving, truncated=cut)


class Chaotic:
    late_agents = ("cid_0",)

    def start(self, rng, greeting: str = "hello"):
        super().start(rng, greeting)
        self.granted = {}


class Chaos(Chaotic, Scripted):
    def apply(self, agent, action):
        return random_outcome(self, self.np_random)


class ChaosTogether(Chaotic, Together):
    def end_round(self):
        return random_outcome(self, self.np_random)


class RawParallel(ParallelEnv):
    """A ParallelEnv from a list of (agents left, rewards, terminated, truncated)."""

    metadata = {"render_modes": []}
    render_mode = None

    def __init__(self, first, rounds, possible=("ann_0", "ben_0", "cid_0"), shape=str):
        self.possible_agents = possible
        self._first, self._rounds, self._shape = first, rounds, shape
        self._space = UnicodeText()

    def observation_space(self, agent):
        return self._space

    action_space = observation_space

    def _texts(self, names):
        return {a: self._shape(f"{a} reads {self.t}") for a in names}

    def reset(self, seed=None, options=None):
        self.t, self.agents, self.got = 0, self._first, []
        return self._texts(self.agents), {a: {"seed": seed} for a in self.agents}

    def step(self, actions):
        self.got.append(dict(actions))
        before = list(self.agents)
        self.agents, rewards, terminated, truncated = self._rounds[self.t]
        self.t += 1
        names = {*before, *self.agents}
        flags = (
            {a: a in terminated for a in names},
            {a: a in truncated for a in names},
        )
        infos = {a: {"t": self.t} for a in names}
        return self._texts(names), dict(rewards), *flags, infos


class RawAEC(AECEnv):
    """A plain AEC game: agents act in order; flags and rewards by step.

    With ``in_turn`` ended agents wait for their turn until they are stepped; else they
    come first.
    """

    metadata = {"render_modes": []}
    possible_agents = ["ann_0", "ben_0"]

    def __init__(
        self,
        events,
        shape=lambda text: {"text": text},
        buries=True,
        in_turn=False,
    ):
        self._events, self._shape, self._buries = events, shape, buries
        self._in_turn = in_turn
        self._texts, self._text = Dict({"text": UnicodeText()}), UnicodeText()

    def observation_space(self, agent):
        return self._texts

    def action_space(self, agent):
        return self._text

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        zero = dict.fromkeys(self.agents, 0.0)
        self.rewards, self._cumulative_rewards = dict(zero), dict(zero)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {a: {"born": seed} for a in self.agents}
        self.agent_selection, self.t, self.dead_steps = self.agents[0], 0, 0
        self._skip_agent_selection = None

    def observe(self, agent):
        return self._shape(f"{agent} at {self.t}")

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.dead_steps += 1
            if self._buries:
                after = [a for a in self.agents if a > agent]
                self._was_dead_step(action)
                if self._in_turn and self.agents:
                    self.agent_selection = (after or self.agents)[0]
            return
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0.0
        rewards, terminated, truncated = self._events[self.t]
        self.t += 1
        self.rewards.update(rewards)
        for name in self.agents:
            self.terminations[name] |= name in terminated
            self.truncations[name] |= name in truncated
        alive = [
            a for a in self.agents if not (self.terminations[a] or self.truncations[a])
        ]
        if alive or self._in_turn:
            order = self.agents if self._in_turn else alive
            after = [a for a in order if a > agent]
            self.agent_selection = (after or order)[0]
        self._accumulate_rewards()
        if not self._in_turn:
            self._deads_step_first()
