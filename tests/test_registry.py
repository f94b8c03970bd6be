"""Registries that import their items at the first look-up."""

from __future__ import annotations

import threading
import time

import pytest

from rllib_llm.errors import ConfigError
from rllib_llm.registry import Registry


def test_threads_wait_until_all_items_are_loaded():
    calls = []

    def load():
        calls.append(1)
        names.register("first", 1)
        time.sleep(0.2)
        assert names.get("first") == 1  # what is loaded may look up names
        names.register("last", 2)

    names = Registry("name", load)
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.append(names.get("last")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [2] * 8 and calls == [1]


def test_a_failed_import_is_tried_again():
    attempts = []

    def load():
        attempts.append(1)
        if len(attempts) == 1:
            raise ImportError("missing")
        names.register("item", 1)

    names = Registry("name", load)
    with pytest.raises(ImportError, match="missing"):
        names.get("item")
    assert names.get("item") == 1
    with pytest.raises(ConfigError, match="Unknown name 'itme'"):
        names.get("itme")
