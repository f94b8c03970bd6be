"""Judge which of two answers is right, with a tool that looks facts up."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.search_facts import SearchFacts


@register_text_env("judging-v0")
class Judging(SearchFacts):
    """Say which of two answers to a question is right. Return 1 if that is right.

    The questions and the search are those of ``search_facts-v0``: a judge that does
    not look anything up can only guess.
    """

    format_hint = "Use <search>words</search> or <answer>A</answer>."
    tagged = re.compile(r"<(search|answer)>([^<]*)</\1>")

    def start(  # type: ignore[override]  # without masks, always with the tool
        self, rng: np.random.Generator, hops: int = 1, results: int = 1, world: int = 0
    ) -> str:
        """Draw a question, a wrong answer, and which letter has the right one.

        Args:
            rng: Generator of all.
            hops: Number of facts that a question needs, 1 or 2.
            results: Number of documents that a search returns, in [1, 10].
            world: Seed of the facts, >= 0.
        """
        question = super().start(rng, hops, results, world)
        right, relation = self.chain[-1].value, self.chain[-1].relation
        others = {f.value for f in self.world.facts.values() if f.relation == relation}
        wrong = str(rng.choice(sorted(others - {right})))
        self.choice = "AB"[int(rng.integers(2))]
        a, b = (right, wrong) if self.choice == "A" else (wrong, right)
        return f"{question} A: {a}. B: {b}. Which is right? {self.format_hint}"

    def judge(self, answer: str) -> tuple[float, bool]:
        """Compare the choice with the right one, ignoring case."""
        is_right = answer.strip(" .").upper() == self.choice
        return float(is_right), is_right

    def gold_answers(self) -> list[str]:
        """Return the letter of the right answer."""
        return [self.choice]

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a search for any fact, or any choice."""
        if rng.random() < 0.5:
            return f"<search>{self.any_fact(rng).query}</search>"
        return f"<answer>{'AB'[int(rng.integers(2))]}</answer>"
