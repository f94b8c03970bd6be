"""Progress bars of the preparation before training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def preparing() -> Iterator[Callable[[str, float], None]]:
    """Yield a callback for :func:`prepare_language_model` that draws a bar per phase.

    Without a terminal it prints a line per quarter of a phase.
    """
    console = Console()
    tasks: dict[str, Any] = {}
    quarters: dict[str, int] = {}
    progress = Progress(
        TextColumn("{task.description:>16}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    start = time.monotonic()

    def show(phase: str, fraction: float) -> None:
        if phase not in tasks:
            tasks[phase] = progress.add_task(phase, total=1.0)
        progress.update(tasks[phase], completed=fraction)
        quarter = int(4 * fraction)
        if quarter > quarters.get(phase, 0) and not console.is_terminal:
            quarters[phase] = quarter
            seconds = time.monotonic() - start
            typer.echo(f"prepare: {phase} {25 * quarter}%  {seconds:.0f} s")

    with progress:
        yield show
