"""Plain text tables, aligned on a terminal and unwrapped in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rllib_llm.evaluation.paired_outcomes import Paired

# Width without a terminal: large, so that rich does not wrap or cut rows.
_WIDE = 400


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()
) -> None:
    """Print a table with bold titles.

    Args:
        columns: The titles.
        rows: The cells.
        numbers: Titles of right-aligned columns.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column in numbers
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    with console.capture() as captured:
        console.print(table)
    console.out("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_paired(tests: Sequence[Paired], a: str, b: str) -> None:
    """Print paired tests of two policies, whose short names are ``a`` and ``b``."""
    rows = [
        (
            p.what,
            f"{p.mean_a:.3f}",
            f"{p.mean_b:.3f}",
            f"{p.difference:+.3f}",
            "-" if p.low is None else f"{p.low:+.3f} to {p.high:+.3f}",
            f"{p.p_value:.4f}",
            p.test,
        )
        for p in tests
    ]
    print_table(["", a, b, f"{b} - {a}", "95% interval", "p", "test"], rows)
