"""BM25: formula, ties, unusual texts, and equal rankings from disk and tantivy."""

import math
import random

import numpy as np
import pytest

from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.retrieval import BM25, TantivyIndex, words

SMALL = [
    "The cat sat on the mat.",
    "A dog and a cat",
    "Dogs sit.",
    "The cat, the cat, THE CAT!",
]


def corpus(count, seed=0):
    source = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(300)]
    weights = [1 / (i + 1) for i in range(300)]
    return [
        " ".join(source.choices(vocabulary, weights, k=source.randint(1, 20)))
        for _ in range(count)
    ]


def by_hand(documents, query, k1=1.5, b=0.75):
    """Score every document by the formula, in a slow loop."""
    split = [words(d) for d in documents]
    n, mean = len(split), sum(map(len, split)) / len(split)
    scores = []
    for tokens in split:
        total = 0.0
        for word in words(query):
            df = sum(word in other for other in split)
            idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
            tf = tokens.count(word)
            total += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(tokens) / mean))
        scores.append(total)
    return scores


def engines():
    found = [pytest.param(BM25, id="bm25")]
    try:
        import tantivy  # noqa: F401
    except ImportError:
        reason = "the extra search is not installed"
        mark = pytest.mark.skip(reason=reason)
        return [*found, pytest.param(TantivyIndex, id="tantivy", marks=mark)]
    return [*found, pytest.param(TantivyIndex, id="tantivy")]


def test_ranking_matches_the_formula():
    documents = corpus(120)
    index = BM25(documents)
    for query in ("w1", "w3 w200", "w7 w7 w40 unknown", documents[5]):
        scores = by_hand(documents, query)
        order = sorted(range(120), key=lambda i: (-round(scores[i], 12), i))
        wanted = [documents[i] for i in order if scores[i] > 0]
        for results in (1, 4, 120, 500):
            assert index.search(query, results) == wanted[:results]


def test_words():
    assert words("The 'end', (truly): U.S. .hu -- x!") == [
        *("the", "end", "truly", "u.s", "hu", "--", "x")
    ]
    assert words(" \n.,; ") == []


@pytest.mark.parametrize("engine", engines())
def test_case_and_punctuation_do_not_matter(engine):
    index = engine(SMALL)
    assert index.search("MAT?", 3) == [SMALL[0]]
    assert index.search("cat", 9)[0] == SMALL[3]
    assert index.search("cat", 2) == index.search("cat", 9)[:2]


@pytest.mark.parametrize("engine", engines())
def test_ties_go_to_the_first(engine):
    documents = [f"alike number{i}" for i in range(3_000)]
    index = engine(documents)
    assert index.search("alike", 5) == documents[:5]
    assert index.search("alike number2500", 3) == [documents[2500], *documents[:2]]


@pytest.mark.parametrize("engine", engines())
@pytest.mark.parametrize(
    "query", ["", " ", ".,!", "unknown", 'text:cat AND ("', "a" * 70_000, "\x00\u202e"]
)
def test_any_query_is_answered(engine, query):
    found = engine(SMALL).search(query, 3)
    assert set(found) <= set(SMALL)


@pytest.mark.parametrize("engine", engines())
@pytest.mark.parametrize("documents", [[], ["", " ."]])
def test_documents_without_words_are_refused(engine, documents):
    with pytest.raises(ConfigError, match="at least one document with a word"):
        engine(documents)


@pytest.mark.parametrize("engine", engines())
def test_an_index_on_disk_ranks_equally(engine, tmp_path):
    documents = corpus(500, seed=1)
    engine.write(documents, tmp_path)
    in_memory, on_disk = engine(documents), engine(documents, tmp_path)
    for query in corpus(50, seed=2):
        assert on_disk.search(query, 7) == in_memory.search(query, 7)


def test_bm25_from_disk_is_mapped_and_not_read(tmp_path):
    BM25.write(SMALL, tmp_path)
    assert isinstance(BM25(SMALL, tmp_path)._scores, np.memmap)


def test_tantivy_agrees_with_bm25():
    pytest.importorskip("tantivy")
    documents = [f"{text} id{i}" for i, text in enumerate(corpus(400, seed=3))]
    bm25, tantivy = BM25(documents), TantivyIndex(documents)
    for i in range(0, 400, 7):
        assert bm25.search(f"id{i}", 1) == tantivy.search(f"id{i}", 1) == [documents[i]]
    shared = [
        len(set(bm25.search(q, 5)) & set(tantivy.search(q, 5))) / 5
        for q in corpus(60, seed=4)
    ]
    assert np.mean(shared) > 0.7  # k1 and the rounding of lengths differ


def test_without_tantivy_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tantivy", None)
    with pytest.raises(MissingExtraError, match=r"rllib-llm\[search\]"):
        TantivyIndex(SMALL)
