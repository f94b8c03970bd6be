"""A Gymnasium vector environment of text, for RLlib's stock env runners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from rllib_llm.envs.spaces import UnicodeText


class TextVectorEnv(gym.vector.VectorEnv):
    """Steps several text environments sequentially.

    Observations and actions are object arrays of strings: Gymnasium's own vector
    environments would batch the *characters* of texts of equal length.

    Args:
        make_envs: One function per environment.
    """

    def __init__(self, make_envs: Sequence[Callable[[], gym.Env]]):
        self.envs = [make() for make in make_envs]
        self.num_envs = len(self.envs)
        self.single_observation_space = self.single_action_space = UnicodeText()
        self.observation_space = self.action_space = UnicodeText()
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._over = np.zeros(self.num_envs, bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Reset all environments; an int seeds them ``seed, seed + 1, ...``."""
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        answers = [
            env.reset(seed=s, options=options)
            for env, s in zip(self.envs, seed, strict=True)
        ]
        self._over[:] = False
        infos: dict[str, Any] = {}
        for i, (_, info) in enumerate(answers):
            infos = self._add_info(infos, info, i)
        return _texts([text for text, _ in answers]), infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all environments; those whose episode has ended are reset instead."""
        texts: list[str] = []
        rewards = np.zeros(self.num_envs, np.float64)
        terminated = np.zeros(self.num_envs, bool)
        truncated = np.zeros(self.num_envs, bool)
        infos: dict[str, Any] = {}
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            # AutoresetMode.NEXT_STEP: this step's action and reward do not count.
            if self._over[i]:
                text, info = env.reset()
            else:
                text, rewards[i], terminated[i], truncated[i], info = env.step(action)
            texts.append(text)
            infos = self._add_info(infos, {"turn_info": info}, i)
        self._over = terminated | truncated
        return _texts(texts), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()


def _texts(texts: Sequence[str]) -> np.ndarray:
    # np.array(texts) would make an array of fixed-width strings, which cuts texts.
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array
