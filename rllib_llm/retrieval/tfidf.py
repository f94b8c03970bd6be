"""Similarity of short texts: cosine of TF-IDF vectors, by scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rllib_llm.retrieval.bm25 import words


class TfIdf:
    """Compares texts with documents by the cosine of their TF-IDF vectors.

    A word's weight is its count times ``ln((1 + N) / (1 + n)) + 1``, where ``n`` of the
    ``N`` documents contain it. Words of a query that no document contains count in the
    query's length, so that a longer text is not taken for an equal one.

    Args:
        documents: The texts.
        split: Returns a text's words.
    """

    def __init__(
        self, documents: Sequence[str], split: Callable[[str], list[str]] = words
    ):
        # On demand: the import takes a second of each process's start.
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.preprocessing import normalize

        self._split = split
        self._unseen = math.log(1 + len(documents)) + 1
        # None without a word in any document, which scikit-learn refuses.
        self._vectorizer: Any = None
        self._vectors: Any = np.zeros((len(documents), 1))
        if any(map(split, documents)):
            self._vectorizer = TfidfVectorizer(analyzer=split, norm=None)
            self._vectors = normalize(self._vectorizer.fit_transform(documents))

    def similarities(self, text: str) -> np.ndarray:
        """Return the cosine of a text with each document, in [0, 1]. float64 [N]"""
        if self._vectorizer is None:
            return np.zeros(self._vectors.shape[0])
        vector = self._vectorizer.transform([text])
        vocabulary, split = self._vectorizer.vocabulary_, self._split(text)
        unseen = [split.count(word) for word in set(split) if word not in vocabulary]
        length = math.sqrt(
            vector.multiply(vector).sum()
            + sum((count * self._unseen) ** 2 for count in unseen)
        )
        cosines: np.ndarray = (self._vectors @ vector.T).toarray()[:, 0]
        return cosines / length if length else cosines

    def between(self, first: int, second: int) -> float:
        """Return the cosine of two documents, in [0, 1]."""
        both = self._vectors[[first, second]]
        return float((both @ both.T)[0, 1])
