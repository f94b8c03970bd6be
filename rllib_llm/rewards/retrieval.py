"""Rewards for retrieval: retrieved against gold documents and queries.

``info["documents"]`` holds the texts that a turn retrieved and ``info["query"]`` its
query; ``gold_documents`` and ``gold_queries`` are those that the question needs.
"""

from __future__ import annotations

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.retrieval.tfidf import TfIdf
from rllib_llm.rewards.text_features import (
    as_texts,
    gold_answers,
    normalise,
    word_f1,
)


@component(
    "reward", "evidence", paper="Search-R1, arXiv:2503.09516; MT-GRPO, 2505.11821"
)
def evidence(trajectory: Trajectory, *, of: str = "documents") -> list[float]:
    """Reward the turn that first retrieves gold documents, or a document's answer.

    Args:
        trajectory: The agent's trajectory.
        of: "documents": the share of gold documents that are new, which sums to the
            recall; "answer": 1 in the first turn whose documents contain a correct
            answer.

    Returns:
        Reward of each turn, their sum in [0, 1]. [H]
    """
    if of not in ("documents", "answer"):
        raise ValueError(f"of={of!r} must be 'documents' or 'answer'. Use 'documents'.")
    retrieved = _documents(trajectory)
    if of == "answer":
        answers = [f" {normalise(a)} " for a in gold_answers(trajectory)]
        wanted = {"answer"}
        retrieved = [
            ["answer"]
            if any(a in f" {normalise(d)} " for a in answers for d in ds)
            else []
            for ds in retrieved
        ]
    else:
        gold = trajectory.last_info("gold_documents") if retrieved else ()
        wanted = set(as_texts(gold))
    rewards, left = [], set(wanted)
    for documents in retrieved:
        rewards.append(len(left & set(documents)) / max(len(wanted), 1))
        left -= set(documents)  # a document is rewarded once
    return rewards


@component("reward", "information_gain", paper="StepSearch, arXiv:2505.15107")
def information_gain(
    trajectory: Trajectory, *, scale: float = 1.0, redundancy: float = 1.0
) -> list[float]:
    """Reward the gain of a search in matching gold documents, less repetitions.

    ``scale * (mean over gold documents i of max(0, c[i, t] - m[i, t-1]) -
    redundancy * share of the turn's documents that were retrieved before)``, with c the
    largest TF-IDF cosine of the turn's documents and m the largest before it. The
    released code changes arrays in place, so that its scale of 0.6 acts as 1.6; here
    the scale is exact. Document frequencies are those of the trajectory's documents.

    Args:
        trajectory: The agent's trajectory.
        scale: Factor of the reward.
        redundancy: Weight of repeated documents, >= 0.

    Returns:
        Reward of each turn; 0 if it retrieved nothing. [H]
    """
    if redundancy < 0:
        raise ValueError(
            f"redundancy={redundancy} must be >= 0, because it is subtracted. Drop the "
            "sign."
        )
    retrieved = _documents(trajectory)
    needed = as_texts(trajectory.last_info("gold_documents")) if retrieved else []
    # Different documents in a fixed order, because a set's order of texts varies
    # between processes.
    every = list(dict.fromkeys([*needed, *(d for ds in retrieved for d in ds)]))
    number = {text: i for i, text in enumerate(every)}
    index = TfIdf(every, lambda text: normalise(text).split())
    best = dict.fromkeys(needed, 0.0)
    seen: set[str] = set()
    rewards = []
    for documents in retrieved:
        gain = 0.0
        for gold in needed:
            match = max(
                (index.between(number[gold], number[d]) for d in documents),
                default=0.0,
            )
            # Only improvements count: the same match again has no gain.
            gain += max(0.0, match - best[gold]) / len(needed)
            best[gold] = max(best[gold], match)
        again = sum(d in seen for d in documents) / max(len(documents), 1)
        seen |= set(documents)
        rewards.append(scale * (gain - redundancy * again))
    return rewards


@component("reward", "search_keys", paper="StepSearch, arXiv:2505.15107")
def search_keys(trajectory: Trajectory) -> float:
    """Return the mean over gold queries of the best word F1 of the agent's queries.

    Args:
        trajectory: The agent's trajectory.

    Returns:
        Reward of the last turn, in [0, 1].
    """
    made = [q for q in trajectory.info_per_turn("query", None) if q]
    needed = as_texts(trajectory.last_info("gold_queries")) if len(trajectory) else []
    best = [max((word_f1(q, gold) for q in made), default=0.0) for gold in needed]
    return sum(best) / len(best) if best else 0.0


def _documents(trajectory: Trajectory) -> list[list[str]]:
    return [
        as_texts(documents) for documents in trajectory.info_per_turn("documents", ())
    ]
