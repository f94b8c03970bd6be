"""BM25 search in NumPy, with precomputed scores of every (word, document) pair.

Without a library: docs/dependencies.md gives the reasons against bm25s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rllib_llm.errors import ConfigError

_K1, _B = 1.5, 0.75  # common values: term saturation and length normalisation
_ENDS = ".,;:!?'\"()"
_ARRAYS = ("starts", "where", "scores")


class BM25:
    """Ranks documents by BM25 (Robertson and Zaragoza 2009, eq. 3.15).

    Ties go to the earlier document, so rankings are reproducible.

    Args:
        documents: Texts, at least one of them with a word.
        folder: Folder that :meth:`write` filled for these documents; it is mapped into
            memory, which processes share. None: the index is computed.

    Raises:
        ConfigError: If no document contains a word.
    """

    def __init__(self, documents: Sequence[str], folder: Path | None = None):
        self.documents = list(documents)
        if folder is None:
            self._words, arrays = _postings(self.documents)
        else:
            listed = (folder / "words.txt").read_text(encoding="utf-8").split("\n")
            self._words = {word: i for i, word in enumerate(listed)}
            arrays = tuple(
                np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS
            )
        self._starts, self._where, self._scores = arrays

    @staticmethod
    def write(documents: Sequence[str], folder: Path) -> None:
        """Write the index of ``documents`` into an existing, empty folder."""
        vocabulary, arrays = _postings(documents)
        text = "\n".join(vocabulary)
        (folder / "words.txt").write_text(text, encoding="utf-8", newline="")
        for name, array in zip(_ARRAYS, arrays, strict=True):
            np.save(folder / f"{name}.npy", array)

    def search(self, query: str, results: int) -> list[str]:
        """Return the best documents that share a word with the query, best first.

        Args:
            query: Any text; a word that occurs twice counts twice.
            results: Maximum number of documents.
        """
        scores = np.zeros(len(self.documents))
        for word in words(query):
            number = self._words.get(word)
            if number is not None:
                part = slice(self._starts[number], self._starts[number + 1])
                scores[self._where[part]] += self._scores[part]
        # Sorting only the top scores keeps large corpora fast; a stable sort of all
        # documents with the last of them makes ties go to the earlier document.
        least = 0.0
        if results < len(scores):
            least = np.partition(scores, -results)[-results]
        candidates = np.flatnonzero((scores >= least) & (scores > 0))
        best = candidates[np.argsort(-scores[candidates], kind="stable")][:results]
        return [self.documents[i] for i in best]


def words(text: str) -> list[str]:
    """Return a text's words in lower case, without punctuation at their ends."""
    return [w for w in (w.strip(_ENDS) for w in text.lower().split()) if w]


def _postings(
    documents: Sequence[str],
) -> tuple[dict[str, int], tuple[np.ndarray, ...]]:
    """Return the vocabulary, and the postings of W words in P (word, document) pairs.

    Returns:
        The words' numbers; then the index of each word's first pair [W + 1], the pairs'
        documents [P], and the pair's contribution to the document's score [P].

    Raises:
        ConfigError: If no document contains a word.
    """
    numbers: dict[str, int] = {}
    split = [words(text) for text in documents]
    word_ids = np.array(
        [numbers.setdefault(w, len(numbers)) for ws in split for w in ws], np.int64
    )
    if not len(word_ids):
        raise ConfigError(
            f"None of the {len(split)} documents contains a word. A search needs at "
            "least one document with a word in it."
        )
    n, lengths = len(split), np.array([len(ws) for ws in split])
    # One integer per (word, document) pair, so that unique counts the pairs.
    pairs, tf = np.unique(
        word_ids * n + np.repeat(np.arange(n), lengths), return_counts=True
    )
    word, where = np.divmod(pairs, n)
    df = np.bincount(word, minlength=len(numbers))
    idf = np.log(1 + (n - df + 0.5) / (df + 0.5))
    norms = _K1 * (1 - _B + _B * lengths / lengths.mean())
    scores = idf[word] * tf * (_K1 + 1) / (tf + norms[where])
    starts = np.concatenate([[0], np.cumsum(df)])
    return numbers, (starts, where.astype(np.int32), scores)
