"""BM25 search with tantivy, for corpora too large for NumPy (extra ``search``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.retrieval.bm25 import words

_HEAP = 1_000_000_000  # maximum, in bytes; a smaller corpus stays in one segment


class TantivyIndex:
    """Ranks documents like :class:`~rllib_llm.retrieval.bm25.BM25`, using tantivy.

    Words are split alike, but k1 is 1.2 and document lengths are rounded, so that
    documents of similar scores may change places. Ties go to the earlier document.

    Args:
        documents: Texts, at least one of them with a word.
        folder: Folder that :meth:`write` filled for these documents. None: the index
            is built in memory.

    Raises:
        ConfigError: If no document contains a word.
        MissingExtraError: If tantivy is not installed.
    """

    def __init__(self, documents: Sequence[str], folder: Path | None = None):
        self._tantivy = _import()
        self.documents = list(documents)
        if folder is None:
            index = self._tantivy.Index(_schema(self._tantivy))
            _fill(self._tantivy, index, self.documents)
        else:
            index = self._tantivy.Index.open(str(folder))
        self._schema = index.schema
        self._searcher = index.searcher()

    @staticmethod
    def write(documents: Sequence[str], folder: Path) -> None:
        """Write the index of ``documents`` into an existing, empty folder."""
        tantivy = _import()
        index = tantivy.Index(_schema(tantivy), path=str(folder))
        _fill(tantivy, index, documents)

    def search(self, query: str, results: int) -> list[str]:
        """Return the best documents that share a word with the query, best first.

        Args:
            query: Any text, without query syntax; a word that occurs twice counts
                twice.
            results: Maximum number of documents.
        """
        parts = [
            (
                self._tantivy.Occur.Should,
                self._tantivy.Query.term_query(self._schema, "text", word, "freq"),
            )
            for word in words(query)
        ]
        if not parts:
            return []
        asked = self._tantivy.Query.boolean_query(parts)
        hits = self._searcher.search(asked, results, count=False).hits
        numbers = self._searcher.fast_field_values("number", [at for _, at in hits])
        # tantivy returns hits of equal score in the order of their insertion.
        return [self.documents[i] for i in numbers]


def _import() -> Any:
    try:
        import tantivy
    except ImportError:
        raise MissingExtraError.for_extra("tantivy", "search") from None
    return tantivy


def _schema(tantivy: Any) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name="whitespace", index_option="freq")
    builder.add_integer_field("number", fast=True)
    return builder.build()


def _fill(tantivy: Any, index: Any, documents: Sequence[str]) -> None:
    split = [words(text) for text in documents]
    if not any(split):
        raise ConfigError(
            f"None of the {len(split)} documents contains a word. A search needs at "
            "least one document with a word in it."
        )
    # One thread: several would make several segments, and ties would lose their order.
    writer = index.writer(heap_size=_HEAP, num_threads=1)
    for number, tokens in enumerate(split):
        writer.add_document(tantivy.Document(text=" ".join(tokens), number=number))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
