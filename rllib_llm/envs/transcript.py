"""Play episodes with any policy and keep what was said."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.data.types import Message

Policy = Callable[[gym.Env, np.random.Generator], str]
"""Chooses the next completion; sees the environment, e.g. to ask its expert."""


@dataclasses.dataclass(slots=True)
class Transcript:
    """One episode as it was played.

    Attributes:
        seed: Seed of the episode.
        observations: The first user message, then the answer to every turn.
        actions: The completions, one per turn.
        rewards: The rewards, one per turn.
        infos: The info dictionaries, one per turn.
        terminated: Whether the episode reached an end.
        truncated: Whether it was cut short.
        seconds: Time spent inside ``step``, in seconds.
        reset_seconds: Time spent inside ``reset``, in seconds.
    """

    seed: int
    observations: list[Any] = dataclasses.field(default_factory=list)
    actions: list[str] = dataclasses.field(default_factory=list)
    rewards: list[Any] = dataclasses.field(default_factory=list)
    infos: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    seconds: float = 0.0
    reset_seconds: float = 0.0

    @property
    def success(self) -> bool | None:
        """Whether the task was solved; None where that is not defined."""
        return self.infos[-1].get("success") if self.infos else None

    def messages(self, system_prompt: str | None = None) -> list[Message]:
        """Return the conversation as chat messages, last observation included."""
        messages = []
        if system_prompt:
            messages.append({"role": "system", "content": system_prompt})
        for turn, observation in enumerate(self.observations):
            messages.append({"role": "user", "content": observation})
            if turn < len(self.actions):
                messages.append({"role": "assistant", "content": self.actions[turn]})
        return messages

    def __str__(self) -> str:
        names = {"user": "env", "assistant": "model"}
        lines = [f"{names[m['role']]}> {m['content']}" for m in self.messages()]
        end = "terminated" if self.terminated else "truncated"
        total = sum(self.rewards)
        return "\n".join([*lines, f"{end}, return {total:g}, success {self.success}"])


def play_turns(
    env: gym.Env,
    transcript: Transcript,
    policy: Policy,
    *,
    options: dict[str, Any] | None = None,
    limit: int = 1_000,
) -> Iterator[None]:
    """Play an episode into ``transcript``, pausing after the reset and each turn.

    Args:
        env: The environment.
        transcript: Empty; its seed decides the episode and seeds the policy.
        policy: Chooses the completions.
        options: Options of ``env.reset``.
        limit: Give up after so many turns; the transcript then shows no end.
    """
    # Not default_rng(seed), which is the stream that the environment itself draws
    # from: a random policy would guess its secrets.
    rng = np.random.default_rng((transcript.seed, 1))
    started = time.perf_counter()
    observation, _ = env.reset(seed=transcript.seed, options=options)
    transcript.reset_seconds = time.perf_counter() - started
    transcript.observations.append(observation)
    yield
    for _ in range(limit):
        action = policy(env, rng)
        transcript.actions.append(action)
        started = time.perf_counter()
        observation, reward, terminated, truncated, info = env.step(action)
        transcript.seconds += time.perf_counter() - started
        transcript.observations.append(observation)
        transcript.rewards.append(reward)
        transcript.infos.append(info)
        transcript.terminated, transcript.truncated = terminated, truncated
        yield
        if terminated or truncated:
            return


def play(
    env: gym.Env,
    seed: int,
    policy: Policy,
    *,
    options: dict[str, Any] | None = None,
    limit: int = 1_000,
) -> Transcript:
    """Play one episode; see :func:`play_turns`."""
    transcript = Transcript(seed)
    for _ in play_turns(env, transcript, policy, options=options, limit=limit):
        pass
    return transcript


def expert_policy(env: gym.Env, rng: np.random.Generator) -> str:
    """Ask the environment's scripted expert."""
    return env.unwrapped.expert_action(rng)


def random_policy(env: gym.Env, rng: np.random.Generator) -> str:
    """Ask the environment for a random valid completion."""
    return env.unwrapped.random_action(rng)
