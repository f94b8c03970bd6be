"""Adapter of the games that TextWorld generates, in its own engine."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.adapters.textworld_files import (
    PARSER,
    game_file,
    import_textworld,
    settings_of,
)
from rllib_llm.envs.adapters.words import find_word
from rllib_llm.envs.parsing import require_choice, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv

_REWARDS = ("win", "score")
_BANNER = re.compile(r"\A.*\$\$[^\n]*\n", re.DOTALL)
_STATUS = re.compile(r"\n>[ \t]+-= [^\n]*\Z")
_END = re.compile(r"\s*(\*\*\* (?:The End|You lost!) \*\*\*).*\Z", re.DOTALL)
_GAPS = re.compile(r"\n{3,}")


@register_text_env("textworld-v0")
class TextWorld(TextEnv):
    """Win a generated text adventure; ``challenge`` selects its kind.

    TextWorld (Côté et al. 2018, arXiv:1806.11532). Seeds select one of a pool of games,
    which are generated at first use and stored in the cache. Only possible commands
    reach the engine.

    A snapshot holds the game and the commands so far; restoring it replays them.

    Raises:
        MissingExtraError: If TextWorld is not installed.
    """

    max_turns = 30
    format_hint = "That is not possible now."
    _KEPT = TextEnv._KEPT | {"_engine", "_now", "_plans"}

    def __init__(self, env_config: dict[str, Any] | None = None):
        import_textworld()
        super().__init__(env_config)
        self._engine: Any = None
        self._now: Any = None
        self._plans = False

    def start(
        self,
        rng: np.random.Generator,
        challenge: str = "coin_collector",
        level: int | None = None,
        challenge_options: dict[str, Any] | None = None,
        games: int = 20,
        reward: str = "win",
    ) -> str:
        """Choose a game.

        Args:
            rng: Generator of the choice.
            challenge: "coin_collector", "treasure_hunter", "cooking" or "simple".
            level: Difficulty of the first two challenges. None: 5.
            challenge_options: Other settings of the challenge.
            games: Number of training games; the test split has a fourth as many.
            reward: "win": 1 for winning the game; "score": increases of the score, as
                shares of its maximum.
        """
        self._rewards_score = require_choice("reward", reward, _REWARDS) == "score"
        settings = settings_of(challenge, level, challenge_options)
        pool = require_int("games", games, 1, 100_000)
        pool = max(1, pool // 4) if self.split == "test" else pool
        self._game = (challenge, settings, self.split, int(rng.integers(pool)))
        self.commands: list[str] = []
        self._open(plans=False)
        return clean_feedback(self._now.feedback)

    def parse(self, completion: str) -> str | None:
        """Return the possible command that is named last."""
        commands = self.admissible_actions()
        index = find_word(completion, commands)
        return None if index is None else commands[index]

    def reply(self, action: str) -> TurnResult:
        """Play a command in the engine."""
        before = self._now.score
        self._play(action)
        now = self._now
        over, won = bool(now.won or now.lost), bool(now.won)
        reward = (now.score - before) / now.max_score if self._rewards_score else won
        metrics = {"score": now.score / now.max_score}
        text = clean_feedback(now.feedback)
        success = won if over else None
        return TurnResult(text, float(reward), over, success=success, metrics=metrics)

    def admissible_actions(self) -> list[str]:
        """Return all possible commands, in alphabetical order."""
        return list(self._now.admissible_commands)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any possible command."""
        commands = self.admissible_actions()
        return commands[int(rng.integers(len(commands)))]

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the next command of TextWorld's plan, made anew after mistakes.

        Raises:
            NotImplementedError: If there is no plan, as in cooking with ``drop``.
        """
        if not self._plans:  # plans take time, so games start without them
            self._open(plans=True)
        plan = self._now.policy_commands
        if not plan:
            raise NotImplementedError(f"TextWorld has no plan for {self._game}.")
        return plan[0]

    def restore(self, state: bytes) -> None:
        """Return to a :meth:`snapshot` by replaying its commands."""
        super().restore(state)
        self._open(plans=False)

    def close(self) -> None:
        """Stop the engine."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    # Helpers --------------------------------------------------------------------

    def _open(self, *, plans: bool) -> None:
        """Start the game's engine and replay the commands so far."""
        textworld = import_textworld()
        fields = ("feedback", "admissible_commands", "score", "max_score")
        wanted = dict.fromkeys((*fields, "won", "lost"), True)
        infos = textworld.EnvInfos(**wanted, policy_commands=plans)
        self.close()
        file = str(game_file(*self._game))
        with PARSER:
            self._engine = textworld.start(file, infos)
            self._now = self._engine.reset()
        self._plans = plans
        played, self.commands = self.commands, []
        for command in played:
            self._play(command)

    def _play(self, command: str) -> None:
        self.commands.append(command)
        with PARSER:
            self._now = self._engine.step(command)[0]


def clean_feedback(feedback: str) -> str:
    """Return a game's feedback without banner, prompt and status line."""
    text = _BANNER.sub("", feedback)
    text = _END.sub(r"\n\1", text)
    text = _STATUS.sub("", text)
    return _GAPS.sub("\n\n", text).strip()
