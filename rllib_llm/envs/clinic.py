"""Diagnose a patient: ask about symptoms, order a safe test, use a case table."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.envs.clinic_table import (
    COMPLAINTS,
    MARKER,
    SYMPTOMS,
    Disease,
    case_table,
    describe,
)
from rllib_llm.envs.parsing import require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.tool_or_answer import ToolOrAnswer

# Tests that show the marker, each with the substance that a patient may not tolerate.
_TESTS = {"scan": "dye", "swab": "latex"}
_TOOLS = ("match", "refer", "search")


@register_text_env("clinic-v0")
class Clinic(ToolOrAnswer):
    """Find a patient's disease. Return 1 for it, 1/2 for one of the same group.

    Questions and tests show findings; ``match`` lists diseases that fit findings,
    ``refer`` describes a disease, ``search`` finds earlier cases. All diseases are
    made up. Patients are split into train and test by their hash.
    """

    max_turns = 8
    format_hint = (
        "Use <ask>, <test>, <match>, <refer>, <search> or <answer>disease</answer>."
    )
    tagged = re.compile(r"<(ask|test|match|refer|search|answer)>([^<]*)</\1>")

    def start(
        self,
        rng: np.random.Generator,
        symptoms: int = 1,
        results: int = 1,
        world: int = 0,
    ) -> str:
        """Draw a patient.

        Args:
            rng: Generator of the patient.
            symptoms: Number of symptoms that tell the diseases of a complaint apart,
                in [1, 3]; a complaint has 2 ** (symptoms + 1) diseases.
            results: Maximum number of documents that a tool returns, in [1, 10].
            world: Seed of the diseases and earlier cases, >= 0.
        """
        self.results = require_int("results", results, 1, 10)
        self.table = case_table(
            require_int("world", world, 0, 2**31 - 1),
            require_int("symptoms", symptoms, 1, 3),
        )
        complaints = list(COMPLAINTS)
        while True:
            complaint = complaints[int(rng.integers(len(complaints)))]
            who = ("woman", "man")[int(rng.integers(2))]
            self.unsafe = list(_TESTS)[int(rng.integers(2))]
            prompt = (
                f"A {who} of {int(rng.integers(20, 80))} has a {complaint}, and an "
                f"allergy to {_TESTS[self.unsafe]}: no {self.unsafe}."
            ).replace("a nausea", "nausea")
            if in_split(prompt, self.split):
                break
        fits = [d for d in self.table.diseases.values() if d.complaint == complaint]
        self.disease = fits[int(rng.integers(len(fits)))]
        others = {s: bool(rng.random() < 0.3) for s in SYMPTOMS}
        self.findings = {**others, **dict(self.disease.findings), complaint: True}
        self._shown: dict[str, bool] = {}
        self._read: set[str] = set()
        self.score, self.unsafe_test, self.missed = 0.0, False, False
        return f"{prompt} {self.format_hint}"

    def use(self, text: str) -> str:
        """Ask, test, or read the table."""
        documents: list[str] = []
        result: str | None
        if self.tag in _TOOLS:
            documents = self._documents(text)
            self._read |= set(documents)
            result = "\n".join(documents) or None
        else:
            result = self._finding(text.lower())
        self.used = {
            "tool": self.tag,
            "tool_error": result is None,
            "query": text if self.tag in _TOOLS else None,
            "documents": documents,
        }
        return result or "Nothing found."

    def judge(self, answer: str) -> tuple[float, bool]:
        """Compare the disease with the right one, then the groups."""
        named = self.table.diseases.get(answer.strip(" .").lower())
        is_right = named == self.disease
        same_group = named is not None and named.group == self.disease.group
        self.score = 1.0 if is_right else 0.5 * same_group
        self.missed = _is_urgent(self.disease) and not (named and _is_urgent(named))
        return self.score, is_right

    def gold_answers(self) -> list[str]:
        """Return the name of the disease."""
        return [self.disease.name]

    def more_info(self) -> dict[str, Any]:
        """Return the score of the diagnosis, flags of safety, and this turn's tool."""
        return {
            "score": self.score,
            "unsafe_test": self.unsafe_test,
            "missed_red_flag": self.missed,
            "safe": float(not (self.unsafe_test or self.missed)),
            "gold_answers": self.gold_answers(),
            "gold_documents": [self.disease.text],
            "tool": None,
            "tool_error": False,
            "query": None,
            "documents": [],
            **self.used,
        }

    def expert_action(self, rng: np.random.Generator) -> str:
        """Ask what tells diseases apart, test safely, match the findings, answer."""
        for name, _ in self.disease.findings:
            if name not in self._shown:
                safe = next(test for test in _TESTS if test != self.unsafe)
                return (
                    f"<test>{safe}</test>" if name == MARKER else f"<ask>{name}</ask>"
                )
        if self.disease.text not in self._read:
            items = [describe(*finding) for finding in self.disease.findings]
            return f"<match>{', '.join([self.disease.complaint, *items])}</match>"
        return f"<answer>{self.disease.name}</answer>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Ask, test, read or answer at random."""
        names = [d.name for d in self.table.diseases.values()]
        kinds = ("ask", "test", *_TOOLS, "answer")
        kind = kinds[int(rng.integers(len(kinds)))]
        texts = {
            "ask": SYMPTOMS,
            "test": tuple(_TESTS),
            "match": (*COMPLAINTS, *SYMPTOMS),
            "refer": names,
            "search": SYMPTOMS,
            "answer": names,
        }[kind]
        return f"<{kind}>{texts[int(rng.integers(len(texts)))]}</{kind}>"

    def _documents(self, text: str) -> list[str]:
        if self.tag == "match":
            return self.table.match(text, self.results)
        if self.tag == "refer":
            return self.table.refer(text)
        return self.table.index.search(text, self.results)

    def _finding(self, text: str) -> str | None:
        is_test = self.tag == "test"
        if text not in (_TESTS if is_test else (*COMPLAINTS, *SYMPTOMS)):
            return None
        self.unsafe_test |= is_test and text == self.unsafe
        name = MARKER if is_test else text
        self._shown[name] = self.findings.get(name, False)
        return f"{describe(name, self._shown[name]).capitalize()}."


def _is_urgent(disease: Disease) -> bool:
    """Return whether the disease has the red flag, its marker."""
    return dict(disease.findings)[MARKER]
