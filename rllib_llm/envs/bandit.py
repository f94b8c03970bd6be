"""A bandit with several arms: explore, then use the best one."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError

ARMS = ("red", "blue", "green", "pink", "gold", "grey", "lime", "teal", "plum", "navy")


@register_text_env("bandit-v0")
class Bandit(TextEnv):
    """Press buttons that give 1 or 0, each with a chance of its own.

    One button, drawn at random, gives 1 with probability ``best``, the others with
    ``other``. Each turn's reward is the payout divided by ``max_turns``, so that the
    return is the share of presses that gave 1. An episode is a success if its last
    press was the best button. It never ends early. Episodes of both splits are drawn
    alike, because the prompt does not reveal the chances.
    """

    max_turns = 10
    format_hint = "Please answer as 'press red'."
    _pattern = re.compile(r"\bpress[ \t]+([a-z]+)\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        arms: int = 5,
        best: float = 0.8,
        other: float = 0.2,
    ) -> str:
        """Draw the best button.

        Args:
            rng: Generator of the chances and payouts.
            arms: Number of buttons, from 2 to 10.
            best: Probability of a 1 from the best button.
            other: Probability of a 1 from another one, below ``best``.
        """
        require_int("arms", arms, 2, len(ARMS))
        if not 0 <= other < best <= 1:
            raise ConfigError(
                f"best={best!r}, other={other!r}: probabilities must be in [0, 1] and "
                "other below best. Use best=0.8, other=0.2."
            )
        self.arms, self.rng = ARMS[:arms], rng
        self.chances = np.full(arms, other)
        self.best_arm = int(rng.integers(arms))
        self.chances[self.best_arm] = best
        self.presses, self.given = np.zeros(arms), np.zeros(arms)
        return (
            f"Buttons: {' '.join(self.arms)}. Each gives 1 or 0, with a chance of its "
            f"own. You have {self.max_turns} presses. Answer as 'press red'."
        )

    def parse(self, completion: str) -> int | None:
        """Return the number of the last button named."""
        match = last_match(self._pattern, completion)
        name = match.group(1).lower() if match else None
        return self.arms.index(name) if name in self.arms else None

    def reply(self, action: int) -> TurnResult:
        """Give 1 or 0."""
        payout = int(self.rng.random() < self.chances[action])
        self.presses[action] += 1
        self.given[action] += payout
        return TurnResult(
            f"{self.arms[action]} gave {payout}.",
            reward=payout / self.max_turns,
            success=action == self.best_arm,
            metrics={"regret": float(self.chances.max() - self.chances[action])},
        )

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the button of UCB1 (Auer et al. 2002), untried ones first."""
        if not self.presses.all():
            arm = int(np.argmin(self.presses))
        else:
            width = np.sqrt(2 * np.log(self.presses.sum()) / self.presses)
            # UCB1's width is for thousands of presses; a quarter of it for ten.
            arm = int(np.argmax(self.given / self.presses + 0.25 * width))
        return f"press {self.arms[arm]}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any button."""
        return f"press {rng.choice(self.arms)}"

    def admissible_actions(self) -> list[str]:
        """Return all buttons."""
        return [f"press {arm}" for arm in self.arms]
