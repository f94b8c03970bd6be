"""Execution of model-written SQL with read-only access to given tables.

Every query runs on a fresh copy of the database in memory, which is then discarded.
Four restrictions apply: the statement must be a SELECT; SQLite's authorizer permits
reading the given tables and calling listed functions only; SQLite's limits bound texts,
expressions and columns; and a progress handler enforces a time limit. ``LIKE`` and
``GLOB`` are replaced, because SQLite's own can take exponential time inside one step,
during which no handler is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

TIME_LIMIT_S = 0.2
MAX_SQL_CHARS = 1_000
MAX_ROWS = 50
_NAMES = """
abs avg ceil ceiling coalesce count dense_rank floor glob group_concat ifnull iif instr
lag lead length like lower ltrim max min mod nullif power rank round row_number rtrim
sign sqrt substr substring sum total trim typeof upper
"""
FUNCTIONS = frozenset(_NAMES.split())
_ACTIONS = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
)
_IS_SELECT = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_STEPS_BETWEEN_CHECKS = 500
# Bounds on the cost of one step of SQLite's virtual machine, by their names in sqlite3.
_LIMITS = {
    "LENGTH": 10_000,
    "SQL_LENGTH": 4 * MAX_SQL_CHARS,
    "COLUMN": 30,
    "EXPR_DEPTH": 50,
    "COMPOUND_SELECT": 5,
    "VDBE_OP": 20_000,
    "FUNCTION_ARG": 6,
    "ATTACHED": 0,
    "VARIABLE_NUMBER": 0,
    "TRIGGER_DEPTH": 0,
    "WORKER_THREADS": 0,
}


@dataclasses.dataclass(frozen=True)
class QueryResult:
    """The result of a query.

    Attributes:
        rows: The first ``MAX_ROWS`` rows, of numbers, texts and None.
        more: Whether there are further rows.
        error: Reason for a failure; empty without one.
    """

    rows: tuple[tuple[Any, ...], ...] = ()
    more: bool = False
    error: str = ""


def query(image: bytes, tables: Collection[str], sql: str) -> QueryResult:
    """Run model-written SQL; return errors in the result instead of raising them.

    Args:
        image: The database, as ``sqlite3.Connection.serialize`` returns it.
        tables: Names of the tables that may be read.
        sql: The query.
    """
    if len(sql) > MAX_SQL_CHARS:
        return QueryResult(error=f"the query has more than {MAX_SQL_CHARS} characters")
    if not _IS_SELECT.match(sql):
        return QueryResult(error="only SELECT is permitted")
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(image)
            _guard(database, tables)
            rows = database.execute(sql).fetchmany(MAX_ROWS + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        return QueryResult(error=_explained(error))
    except MemoryError:
        return QueryResult(error="the query took too much memory")
    kept = tuple(tuple(map(_plain, row)) for row in rows[:MAX_ROWS])
    return QueryResult(kept, more=len(rows) > MAX_ROWS)


def _guard(database: sqlite3.Connection, tables: Collection[str]) -> None:
    for name, value in _LIMITS.items():
        database.setlimit(getattr(sqlite3, f"SQLITE_LIMIT_{name}"), value)
    database.execute("PRAGMA query_only = ON")
    database.execute("PRAGMA temp_store = MEMORY")  # no temporary files
    database.execute("PRAGMA trusted_schema = OFF")
    database.text_factory = lambda text: text.decode("utf-8", "replace")
    for name, fold, wildcards in (
        ("like", str.lower, ("%", "_")),
        ("glob", str, ("*", "?")),
    ):
        database.create_function(name, 2, _matcher(fold, wildcards), deterministic=True)
    deadline = time.monotonic() + TIME_LIMIT_S
    database.set_progress_handler(
        lambda: time.monotonic() > deadline, _STEPS_BETWEEN_CHECKS
    )
    # The authorizer comes last: it would refuse the PRAGMA statements above.
    readable = {name.lower() for name in tables}

    def authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
        fine = action in _ACTIONS
        if action == sqlite3.SQLITE_READ:
            fine = (first or "").lower() in readable
        elif action == sqlite3.SQLITE_FUNCTION:
            fine = (second or "").lower() in FUNCTIONS
        return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY

    database.set_authorizer(authorize)


def _matcher(fold: Callable[[str], str], wildcards: tuple[str, str]) -> Any:
    """Return LIKE or GLOB as a function in O(pattern * text) time."""
    many, one = wildcards

    def matches(pattern: object, text: object) -> int | None:
        if pattern is None or text is None:
            return None
        return int(_match(fold(str(pattern)), fold(str(text)), many, one))

    return matches


def _match(pattern: str, text: str, many: str, one: str) -> bool:
    """Match wildcards, backtracking only to the last one for many characters."""
    p = t = 0
    back_p, back_t = -1, 0
    while t < len(text):
        if p < len(pattern) and pattern[p] == many:
            back_p, back_t = p, t
            p += 1
        elif p < len(pattern) and pattern[p] in (one, text[t]):
            p, t = p + 1, t + 1
        elif back_p >= 0:
            back_t += 1
            p, t = back_p + 1, back_t
        else:
            return False
    # What is left of the pattern must match the empty text.
    return set(pattern[p:]) <= {many}


def _plain(value: object) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _explained(error: Exception) -> str:
    text = str(error)
    if "interrupted" in text:
        return "the query took too long"
    if "not authorized" in text or "prohibited" in text:
        return "the query does something that is not permitted"
    return text[:200]


def table_text(result: QueryResult, max_rows: int) -> str:
    """Return a result as text for a model: one line per row.

    Args:
        result: Result of a query.
        max_rows: Maximum number of rows in the text.
    """
    if result.error:
        return f"Error: {result.error}."
    return "\n".join(_lines(result, max_rows)) or "No rows."


def _lines(result: QueryResult, max_rows: int) -> Iterator[str]:
    for row in result.rows[:max_rows]:
        yield " | ".join("NULL" if v is None else str(v)[:100] for v in row)
    if result.more or len(result.rows) > max_rows:
        yield "..."
