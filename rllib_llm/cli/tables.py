"""Plain text tables, aligned on a terminal and unwrapped in a file."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

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
