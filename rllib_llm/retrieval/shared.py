"""One index per corpus: built once per process, and big ones once per node."""

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
"""Documents from which on an index is kept on disk."""

ENGINES: dict[str, Any] = {"bm25": BM25, "tantivy": TantivyIndex}

# Raise when what is written for the same documents changes.
_FORMAT = 1
_SHARED: dict[tuple[str, str], SearchIndex] = {}
_LOCK = threading.Lock()


class SearchIndex(Protocol):
    """What all engines have in common."""

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
    """Return the index of a corpus; all environments of a process share it.

    The first call loads the documents and builds the index while other threads wait.
    With ``big`` documents or more it lies in the package's cache directory by the
    hash of the documents: the first process of a node writes it while others wait,
    and all of them map it into memory.

    Args:
        name: The corpus: one name, one list of documents.
        load: Returns the documents.
        engine: ``"bm25"``, or ``"tantivy"`` (extra ``search``) for big corpora.
        big: Documents from which on the index is kept on disk.

    Raises:
        ConfigError: If there is no such engine, or nothing to search.
        MissingExtraError: Without tantivy, if it is asked for.
    """
    if engine not in ENGINES:
        raise ConfigError(
            f"engine={engine!r} is no search engine. {did_you_mean(engine, ENGINES)}"
        )
    with _LOCK:
        key = name, engine
        if key not in _SHARED:
            documents = load()
            folder = None if len(documents) < big else _on_disk(documents, engine)
            _SHARED[key] = ENGINES[engine](documents, folder)
        return _SHARED[key]


def _on_disk(documents: Sequence[str], engine: str) -> Path:
    """Return the folder of an index, written by the first process that asks."""
    from filelock import FileLock

    digest = hashlib.blake2b(f"{_FORMAT} {engine}".encode(), digest_size=12)
    for text in documents:
        digest.update(b"%d " % len(encoded := text.encode(errors="surrogatepass")))
        digest.update(encoded)
    folder = cache_dir() / f"search_{engine}_{digest.hexdigest()}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}-"))
            try:
                ENGINES[engine].write(documents, work)
                work.rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder
