"""Search indexes shared within a process and, if large, within a node."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rllib_llm.cache import cache_dir
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.retrieval.bm25 import BM25
from rllib_llm.retrieval.tantivy_index import TantivyIndex

BIG = 20_000
"""Number of documents from which on an index is stored on disk."""

ENGINES: dict[str, Any] = {"bm25": BM25, "tantivy": TantivyIndex}

# Increment when the content of an index changes for the same documents.
_FORMAT = 1
_SHARED: dict[tuple[str, str], SearchIndex] = {}
_LOCK = threading.Lock()


class SearchIndex(Protocol):
    """The interface of all search engines."""

    documents: list[str]

    def search(self, query: str, results: int) -> list[str]:
        """Return the best documents that share a word with the query, best first."""
        ...


def shared_index(
    name: str,
    load: Callable[[], Sequence[str]],
    engine: str = "bm25",
    *,
    big: int = BIG,
) -> SearchIndex:
    """Return the index of a corpus, shared by all environments of a process.

    The first call loads the documents and builds the index while other threads wait.
    From ``big`` documents on, the index is stored in the package's cache directory
    under the hash of the documents: the first process of a node writes it while
    others wait, and all of them map it into memory.

    Args:
        name: Name of the corpus; one name must always mean the same documents.
        load: Returns the documents.
        engine: ``"bm25"``, or ``"tantivy"`` (extra ``search``) for large corpora.
        big: Number of documents from which on the index is stored on disk.

    Raises:
        ConfigError: If the engine does not exist, or no document contains a word.
        MissingExtraError: If tantivy is selected and not installed.
    """
    if engine not in ENGINES:
        raise ConfigError(
            f"Unknown search engine={engine!r}. {did_you_mean(engine, ENGINES)}"
        )
    with _LOCK:
        key = name, engine
        if key not in _SHARED:
            documents = load()
            folder = None if len(documents) < big else _on_disk(documents, engine)
            _SHARED[key] = ENGINES[engine](documents, folder)
        return _SHARED[key]


def _on_disk(documents: Sequence[str], engine: str) -> Path:
    """Return the folder of an index, written by the first process that needs it."""
    from filelock import FileLock

    digest = hashlib.blake2b(f"{_FORMAT} {engine}".encode(), digest_size=12)
    for text in documents:
        # The length delimits documents: ["ab", "c"] must not equal ["a", "bc"].
        digest.update(b"%d " % len(encoded := text.encode(errors="surrogatepass")))
        digest.update(encoded)
    folder = cache_dir() / f"search_{engine}_{digest.hexdigest()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}-"))
            # Rename after writing: a folder that exists is always complete.
            try:
                ENGINES[engine].write(documents, work)
                work.rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder
