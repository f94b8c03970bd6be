"""Registry of named classes, with suggestions for names that do not exist."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from rllib_llm.errors import ConfigError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Dictionary of named items of one kind, e.g. environments.

    Args:
        kind: Kind of the items, for error messages, e.g. ``"environment"``.
        load: Called once before the first look-up to import the modules whose
            decorators fill the registry, so that importing the package is fast.
    """

    def __init__(self, kind: str, load: Callable[[], None] | None = None):
        self.kind = kind
        self._load = load
        self._lock = threading.RLock()
        self._is_loading = False
        self._items: dict[str, T] = {}

    def register(self, name: str, item: T) -> T:
        """Add ``item`` under ``name``.

        Raises:
            ConfigError: If another item has the name.
        """
        existing = self._items.get(name)
        if existing is not None and not _same_definition(existing, item):
            raise ConfigError(
                f"The {self.kind} name {name!r} is taken by {existing!r}. "
                "Choose another name, or raise its version."
            )
        self._items[name] = item
        return item

    def get(self, name: str) -> T:
        """Return the item called ``name``.

        Raises:
            ConfigError: If the name does not exist; the message suggests a similar one.
        """
        self._ensure_loaded()
        if name not in self._items:
            raise ConfigError(
                f"Unknown {self.kind} {name!r}. {did_you_mean(name, self._items)}"
            )
        return self._items[name]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._ensure_loaded()
        return sorted(self._items)

    def __contains__(self, name: object) -> bool:
        self._ensure_loaded()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _ensure_loaded(self) -> None:
        if self._load is None:
            return
        # Threads that come meanwhile wait until all items are there; a look-up by what
        # is being loaded goes on.
        with self._lock:
            if self._load is None or self._is_loading:
                return
            self._is_loading = True
            try:
                self._load()
            finally:
                self._is_loading = False
            self._load = None


def _same_definition(a: object, b: object) -> bool:
    """Return whether two items are one definition, imported again.

    Notebooks and Ray workers import modules repeatedly.
    """
    key = ("__module__", "__qualname__")
    return all(
        getattr(a, k, None) is not None and getattr(a, k, None) == getattr(b, k, None)
        for k in key
    )
