"""One agent in all seats of a game of several: what a team must beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.envs.registry import TEXT_ENVS, register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError


@register_text_env("solo-v0")
class Solo(TextEnv):
    """A game of several agents, one agent speaking for all; it earns what they earn.

    It reads what each of them would read, in one conversation, so that nothing is
    private. Its reward is the sum over agents.
    """

    max_turns = 256  # the game has its own limit

    def start(
        self,
        rng: np.random.Generator,
        game: str = "secret_sum-v0",
        game_config: Mapping[str, Any] | None = None,
    ) -> str:
        """Begin the game.

        Args:
            rng: Decides the instance.
            game: Name of a registered environment with several agents.
            game_config: Its options.
        """
        self.player = OnePlayer(MultiAgentAdapter(_make_game(game, game_config)))
        seed = int(rng.integers(2**31))
        text, _ = self.player.reset(seed=seed, options={"split": self.split})
        return self._tell(text)

    def parse(self, completion: str) -> str:
        """Leave it to the game."""
        return completion

    def reply(self, action: str) -> TurnResult:
        """Let the agent whose turn it is say it."""
        text, reward, terminated, truncated, info = self.player.step(action)
        is_over = terminated or truncated
        return TurnResult(
            text if is_over else self._tell(text),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=info.get("success"),
            metrics=info.get("metrics"),
        )

    def expert_action(self, rng: np.random.Generator) -> str:
        """Ask the game's expert for the agent whose turn it is."""
        return self.player.expert_action(rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Ask for a random valid text of that agent."""
        return self.player.random_action(rng)

    def _tell(self, text: str) -> str:
        return f"You are {self.player.agent}. {text}"


def _make_game(name: str, config: Mapping[str, Any] | None) -> MultiAgentTextEnv:
    found = TEXT_ENVS.get(name)
    if not (isinstance(found, type) and issubclass(found, MultiAgentTextEnv)):
        raise ConfigError(
            f"game={name!r} has one agent already. Name a game of several agents, e.g. "
            "'secret_sum-v0'."
        )
    return found(dict(config or {}))
