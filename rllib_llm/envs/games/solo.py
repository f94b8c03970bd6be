"""A multi-agent game played by a single agent, as a baseline for teams."""

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
    """A multi-agent game in which one agent acts for all. Return the sum over agents.

    It reads the observations of all agents in one conversation, so that nothing is
    private.
    """

    max_turns = 256  # the game has its own limit

    def start(
        self,
        rng: np.random.Generator,
        game: str = "secret_sum-v0",
        game_config: Mapping[str, Any] | None = None,
    ) -> str:
        """Start the game.

        Args:
            rng: Generator of the instance.
            game: Name of a registered multi-agent environment.
            game_config: Options of the game.
        """
        self.player = OnePlayer(MultiAgentAdapter(_make_game(game, game_config)))
        seed = int(rng.integers(2**31))
        text, _ = self.player.reset(seed=seed, options={"split": self.split})
        return self._tell(text)

    def parse(self, completion: str) -> str:
        """Return the text; the game parses it."""
        return completion

    def reply(self, action: str) -> TurnResult:
        """Apply the text as that of the agent to act."""
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
        """Return the game's expert action for the agent to act."""
        return self.player.expert_action(rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random valid text for the agent to act."""
        return self.player.random_action(rng)

    def _tell(self, text: str) -> str:
        return f"You are {self.player.agent}. {text}"


def _make_game(name: str, config: Mapping[str, Any] | None) -> MultiAgentTextEnv:
    cls = TEXT_ENVS.get(name)
    if not (isinstance(cls, type) and issubclass(cls, MultiAgentTextEnv)):
        raise ConfigError(
            f"game={name!r} is a single-agent environment already. Pass a multi-agent "
            "game, e.g. 'secret_sum-v0'."
        )
    return cls(dict(config or {}))
