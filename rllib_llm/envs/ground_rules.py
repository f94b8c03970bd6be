"""A walk whose rules only notes tell: learning from texts, with fixed weights."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.data.added_texts import with_texts
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError

GROUNDS = ("ice", "sand", "mud", "grass", "stone")
MOVES = ("left", "right", "up", "down")


def rule_text(ground: str, move: str) -> str:
    """Return the text of a rule, and of a turn: e.g. ``"On ice right."``."""
    return f"On {ground} {move}."


@register_text_env("ground_rules-v0")
class GroundRules(TextEnv):
    """Say the right move on each ground. Return the share of right moves.

    Each ground has one right move, drawn for the world. The messages do not tell it: a
    policy must read it in texts before the first message, or try. Success if all moves
    are right. Episodes of both splits are drawn alike.
    """

    max_turns = 8
    invalid_action = "end"
    format_hint = "Say left, right, up or down, e.g. 'On ice right.'"
    _pattern = re.compile(rf"\b({'|'.join(MOVES)})\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        grounds: int = 5,
        steps: int = 1,
        world: int | None = 0,
        shown: int = 0,
    ) -> str:
        """Draw the walk.

        Args:
            rng: Generator of the walk.
            grounds: Number of different grounds, from 1 to 5.
            steps: Steps of an episode, from 1 to ``max_turns``.
            world: Seed of the rules, >= 0; None: every episode has rules of its own.
            shown: Number of rules in the first message, in the form in which a run adds
                texts, for demonstrations: a number drawn from 0 to ``shown``, unless it
                is 0 at least those that the walk needs. 0: none.
        """
        names = GROUNDS[: require_int("grounds", grounds, 1, len(GROUNDS))]
        if require_int("steps", steps, 1, 10**6) > self.max_turns:
            raise ConfigError(
                f"steps={steps} needs as many turns, but max_turns={self.max_turns}. "
                "Raise max_turns in env_config."
            )
        require_int("shown", shown, 0, len(names))
        of_world = rng
        if world is not None:
            seed = require_int("world", world, 0, 2**31 - 1)
            of_world = np.random.default_rng([seed, len(names)])
        moves = of_world.integers(len(MOVES), size=len(names))
        self.rules = {g: MOVES[int(m)] for g, m in zip(names, moves, strict=True)}
        self.walk = [names[int(i)] for i in rng.integers(len(names), size=steps)]
        self.taken = self.right = 0
        return with_texts(self._shown_rules(rng, shown), self._message())

    def parse(self, completion: str) -> str | None:
        """Return the last move named."""
        match = last_match(self._pattern, completion)
        return match.group(1).lower() if match else None

    def reply(self, action: str) -> TurnResult:
        """Compare the move with the rule, and show the next ground."""
        is_right = action == self.rules[self.walk[self.taken]]
        self.right += is_right
        self.taken += 1
        is_last = self.taken == len(self.walk)
        return TurnResult(
            "The walk is over." if is_last else self._message(),
            reward=float(is_right) / len(self.walk),
            terminated=is_last,
            success=self.right == len(self.walk),
        )

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the right move."""
        return self._turn(self.rules[self.walk[self.taken]])

    def random_action(self, rng: np.random.Generator) -> str:
        """Return any move."""
        return self._turn(str(rng.choice(MOVES)))

    def admissible_actions(self) -> list[str]:
        """Return all moves."""
        return [self._turn(move) for move in MOVES]

    def more_info(self) -> dict[str, list[str]]:
        """Return the rules that the walk needs."""
        texts = [rule_text(g, self.rules[g]) for g in dict.fromkeys(self.walk)]
        return {"gold_answers": texts}

    def _message(self) -> str:
        return f"On {self.walk[self.taken]}"

    def _turn(self, move: str) -> str:
        return rule_text(self.walk[self.taken], move)

    def _shown_rules(self, rng: np.random.Generator, most: int) -> list[str]:
        """Return the rules that the walk needs, and others, in random order."""
        count = int(rng.integers(0, most + 1)) if most else 0
        if not count:
            return []
        needed = list(dict.fromkeys(self.walk))
        others = rng.permutation([g for g in self.rules if g not in needed])
        chosen = [*needed, *others[: max(0, count - len(needed))]]
        return [rule_text(g, self.rules[g]) for g in rng.permutation(chosen)]
