"""Iterated prisoner's dilemma with talk and simultaneous moves."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import last_match, require_bool, require_float, require_int
from rllib_llm.envs.registry import register_text_env

_MOST_TALK = 200


@register_text_env("dilemma-v0")
class Dilemma(MultiAgentTextEnv):
    """Cooperate or defect in several rounds. Return 1 for each if both cooperate.

    The payoffs are Axelrod's (1984): 3 for both if both cooperate, 1 if both defect,
    ``temptation`` and 0 if only one defects; divided by 3 times the number of rounds.
    That number is random and hidden, so that no agent knows the last round. Success
    means that both always cooperated. Episodes of both splits are drawn alike, because
    they differ in the hidden number of rounds only.
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
        """Draw the number of rounds.

        Args:
            rng: Generator of the number of rounds.
            min_rounds: Minimum number of rounds, in [1, 20].
            max_rounds: Maximum number of rounds, in [min_rounds, 20].
            temptation: Payoff of a lone defector, above 3 and below 6, so that
                alternating defection is worth less than cooperation.
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
        """Return the rules first, later the other agent's last move."""
        if not self.played:
            return f"{self.rules} for defecting alone, 0 for the other. Your move?"
        other = self._other(agent)
        last_action = self.texts[other] if self.talk else self.played[-1][other]
        return f"{other}: {last_action}. Your move?"

    def parse(self, agent: str, text: str) -> str | None:
        """Return the last ``cooperate`` or ``defect``, and store the text as talk."""
        match = last_match(self._pattern, text)
        if match is None:
            return None
        self.texts[agent] = " ".join(text.split())[-_MOST_TALK:]
        return match.group(1).lower()

    def apply(self, agent: str, action: str) -> None:
        """Store the move until both are known."""
        self.moves[agent] = action

    def end_round(self) -> Outcome:
        """Return both agents' rewards of the round."""
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
        """Return the move of tit for tat: cooperate first, then copy the other."""
        return self.played[-1][self._other(agent)] if self.played else "cooperate"

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return either move."""
        return ("cooperate", "defect")[int(rng.integers(2))]

    def _other(self, agent: str) -> str:
        return next(a for a in self.possible_agents if a != agent)
