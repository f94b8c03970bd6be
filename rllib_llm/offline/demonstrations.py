"""Play an environment's scripted expert, deliberately imperfect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rllib_llm.env_runner.tasks import stable_seed
from rllib_llm.errors import ConfigError


@dataclasses.dataclass(slots=True)
class Demonstration:
    """One scripted episode as text.

    Attributes:
        observations: What the environment said, one more than there are turns.
        completions: What the script answered.
        rewards: One per turn.
        success: Whether the task was solved, where that is defined.
    """

    observations: list[str]
    completions: list[str]
    rewards: list[float]
    success: bool | None


def demonstrate(env: Any, *, seed: int, mistake_rate: float) -> Demonstration:
    """Play one episode with the expert, each turn random with ``mistake_rate``.

    Raises:
        ConfigError: If the environment has no scripted expert.
    """
    # Not default_rng(seed): that is the environment's own stream.
    rng = np.random.default_rng([seed, 1])
    observation, _ = env.reset(seed=seed, options={"split": "train"})
    demo = Demonstration([observation], [], [], None)
    done = False
    try:
        while not done:
            mistake = rng.random() < mistake_rate
            act = (
                env.unwrapped.random_action if mistake else env.unwrapped.expert_action
            )
            completion = act(rng)
            observation, reward, terminated, truncated, info = env.step(completion)
            demo.completions.append(completion)
            demo.observations.append(observation)
            demo.rewards.append(reward)
            done = terminated or truncated
            demo.success = info.get("success")
    except NotImplementedError as error:
        raise ConfigError(
            f"warm_start needs demonstrations: {error} Write expert_action() and "
            "random_action(), or leave .warm_start() out."
        ) from error
    return demo


def demonstrations(
    env: Any,
    count: int,
    *,
    seed: int,
    mistake_rate: float,
    on_progress: Callable[[float], None] | None = None,
) -> list[Demonstration]:
    """Play ``count`` episodes on training instances."""
    played = []
    for i in range(count):
        demo_seed = stable_seed(seed, "demonstration", i)
        played.append(demonstrate(env, seed=demo_seed, mistake_rate=mistake_rate))
        if on_progress is not None:
            on_progress((i + 1) / count)
    return played


def transcript_texts(env: Any, *, seed: int, count: int = 300) -> list[str]:
    """Return observations and completions of mixed play, to train a tokenizer on.

    An environment without a scripted expert gives its first observations only.
    """
    texts: list[str] = []
    try:
        for demo in demonstrations(env, count, seed=seed, mistake_rate=0.5):
            texts += demo.observations + demo.completions
    except ConfigError:
        for i in range(count):
            texts.append(env.reset(seed=stable_seed(seed, "text", i))[0])
    return texts
