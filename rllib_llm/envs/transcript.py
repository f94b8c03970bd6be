"""Episode recording with any policy, without a model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.data.types import Message
from rllib_llm.pictures.contract import IMAGES, digest

Policy = Callable[[gym.Env, np.random.Generator], str]
"""Returns the next completion, given the environment, e.g. to query its expert."""


@dataclasses.dataclass(slots=True)
class Transcript:
    """Record of one episode.

    Attributes:
        seed: Seed of the episode.
        observations: The first user message, then the observation of every turn.
        actions: Completions, one per turn.
        rewards: Rewards, one per turn.
        infos: Info dictionaries, one per turn.
        pictures: Digests of each observation's pictures.
        terminated: Whether the episode reached a terminal state.
        truncated: Whether the episode was truncated.
        seconds: Time spent inside ``step``, in seconds.
        reset_seconds: Time spent inside ``reset``, in seconds.
    """

    seed: int
    observations: list[Any] = dataclasses.field(default_factory=list)
    actions: list[str] = dataclasses.field(default_factory=list)
    rewards: list[Any] = dataclasses.field(default_factory=list)
    infos: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    pictures: list[list[str]] = dataclasses.field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    seconds: float = 0.0
    reset_seconds: float = 0.0

    @property
    def success(self) -> bool | None:
        """True if the task was solved; None without a notion of success."""
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
        transcript: An empty record; its seed seeds the episode and the policy.
        policy: Returns the completions.
        options: Options of ``env.reset``.
        limit: Maximum number of turns; beyond it the transcript lacks an end.
    """
    # default_rng(seed) is the stream from which the environment draws: a random policy
    # with the same stream would guess its secrets.
    rng = np.random.default_rng((transcript.seed, 1))
    started = time.perf_counter()
    observation, info = env.reset(seed=transcript.seed, options=options)
    transcript.reset_seconds = time.perf_counter() - started
    transcript.observations.append(observation)
    transcript.pictures.append([digest(i) for i in (info or {}).get(IMAGES, ())])
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
        transcript.pictures.append([digest(i) for i in (info or {}).get(IMAGES, ())])
        transcript.terminated, transcript.truncated = terminated, truncated
        # Before the return: a caller must see the last turn, too.
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
    """Return a completion of the environment's scripted expert."""
    return env.unwrapped.expert_action(rng)


def random_policy(env: gym.Env, rng: np.random.Generator) -> str:
    """Return a random valid completion."""
    return env.unwrapped.random_action(rng)
