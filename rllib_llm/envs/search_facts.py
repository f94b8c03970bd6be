"""Answer questions about a fictional world with the help of a search tool."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.envs import facts
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.tool_or_answer import ToolOrAnswer
from rllib_llm.errors import ConfigError


class SearchGame(ToolOrAnswer):
    """Base class of tasks that search, then answer.

    A subclass sets ``chain``, the facts that the question needs, and calls
    :meth:`begin` in ``start``.
    """

    format_hint = "Use <search>words</search> or <answer>name</answer>."
    chain: Sequence[facts.Fact]
    tagged = re.compile(r"<(search|answer)>([^<]*)</\1>")

    def begin(self) -> None:
        """Clear the documents of earlier searches."""
        self._seen: list[str] = []

    def find(self, query: str) -> list[str]:
        """Return the documents that a search shows."""
        raise NotImplementedError

    def gold_answers(self) -> list[str]:
        """Return the right answers."""
        return [self.chain[-1].value]

    def any_fact(self, rng: np.random.Generator) -> facts.Fact:
        """Return any fact of the world."""
        raise NotImplementedError

    def use(self, text: str) -> str:
        """Search, and return the documents as text."""
        documents = self.find(text)
        self._seen += documents
        self.used = {
            "tool": "search",
            "query": text,
            "documents": documents,
            "tool_error": not documents,
        }
        return "\n".join(documents) or "Nothing found."

    def more_info(self) -> dict[str, Any]:
        """Return the facts that the question needs, and this turn's search."""
        return {
            "gold_answers": self.gold_answers(),
            "gold_documents": [fact.text for fact in self.chain],
            "gold_queries": [fact.query for fact in self.chain],
            "tool": None,
            "query": None,
            "documents": [],
            "tool_error": False,
            **self.used,
        }

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return a search for the first needed fact not yet shown, else the answer."""
        for fact in self.chain:
            if fact.text not in self._seen:
                return f"<search>{fact.query}</search>"
        return f"<answer>{self.gold_answers()[0]}</answer>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a search for any fact, or any fact's value as the answer."""
        fact = self.any_fact(rng)
        if rng.random() < 0.5:
            return f"<search>{fact.query}</search>"
        return f"<answer>{fact.value}</answer>"


@register_text_env("search_facts-v0")
class SearchFacts(SearchGame):
    """Search for facts, then answer. Return 1 if the answer is right.

    Questions need one fact or two, where the second is about the value of the first.
    With ``masks`` the task is a text instead, whose masked values are the answer.
    The two splits share no entities, neither at the start of questions nor on the way.
    """

    max_turns = 4
    is_masked, has_tool = False, True

    def start(
        self,
        rng: np.random.Generator,
        hops: int = 1,
        results: int = 2,
        world: int = 0,
        masks: int = 0,
        tool: bool = True,
    ) -> str:
        """Draw a question.

        Args:
            rng: Generator of the question.
            hops: Number of facts that a question needs, 1 or 2.
            results: Number of documents that a search returns, in [1, 10].
            world: Seed of the facts, >= 0.
            masks: Number of facts in a text whose values are masked, at most 3; 0: a
                question.
            tool: Whether a search finds anything.
        """
        self.has_tool = tool
        require_int("hops", hops, 1, 2)
        self.is_masked = require_int("masks", masks, 0, 3) > 0
        if self.is_masked and hops > 1:
            raise ConfigError(
                f"masks={masks} has texts of single facts, so that hops={hops} has no "
                "effect. Set hops to 1, or masks to 0."
            )
        self.results = require_int("results", results, 1, 10)
        self.world = facts.world(require_int("world", world, 0, 2**31 - 1))
        self.begin()
        if self.is_masked:
            self.chain = self._draw_masked(rng, masks)
            return facts.masked_text(self.chain)
        self.chain = self._draw(rng, hops)
        return facts.question(self.chain)

    def find(self, query: str) -> list[str]:
        """Return the documents that match the query best; none without the tool."""
        return [] if not self.has_tool else self.world.index.search(query, self.results)

    def gold_answers(self) -> list[str]:
        """Return the right answer; of a text the masked values in order."""
        if self.is_masked:
            return [", ".join(fact.value for fact in self.chain)]
        return super().gold_answers()

    def judge(self, answer: str) -> tuple[float, bool]:
        """Compare the answer with the right one, ignoring case."""
        is_right = answer.strip(" .").lower() == self.gold_answers()[0].lower()
        return float(is_right), is_right

    def any_fact(self, rng: np.random.Generator) -> facts.Fact:
        """Return any fact of the world."""
        return list(self.world.facts.values())[int(rng.integers(len(self.world.facts)))]

    def _draw_masked(self, rng: np.random.Generator, count: int) -> list[facts.Fact]:
        """Draw facts about different entities of the split."""
        drawn: dict[str, facts.Fact] = {}
        while len(drawn) < count:
            (fact,) = self._draw(rng, 1)
            drawn.setdefault(fact.entity, fact)
        return list(drawn.values())

    def _draw(self, rng: np.random.Generator, hops: int) -> list[facts.Fact]:
        """Draw chains until all their entities belong to the split."""
        every = [e for entities in self.world.entities.values() for e in entities]
        while True:
            chains = self.world.chains(str(rng.choice(every)), hops)
            chain = chains[int(rng.integers(len(chains)))] if chains else []
            if chain and all(in_split(f.entity, self.split) for f in chain):
                return chain
