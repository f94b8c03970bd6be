"""OnePlayer, which presents a multi-agent game as a single-agent environment."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter, MultiAgentStep
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.envs.transcript import Transcript
from rllib_llm.pictures.contract import IMAGES

_OVER = "(over)"


class OnePlayer(gym.Env):
    """Presents a :class:`MultiAgentAdapter` as a single-agent environment.

    One step is one agent's turn: the observation is that of the next agent, the reward
    is the sum over all agents. ``info`` holds ``agent`` (the acting one), ``rewards``
    (by agent), the pictures of the observation, and in the last turn of a round the
    acting agent's own info. Scripts, checks and transcripts for single-agent
    environments thus work on multi-agent ones. Numeric agents act at random, seeded by
    the reset.

    Args:
        env: The environment.
    """

    def __init__(self, env: MultiAgentAdapter):
        self.adapter = env
        self.system_prompt: str | None = None  # each agent has its own
        self.observation_space = self.action_space = UnicodeText()
        inner = env.unwrapped
        self.max_turns: float = getattr(inner, "max_turns", np.inf)
        # A round of simultaneous agents takes one step here per agent.
        rounds = getattr(inner, "simultaneous", False)
        self.max_actions = self.max_turns * (len(env.possible_agents) if rounds else 1)
        self.is_text_env = isinstance(inner, MultiAgentTextEnv)
        self._waiting: list[str] = []
        self._texts: dict[str, str] = {}
        self._infos: dict[str, dict[str, Any]] = {}
        self._actions: dict[str, Any] = {}
        self._rng = np.random.default_rng(0)

    @property
    def agent(self) -> str:
        """The agent to act."""
        return self._waiting[0]

    def system_prompt_for(self, agent: str) -> str | None:
        """Return the agent's system prompt."""
        return self.adapter.system_prompt_for(agent)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            # Another stream than the environment's, whose secrets it could guess.
            self._rng = np.random.default_rng([seed, 2])
        step = self._to_speakers(self.adapter.reset(seed=seed, options=options))
        return self._show(step), self._shown_images()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply ``action`` as that of the next agent."""
        agent = self._waiting.pop(0)
        self._actions[agent] = action
        info: dict[str, Any] = {"agent": agent, "rewards": [], "success": None}
        if self._waiting:
            # The round is incomplete: show the next agent its observation.
            info |= self._shown_images()
            return self._texts[self.agent], 0.0, False, False, info
        actors = list(self._actions)
        step = self._to_speakers(self.adapter.step(self._actions))
        infos = [step.infos.get(a, {}) for a in actors]
        info |= infos[-1] | {"rewards": step.rewards, "success": step.success}
        info["invalid_action"] = any(i.get("invalid_action") for i in infos)
        info["metrics"], info["stop_reason"] = step.metrics, step.stop_reason
        # Gymnasium has one pair of flags; a mixed ending counts as truncated.
        truncated = step.is_over and bool(step.truncated)
        terminated = step.is_over and not truncated
        reward = float(sum(r for _, r in step.rewards))
        info.pop(IMAGES, None)  # of the agent that acted
        text = self._show(step)
        return text, reward, terminated, truncated, info | self._shown_images()

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the game's expert action for the agent to act."""
        return self._scripted("expert_action", rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random valid text for the agent to act."""
        return self._scripted("random_action", rng)

    def snapshot(self) -> bytes:
        """Return a copy of the episode's state; see MultiAgentAdapter.snapshot()."""
        round_ = (self._waiting, self._texts, self._infos, self._actions, self._rng)
        return pickle.dumps((self.adapter.snapshot(), round_))

    def restore(self, state: bytes) -> None:
        """Return to a :meth:`snapshot`."""
        inner, round_ = pickle.loads(state)
        self.adapter.restore(inner)
        self._waiting, self._texts, self._infos, self._actions, self._rng = round_

    def close(self) -> None:
        """Close the environment."""
        self.adapter.close()

    def _scripted(self, name: str, rng: np.random.Generator) -> str:
        script = getattr(self.adapter.unwrapped, name, None)
        if script is None:
            raise NotImplementedError(f"{self.adapter.unwrapped} has no {name}().")
        return script(self.agent, rng)

    def _to_speakers(self, step: MultiAgentStep) -> MultiAgentStep:
        """Play rounds in which only numeric agents act."""
        spaces = self.adapter.number_spaces
        while step.observations and all(map(spaces, step.observations)):
            more = self.adapter.step(self._draw(step))
            more.rewards = step.rewards + more.rewards
            more.infos = {**step.infos, **more.infos}
            more.metrics = {**step.metrics, **more.metrics}
            more.truncated = (*step.truncated, *more.truncated)
            step = more
        return step

    def _draw(self, step: MultiAgentStep) -> dict[str, Any]:
        """Return random actions of the numeric agents that must act."""
        return {
            agent: self.adapter.random_numbers(agent, self._rng)
            for agent in step.observations
            if self.adapter.number_spaces(agent) is not None
        }

    def _shown_images(self) -> dict[str, Any]:
        """Return the pictures of the next agent's observation, if it has any."""
        info = self._infos.get(self.agent, {}) if self._waiting else {}
        return {IMAGES: info[IMAGES]} if IMAGES in info else {}

    def _show(self, step: MultiAgentStep) -> str:
        self._actions = self._draw(step)
        self._texts = {
            a: text for a, text in step.observations.items() if a not in self._actions
        }
        self._waiting, self._infos = list(self._texts), step.infos
        return self._texts[self.agent] if self._waiting else _OVER


def dialogue(transcript: Transcript) -> str:
    """Return a transcript of a :class:`OnePlayer` as text with the agents' names."""
    lines, totals = [], dict[str, float]()
    turns = zip(
        transcript.observations, transcript.actions, transcript.infos, strict=False
    )
    for text, action, info in turns:
        lines += [f"to {info['agent']}> {text}", f"{info['agent']}> {action}"]
        for agent, reward in info["rewards"]:
            totals[agent] = totals.get(agent, 0.0) + reward
    end = "terminated" if transcript.terminated else "truncated"
    returns = ", ".join(f"{a} {r:g}" for a, r in sorted(totals.items())) or "0"
    return "\n".join([*lines, f"{end}, return {returns}, success {transcript.success}"])
