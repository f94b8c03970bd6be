"""Tools with one behaviour each, importable by tool processes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any, Literal

from rllib_llm.tools import ToolUnavailable, tool


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def search(query: str) -> str:
    """Find documents.

    Args:
        query: Words.
    """
    return f"found {query}"


def paint(colour: Literal["red", "blue"], sizes: list[int], gloss: bool = False) -> str:
    """Paint things.

    Args:
        colour: Which.
        sizes: How big they are.
        gloss: Whether they shall shine.
    """
    return f"{colour} {sizes} {gloss}"


def ask(number: float, maybe: int | None = None) -> str:
    """Say what was given.

    Args:
        number: Any.
        maybe: None, too.
    """
    return f"{number!r} {maybe!r}"


def order(sizes: dict[str, Any], note: str = "", count: Any = None) -> str:
    """Order things.

    Args:
        sizes: By name.
        note: For the maker.
        count: How many.
    """
    return f"{sizes} {note} {count}"


def no_arguments() -> None:
    """Do nothing."""


def divide(a: int, b: int) -> float:
    """Divide.

    Args:
        a: What.
        b: By what.
    """
    return a / b


class Counter:
    """Counts; every object by itself."""

    def __init__(self) -> None:
        self.count = 0

    def up(self, by: int) -> int:
        """Count up.

        Args:
            by: How far.
        """
        self.count += by
        return self.count

    def _hidden(self) -> None:
        """Not a tool."""


calls: list[str] = []


@tool(pure=True, cost=0.5)
def slow_square(n: int) -> int:
    """Square a number.

    Args:
        n: Which.
    """
    calls.append(f"square {n}")
    return n * n


@tool(timeout_s=0.2)
def sleepy(seconds: float) -> str:
    """Sleep in a thread.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "awake"


@tool(timeout_s=60)
def impatient(word: str) -> str:
    """Look a word up in vain, in a thread.

    Args:
        word: Which.
    """
    raise ValueError(f"no {word!r} here")


@tool(timeout_s=0.3)
async def nap(seconds: float) -> str:
    """Sleep as a coroutine.

    Args:
        seconds: How long.
    """
    calls.append("nap")
    await asyncio.sleep(seconds)
    calls.append("woke")
    return "awake"


@tool(timeout_s=0.1)
async def block(seconds: float) -> str:
    """Block the event loop.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "awake"


@tool(process=True, timeout_s=2.0)
def in_process(what: str) -> str:
    """Do something in a process of its own.

    Args:
        what: To be done.
    """
    if what == "pid":
        return str(os.getpid())
    if what == "hang":
        time.sleep(600)
    if what == "die":
        os._exit(7)
    if what == "exit":
        raise SystemExit(1)
    if what == "raise":
        raise ValueError("no such thing")
    if what == "unavailable":
        raise ToolUnavailable("no route")
    sys.stdout.write("printed, and not part of the result\n")
    return what.upper()


class Failing:
    """Cannot be reached the first few times."""

    def __init__(self, times: int):
        self.left = times

    @tool(retries=2)
    def fetch(self, url: str) -> str:
        """Fetch a page.

        Args:
            url: Of the page.
        """
        if self.left:
            self.left -= 1
            raise ConnectionResetError("reset by peer")
        return f"page {url}"
