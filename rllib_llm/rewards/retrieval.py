"""Rewards for what was found: retrieved against needed documents and queries.

``info["documents"]`` are the texts that a turn retrieved, ``info["query"]`` its query;
``gold_documents`` and ``gold_queries`` those that the question needs.
"""

from __future__ import annotations

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.rewards.texts import (
    as_texts,
    cosine,
    gold_answers,
    normalise,
    tf_idf,
    word_f1,
)


@component(
    "reward", "evidence", paper="Search-R1, arXiv:2503.09516; MT-GRPO, 2505.11821"
)
def evidence(trajectory: Trajectory, *, of: str = "documents") -> list[float]:
    """Pay the turn that first retrieves needed documents, or the answer in one.

    Args:
        trajectory: What an agent did.
        of: "documents": the share of the needed ones that is new, which sums to the
            recall; "answer": 1 in the first turn whose documents contain a right
            answer.

    Returns:
        Reward of each turn, their sum in [0, 1]. [H]
    """
    if of not in ("documents", "answer"):
        raise ValueError(f"of={of!r} must be 'documents' or 'answer'.")
    found = _documents(trajectory)
    if of == "answer":
        answers = [f" {normalise(a)} " for a in gold_answers(trajectory)]
        wanted = {"answer"}
        found = [
            ["answer"]
            if any(a in f" {normalise(d)} " for a in answers for d in ds)
            else []
            for ds in found
        ]
    else:
        wanted = (
            set(as_texts(trajectory.last_info("gold_documents"))) if found else set()
        )
    paid, left = [], set(wanted)
    for documents in found:
        paid.append(len(left & set(documents)) / max(len(wanted), 1))
        left -= set(documents)
    return paid


@component("reward", "information_gain", paper="StepSearch, arXiv:2505.15107")
def information_gain(
    trajectory: Trajectory, *, scale: float = 1.0, redundancy: float = 1.0
) -> list[float]:
    """Pay what a search adds to the best match of each needed document, less repeats.

    ``scale * (mean over needed documents i of max(0, c[i, t] - m[i, t-1]) -
    redundancy * share of the turn's documents that were retrieved before)``, with c the
    largest TF-IDF cosine of the turn's documents and m the largest before it. The
    release changes arrays in place, so that its scale of 0.6 acts as 1.6; here it is
    what it says. Document frequencies are those of the trajectory's documents.

    Args:
        trajectory: What an agent did.
        scale: Of the whole.
        redundancy: Weight of repeats, >= 0.

    Returns:
        Reward of each turn; 0 where nothing was retrieved. [H]
    """
    if redundancy < 0:
        raise ValueError(f"redundancy={redundancy} must be >= 0.")
    found = _documents(trajectory)
    needed = as_texts(trajectory.last_info("gold_documents")) if found else []
    every = list(dict.fromkeys([*needed, *(d for ds in found for d in ds)]))
    vectors = dict(zip(every, tf_idf(every), strict=True))
    best = dict.fromkeys(needed, 0.0)
    seen: set[str] = set()
    paid = []
    for documents in found:
        gain = 0.0
        for gold in needed:
            match = max(
                (cosine(vectors[gold], vectors[d]) for d in documents), default=0.0
            )
            gain += max(0.0, match - best[gold]) / len(needed)
            best[gold] = max(best[gold], match)
        again = sum(d in seen for d in documents) / max(len(documents), 1)
        seen |= set(documents)
        paid.append(scale * (gain - redundancy * again))
    return paid


@component("reward", "search_keys", paper="StepSearch, arXiv:2505.15107")
def search_keys(trajectory: Trajectory) -> float:
    """Mean, over the queries that were needed, of the best F1 of a query made.

    Args:
        trajectory: What an agent did.

    Returns:
        Reward of the last turn, in [0, 1].
    """
    made = [q for q in trajectory.info_per_turn("query", None) if q]
    needed = as_texts(trajectory.last_info("gold_queries")) if len(trajectory) else []
    best = [max((word_f1(q, gold) for q in made), default=0.0) for gold in needed]
    return sum(best) / len(best) if best else 0.0


def _documents(trajectory: Trajectory) -> list[list[str]]:
    return [as_texts(found) for found in trajectory.info_per_turn("documents", ())]
