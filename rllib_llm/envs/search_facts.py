"""Answer questions about a made-up world with the help of a search tool."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.envs import facts
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.text_env import TextEnv, in_split, register_text_env
from rllib_llm.types import TurnResult


@register_text_env("search_facts-v0")
class SearchFacts(TextEnv):
    """Search for facts, then answer. Return 1 if the answer is right.

    Questions go over one fact or two; the second is about what the first one names.
    Entities that questions of the test split begin with occur in no question of the
    training split, neither at its beginning nor on the way.
    """

    max_turns = 4
    format_hint = "Use <search>words</search> or <answer>name</answer>."
    _pattern = re.compile(r"<(search|answer)>([^<]*)</\1>")

    def start(
        self, rng: np.random.Generator, hops: int = 1, results: int = 2, world: int = 0
    ) -> str:
        """Draw a question.

        Args:
            rng: Decides the question.
            hops: Facts that a question goes over, 1 or 2.
            results: Documents that a search returns, in [1, 10].
            world: Seed of the facts, >= 0.
        """
        require_int("hops", hops, 1, 2)
        self.results = require_int("results", results, 1, 10)
        self.world = facts.world(require_int("world", world, 0, 2**31 - 1))
        self.chain = self._draw(rng, hops)
        self._last: dict[str, Any] = {}
        self._seen: list[str] = []
        return f"What is the {self._asked()}?"

    def parse(self, completion: str) -> tuple[str, str] | None:
        """Read the last search or answer; an empty one is none."""
        self._last = {}
        match = last_match(self._pattern, completion)
        if match is None or not match.group(2).strip():
            return None
        return match.group(1), match.group(2).strip()

    def reply(self, action: tuple[str, str]) -> TurnResult:
        """Show documents, or judge the answer."""
        kind, text = action
        if kind == "answer":
            is_right = text.strip(" .").lower() == self.chain[-1].value.lower()
            said = "Correct!" if is_right else "That is wrong."
            return TurnResult(said, float(is_right), terminated=True, success=is_right)
        found = self.world.index.search(text, self.results)
        self._seen += found
        self._last = {
            "tool": "search",
            "query": text,
            "documents": found,
            "tool_error": not found,
        }
        return TurnResult("\n".join(found) or "Nothing found.", success=False)

    def more_info(self) -> dict[str, Any]:
        """Return what was needed, and what the search did in this turn."""
        return {
            "gold_answers": [self.chain[-1].value],
            "gold_documents": [fact.text for fact in self.chain],
            "gold_queries": [fact.query for fact in self.chain],
            "tool": None,
            "query": None,
            "documents": [],
            "tool_error": False,
            **self._last,
        }

    def expert_action(self, rng: np.random.Generator) -> str:
        """Search for the first fact that has not been seen, else answer."""
        for fact in self.chain:
            if fact.text not in self._seen:
                return f"<search>{fact.query}</search>"
        return f"<answer>{self.chain[-1].value}</answer>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Search for any fact, or answer with any value of a fact."""
        fact = list(self.world.facts.values())[int(rng.integers(len(self.world.facts)))]
        if rng.random() < 0.5:
            return f"<search>{fact.query}</search>"
        return f"<answer>{fact.value}</answer>"

    def _draw(self, rng: np.random.Generator, hops: int) -> list[facts.Fact]:
        """Draw chains until all entities asked about belong to the split."""
        every = [e for entities in self.world.entities.values() for e in entities]
        while True:
            chains = self.world.chains(str(rng.choice(every)), hops)
            chain = chains[int(rng.integers(len(chains)))] if chains else []
            if chain and all(in_split(f.entity, self.split) for f in chain):
                return chain

    def _asked(self) -> str:
        """Return e.g. "river of the home of Kelam"."""
        relations = " of the ".join(f.relation for f in reversed(self.chain))
        return f"{relations} of {self.chain[0].entity}"
