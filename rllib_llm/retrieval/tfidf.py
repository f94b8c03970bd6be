"""Similarity of short texts: cosine of TF-IDF vectors, in NumPy."""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence

import numpy as np

from rllib_llm.retrieval.bm25 import words


class TfIdf:
    """Compares texts with documents by the cosine of their TF-IDF vectors.

    A word's weight is its count times ``ln((1 + N) / (1 + n)) + 1``, where ``n`` of the
    ``N`` documents contain it (the smooth form of scikit-learn). Words of a query that
    no document contains count in the query's length, so that a longer text is not
    taken for an equal one.

    Args:
        documents: The texts, at least one.
    """

    def __init__(self, documents: Sequence[str]):
        counts = [collections.Counter(words(text)) for text in documents]
        in_documents = collections.Counter(w for each in counts for w in each)
        self._idf = {w: _idf(len(counts), n) for w, n in in_documents.items()}
        self._unseen = _idf(len(counts), 0)
        self._number = {word: i for i, word in enumerate(self._idf)}
        self._vectors = np.zeros((len(counts), len(self._number)))
        for row, each in enumerate(counts):
            for word, count in each.items():
                self._vectors[row, self._number[word]] = count * self._idf[word]
        self._vectors = _unit(self._vectors)

    def similarities(self, text: str) -> np.ndarray:
        """Return the cosine of a text with each document, in [0, 1]. float64 [N]"""
        vector, rest = np.zeros(len(self._number)), 0.0
        for word, count in collections.Counter(words(text)).items():
            if word in self._number:
                vector[self._number[word]] = count * self._idf[word]
            else:
                rest += (count * self._unseen) ** 2
        length = math.sqrt(float(vector @ vector) + rest)
        return self._vectors @ (vector / length if length else vector)

    def between(self, first: int, second: int) -> float:
        """Return the cosine of two documents, in [0, 1]."""
        return float(self._vectors[first] @ self._vectors[second])


def _idf(documents: int, containing: int) -> float:
    return math.log((1 + documents) / (1 + containing)) + 1


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Return rows of length 1; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1.0, lengths)
