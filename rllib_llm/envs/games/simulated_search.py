"""Search questions whose search engine is a language model, an agent of the episode."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.envs import facts
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.parsing import (
    last_match,
    require_choice,
    require_float,
    require_int,
)
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split

SEARCHER, ENGINE = "searcher_0", "engine_0"
_MAX_CHARS = 200


@register_text_env("simulated_search-v0")
class SimulatedSearch(MultiAgentTextEnv):
    """Search, then answer. Return 1 for the searcher if the answer is right.

    The engine is a language model in the place of a search engine, as in ZeroSearch
    (Sun et al. 2025, arXiv:2505.04588): it reads the query, the question and its
    answer, and the instruction to write a useful or a useless document. It has no
    reward; train the searcher alone by ``policies_to_train``.

    Questions need one fact. The splits share no entities at the start of questions.
    """

    possible_agents = [SEARCHER, ENGINE]
    max_turns = 8
    format_hint = "Use <search>words</search> or <answer>name</answer>."
    _pattern = re.compile(r"<(search|answer)>([^<]*)</\1>")

    def start(
        self,
        rng: np.random.Generator,
        noise: float = 0.0,
        engine: str = "model",
        world: int = 0,
    ) -> None:
        """Draw a question.

        Args:
            rng: Generator of the question and of useless documents.
            noise: Probability that a document is asked to be useless, in [0, 1].
            engine: "model": the agent ``engine_0``; "index": the documents of the world
                by BM25, as in ``search_facts-v0``. The engine then has no turn.
            world: Seed of the facts, >= 0.
        """
        noise = require_float("noise", noise, 0.0, 1.0)
        self.is_model = require_choice("engine", engine, ("model", "index")) == "model"
        self.world = facts.world(require_int("world", world, 0, 2**31 - 1))
        every = list(self.world.facts.values())
        while True:
            self.fact = every[int(rng.integers(len(every)))]
            if in_split(self.fact.entity, self.split):
                break
        # Drawn here, so that they do not depend on what the agents do.
        self.useless = [bool(x) for x in rng.random(self.max_turns) < noise]
        self.searches = 0
        self.query: str | None = None
        self.document: str | None = None

    def next_agent(self) -> str:
        """Return the engine after a search, else the searcher."""
        return ENGINE if self.query is not None else SEARCHER

    def prompt_for(self, agent: str) -> str:
        """Return the question or a document to the searcher, the task to the engine."""
        if agent == SEARCHER:
            return self.document or facts.question([self.fact])
        if self.query is None:
            return ""
        kind = "useless" if self.useless[self.searches] else "useful"
        return (
            f"{facts.question([self.fact])} {self.fact.value}\nQuery: {self.query}\n"
            f"Write a {kind} document."
        )

    def parse(self, agent: str, text: str) -> tuple[str, str] | None:
        """Return the searcher's tag and text, or the engine's document."""
        if agent == ENGINE:
            document = text.strip()[:_MAX_CHARS]
            return ("document", document) if document else None
        match = last_match(self._pattern, text)
        content = match.group(2).strip() if match else ""
        return (match.group(1), content) if match and content else None

    def apply(self, agent: str, action: tuple[str, str]) -> Outcome | None:
        """Pass a query or a document on, or grade the answer."""
        kind, text = action
        if kind == "document":
            self._show(text)
        elif kind == "search" and self.is_model:
            self.query = text
        elif kind == "search":
            documents = self.world.index.search(text, 1)
            self._show("\n".join(documents) or "Nothing found.")
        else:
            return self._grade(text)
        return None

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return the gold query until the fact is shown; the document asked for."""
        if agent == ENGINE:
            return self._expert_document(rng)
        if self._is_shown() or self.searches >= self.max_turns // 2 - 1:
            return f"<answer>{self.fact.value}</answer>"
        return f"<search>{self.fact.query}</search>"

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return any fact's document, query or value."""
        every = list(self.world.facts.values())
        fact = every[int(rng.integers(len(every)))]
        if agent == ENGINE:
            return fact.text
        if rng.random() < 0.5:
            return f"<search>{fact.query}</search>"
        return f"<answer>{fact.value}</answer>"

    def _show(self, document: str) -> None:
        self.query, self.document = None, document
        self.searches += 1

    def _is_shown(self) -> bool:
        """Return whether the last document names the answer."""
        return self.fact.value in (self.document or "")

    def _grade(self, answer: str) -> Outcome:
        is_right = answer.strip(" .").lower() == self.fact.value.lower()
        metrics = {
            "searches": float(self.searches),
            "answer_shown": float(self._is_shown()),
        }
        return Outcome(
            {SEARCHER: float(is_right)},
            terminated=True,
            success=is_right,
            metrics=metrics,
        )

    def _expert_document(self, rng: np.random.Generator) -> str:
        """Return the fact if the query asks for it, or a fact of something else."""
        asked = {self.fact.entity, self.fact.relation} <= set(str(self.query).split())
        if asked and not self.useless[self.searches]:
            return self.fact.text
        others = [f for f in self.world.facts.values() if f.value != self.fact.value]
        return others[int(rng.integers(len(others)))].text
