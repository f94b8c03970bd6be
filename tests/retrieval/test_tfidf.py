"""TF-IDF cosines against a slow loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rllib_llm.retrieval.bm25 import words
from rllib_llm.retrieval.tfidf import TfIdf

DOCUMENTS = ["On ice", "On sand, on ice.", "the other side", "", "On ice"]


def by_hand(documents, text, document):
    """The cosine of two texts, word by word."""
    vocabulary = {w for d in [*documents, text] for w in words(d)}

    def idf(word):
        containing = sum(word in words(d) for d in documents)
        return math.log((1 + len(documents)) / (1 + containing)) + 1

    def vector(of):
        return {w: words(of).count(w) * idf(w) for w in vocabulary}

    one, two = vector(text), vector(document)
    dot = sum(one[w] * two[w] for w in vocabulary)
    lengths = [math.sqrt(sum(x * x for x in v.values())) for v in (one, two)]
    return dot / (lengths[0] * lengths[1]) if all(lengths) else 0.0


@pytest.mark.parametrize("text", ["ON ICE!", "ice ice sand", "unheard of words", ""])
def test_cosines_are_those_of_a_slow_loop(text):
    given = TfIdf(DOCUMENTS).similarities(text)
    expected = [by_hand(DOCUMENTS, text, document) for document in DOCUMENTS]
    np.testing.assert_allclose(given, expected, atol=1e-12)


def test_documents_are_compared_with_each_other():
    index = TfIdf(DOCUMENTS)
    for i, first in enumerate(DOCUMENTS):
        for j, second in enumerate(DOCUMENTS):
            expected = by_hand(DOCUMENTS, first, second)
            assert index.between(i, j) == pytest.approx(expected, abs=1e-12)


def test_unseen_words_make_a_text_less_similar():
    index = TfIdf(DOCUMENTS)
    assert index.similarities("on ice")[0] == pytest.approx(1.0)
    assert index.similarities("on ice skates")[0] < 0.9


def test_documents_without_words_are_similar_to_nothing():
    index = TfIdf(["", "..."])
    np.testing.assert_array_equal(index.similarities("on ice"), [0.0, 0.0])
    assert index.between(0, 1) == 0.0 and index.between(0, 0) == 0.0


def test_words_are_split_as_asked():
    index = TfIdf(["a-b c", "b a"], lambda text: text.split("-"))
    assert index.similarities("a")[0] > 0.0 == index.similarities("c")[0]
