"""Progress of the stages before training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextlib.contextmanager
def preparing() -> Iterator[Callable[[str, float], None]]:
    """Yield a callback for :func:`prepare_language_model` that draws one bar a phase.

    Without a terminal, each phase is one plain line when it is done.
    """
    console = Console()
    tasks: dict[str, int] = {}
    done: set[str] = set()
    progress = Progress(
        TextColumn("{task.description:>16}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )

    def show(phase: str, fraction: float) -> None:
        if phase not in tasks:
            tasks[phase] = progress.add_task(phase, total=1.0)
        progress.update(tasks[phase], completed=fraction)
        if fraction >= 1.0 and phase not in done:
            done.add(phase)
            if not console.is_terminal:
                console.print(f"prepared: {phase}")

    with progress:
        yield show
