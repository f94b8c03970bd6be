"""Iterated prisoner's dilemma with talk: both move at the same time."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_bool, require_float, require_int
from rllib_llm.envs.registry import register_text_env

_MOST_TALK = 200


@register_text_env("dilemma-v0")
class Dilemma(MultiAgentTextEnv):
    """Cooperate or defect, round after round. Return 1 for each if both cooperate.

    The payoffs are Axelrod's (1984): 3 for both if both cooperate, 1 if both defect,
    ``temptation`` and 0 if only one defects; divided by 3 times the number of rounds.
    That number is random and hidden, so that nobody knows which round is the last.
    Success means that nobody ever defected. There is no held-out split: the hidden
    number of rounds is all that differs between episodes.
    """

    possible_agents = ["row_0", "column_0"]
    simultaneous = True
    max_turns = 20
    format_hint = "Please end with 'cooperate' or 'defect'."
    _pattern = re.compile(r"\b(cooperate|defect)\b", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        min_rounds: int = 3,
        max_rounds: int = 5,
        temptation: float = 5.0,
        talk: bool = False,
    ) -> None:
        """Draw how many rounds there are.

        Args:
            rng: Decides the number of rounds.
            min_rounds: The fewest rounds, in [1, 20].
            max_rounds: The most rounds, in [min_rounds, 20].
            temptation: Payoff of a lone defector, above 3 and below 6, so that taking
                turns at defecting is worth less than cooperation.
            talk: Whether an agent reads the other's whole text, 200 characters at most,
                or only its move.
        """
        require_int("min_rounds", min_rounds, 1, 20)
        require_int("max_rounds", max_rounds, min_rounds, 20)
        require_float("temptation", temptation, 3.001, 5.999)
        self.talk = require_bool("talk", talk)
        self.rounds = int(rng.integers(min_rounds, max_rounds + 1))
        self.payoffs = {
            ("cooperate", "cooperate"): 3.0,
            ("cooperate", "defect"): 0.0,
            ("defect", "cooperate"): float(temptation),
            ("defect", "defect"): 1.0,
        }
        self.rules = f"Both cooperate: 3 each. Both defect: 1 each. Else {temptation:g}"
        self.played: list[dict[str, str]] = []
        self.moves: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def prompt_for(self, agent: str) -> str:
        """Tell the rules first, then what the other did."""
        if not self.played:
            return f"{self.rules} for defecting alone, 0 for the other. Your move?"
        other = self._other(agent)
        said = self.texts[other] if self.talk else self.played[-1][other]
        return f"{other}: {said}. Your move?"

    def parse(self, agent: str, text: str) -> str | None:
        """Read the last ``cooperate`` or ``defect``, and keep the text as talk."""
        match = last_match(self._pattern, text)
        if match is None:
            return None
        self.texts[agent] = " ".join(text.split())[-_MOST_TALK:]
        return match.group(1).lower()

    def apply(self, agent: str, action: str) -> None:
        """Remember the move until both are known."""
        self.moves[agent] = action

    def end_round(self) -> Outcome:
        """Pay both for the round."""
        moves, self.moves = self.moves, {}
        self.played.append(moves)
        rewards = {
            agent: self.payoffs[moves[agent], moves[self._other(agent)]]
            / (3.0 * self.rounds)
            for agent in self.possible_agents
        }
        if len(self.played) < self.rounds:
            return Outcome(rewards)
        kind = [move == "cooperate" for r in self.played for move in r.values()]
        return Outcome(
            rewards,
            terminated=True,
            success=all(kind),
            metrics={"cooperation": float(np.mean(kind))},
        )

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Play tit for tat: cooperate first, then do as the other did."""
        return self.played[-1][self._other(agent)] if self.played else "cooperate"

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Do either."""
        return ("cooperate", "defect")[int(rng.integers(2))]

    def _other(self, agent: str) -> str:
        return next(a for a in self.possible_agents if a != agent)
