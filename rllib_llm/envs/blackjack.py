"""Gymnasium's Blackjack in text, with its exact optimal policy."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache

import numpy as np
from gymnasium.envs.toy_text.blackjack import BlackjackEnv, sum_hand, usable_ace

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import last_match, require_bool
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv

ACTIONS = ("stick", "hit")
"""Texts of Gymnasium's actions, in its order."""

_CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}
_ENDS = {-1: "You lose.", 0: "Draw.", 1: "You win!"}
_PATTERN = re.compile(r"\b(stick|hit)\b", re.IGNORECASE)

Hand = tuple[int, bool]
"""Sum of the cards, and whether an ace in it counts as 11."""


@register_text_env("blackjack-v0")
class Blackjack(TextEnv):
    """Take cards, up to 21, then stick. Return 1 for beating the dealer, -1 for losing.

    Cards, rules and rewards are those of Gymnasium's ``BlackjackEnv``: an endless deck,
    a dealer who sticks on 17, no doubling and no splitting. Episodes of both splits
    have the same distribution, because the prompt never reveals the cards to come.
    """

    max_turns = 12
    format_hint = "Say hit or stick."

    def start(
        self, rng: np.random.Generator, natural: bool = False, sab: bool = False
    ) -> str:
        """Deal the first cards.

        Args:
            rng: Generator of all cards.
            natural: Whether winning with an ace and a ten gives a reward of 1.5.
            sab: Whether an ace and a ten beat any other 21, as in Sutton and Barto;
                ``natural`` has no effect then.
        """
        require_bool("natural", natural)
        require_bool("sab", sab)
        self._table = BlackjackEnv(natural=natural, sab=sab)
        self._table.reset(seed=int(rng.integers(2**31)))
        return f"Get close to 21, not over. {self.format_hint}\n{self._observation()}"

    def parse(self, completion: str) -> str | None:
        """Return the last ``hit`` or ``stick``."""
        match = last_match(_PATTERN, completion)
        return match.group(1).lower() if match else None

    def reply(self, action: str) -> TurnResult:
        """Deal a card, or let the dealer play."""
        _, reward, terminated, truncated, _ = self._table.step(ACTIONS.index(action))
        if not terminated:
            return TurnResult(self._observation(), float(reward), success=False)
        mine, dealers = sum_hand(self._table.player), sum_hand(self._table.dealer)
        played = f", dealer {dealers}" if action == "stick" else ""
        text = f"You {mine}{played}. {_ENDS[int(np.sign(reward))]}"
        return TurnResult(text, float(reward), True, truncated, reward > 0)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the action of the optimal policy, the same under all rules."""
        hand = self._table.player
        dealer = self._table.dealer[0]
        values = hand_values((sum_hand(hand), bool(usable_ace(hand))), dealer)
        return ACTIONS[int(np.argmax(values))]

    def random_action(self, rng: np.random.Generator) -> str:
        """Return either action at random."""
        return ACTIONS[int(rng.integers(len(ACTIONS)))]

    def admissible_actions(self) -> list[str]:
        """Return both actions."""
        return list(ACTIONS)

    def _observation(self) -> str:
        hand = self._table.player
        soft = " with an ace as 11" if usable_ace(hand) else ""
        shown = self._table.dealer[0]
        shows = "an ace" if shown == 1 else shown
        return f"You hold {sum_hand(hand)}{soft}, dealer shows {shows}."


def _draw(hand: Hand, card: int) -> Hand:
    total = hand[0] - 10 * hand[1] + card
    has_ace = hand[1] or card == 1
    return (total + 10, True) if has_ace and total <= 11 else (total, False)


@cache
def dealer_ends(hand: Hand) -> dict[int, float]:
    """Return the probability of each final sum of the dealer; 0 is a bust.

    Args:
        hand: The dealer's current hand.
    """
    if hand[0] >= 17:
        return {hand[0] if hand[0] <= 21 else 0: 1.0}
    ends: dict[int, float] = defaultdict(float)
    for card, chance in _CARDS.items():
        for total, p in dealer_ends(_draw(hand, card)).items():
            ends[total] += chance * p
    return dict(ends)


@cache
def hand_values(hand: Hand, dealer: int) -> tuple[float, float]:
    """Return the expected reward of sticking, and of hitting followed by optimal play.

    This computes basic strategy. The extra reward for an ace and a ten is ignored,
    because sticking is optimal there under any rules.

    Args:
        hand: The player's hand.
        dealer: The dealer's card, 1 for an ace.
    """
    ends = dealer_ends(_draw((0, False), dealer))
    stick = sum(p * np.sign(hand[0] - total) for total, p in ends.items())
    hit = 0.0
    for card, chance in _CARDS.items():
        following = _draw(hand, card)
        bust = following[0] > 21
        hit += chance * (-1.0 if bust else max(hand_values(following, dealer)))
    return float(stick), hit


def optimal_return() -> float:
    """Return the expected reward of the optimal policy with default options."""
    total = 0.0
    for dealer, chance in _CARDS.items():
        for first, p in _CARDS.items():
            for second, q in _CARDS.items():
                hand = _draw(_draw((0, False), first), second)
                total += chance * p * q * max(hand_values(hand, dealer))
    return total
