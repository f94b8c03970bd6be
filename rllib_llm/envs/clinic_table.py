"""Made-up diseases and earlier cases of ``clinic-v0``, as a searchable table."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection
from functools import lru_cache

import numpy as np

from rllib_llm.retrieval import BM25

# By complaint: symptoms that tell its diseases apart, from the first one on.
COMPLAINTS = {
    "cough": ("fever", "wheeze", "fatigue"),
    "rash": ("itch", "blister", "swelling"),
    "nausea": ("cramp", "thirst", "tremor"),
}
SYMPTOMS = tuple(s for symptoms in COMPLAINTS.values() for s in symptoms)
MARKER = "marker"  # the finding of a test
_STARTS = ("Ba", "Do", "Fe", "Ga", "Ke", "Li", "Mo", "Nu", "Ra", "Se", "Ti", "Vo")
_ENDS = ("litis", "mosis", "nemia", "roma")
_CASES = 3  # earlier cases of each disease


@dataclasses.dataclass(frozen=True)
class Disease:
    """A disease, its group, and whether it has each finding of its complaint."""

    name: str
    group: str
    complaint: str
    findings: tuple[tuple[str, bool], ...]  # symptoms in order, the marker last

    @property
    def text(self) -> str:
        """The document of the disease."""
        shown = ", ".join(describe(*finding) for finding in self.findings)
        return f"{self.name}: {self.complaint}, {shown}."

    def agreement(self, stated: Collection[tuple[str, bool]]) -> int:
        """Return the number of stated findings that fit, less those that do not."""
        has = {self.complaint: True, **dict(self.findings)}
        return sum(1 if has.get(name, False) == value else -1 for name, value in stated)


def describe(name: str, is_present: bool) -> str:
    """Return e.g. ``"fever"`` or ``"no fever"``."""
    return name if is_present else f"no {name}"


def read_findings(text: str) -> list[tuple[str, bool]]:
    """Return the findings that a list such as ``"cough, no fever"`` states."""
    all_names = {*COMPLAINTS, *SYMPTOMS, MARKER}
    stated = []
    for item in text.lower().split(","):
        words = item.split()
        negated = words[:1] == ["no"]
        name = " ".join(words[negated:])
        if name in all_names:
            stated.append((name, not negated))
    return stated


class CaseTable:
    """All diseases of a seed, and earlier cases with a search over them.

    Args:
        seed: Seed of names and cases.
        symptoms: Number of symptoms that tell the diseases of a complaint apart. The
            first of them decides the group.
    """

    def __init__(self, seed: int, symptoms: int):
        self.seed, self.symptoms = seed, symptoms
        rng = np.random.default_rng(seed)
        names = iter(rng.permutation([a + b for a in _STARTS for b in _ENDS]))
        self.diseases: dict[str, Disease] = {}
        cases = []
        for complaint, asked in COMPLAINTS.items():
            parts = (*asked[:symptoms], MARKER)
            for bits in itertools.product((True, False), repeat=len(parts)):
                findings = tuple(zip(parts, bits, strict=True))
                group = f"{complaint}, {describe(*findings[0])}"
                one = Disease(str(next(names)), group, complaint, findings)
                self.diseases[one.name.lower()] = one
                cases += [self._case(one, rng) for _ in range(_CASES)]
        self.index = BM25(cases)

    def __reduce__(self) -> tuple[Callable[[int, int], CaseTable], tuple[int, int]]:
        # Snapshots of environments store the seed instead of a copy of the table.
        return case_table, (self.seed, self.symptoms)

    def match(self, text: str, results: int) -> list[str]:
        """Return the documents of the diseases that fit the stated findings best."""
        stated = read_findings(text)
        if not stated:
            return []
        scored = [(d.agreement(stated), d.text) for d in self.diseases.values()]
        # Sorted is stable: ties keep the order of the table.
        best = sorted(scored, key=lambda pair: -pair[0])[:results]
        return [document for score, document in best if score > 0]

    def refer(self, name: str) -> list[str]:
        """Return the document of a disease."""
        one = self.diseases.get(name.strip(" .").lower())
        return [one.text] if one else []

    def _case(self, disease: Disease, rng: np.random.Generator) -> str:
        age, other = int(rng.integers(20, 80)), str(rng.choice(SYMPTOMS))
        present = [name for name, value in disease.findings if value]
        shown = dict.fromkeys([disease.complaint, *present, other])
        return f"Aged {age}, {', '.join(shown)}: {disease.name}."


@lru_cache(maxsize=8)
def case_table(seed: int, symptoms: int) -> CaseTable:
    """Return the table of a seed, made once."""
    return CaseTable(seed, symptoms)
