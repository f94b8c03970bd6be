"""Live panel of the running trials below the progress lines."""

from __future__ import annotations

import atexit
import dataclasses
import sys
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rllib_llm.callbacks.result_keys import ITERATION, lookup
from rllib_llm.monitoring import health
from rllib_llm.monitoring.alarms.catalogue import ALARMS
from rllib_llm.monitoring.live import algorithm_mixin as phases
from rllib_llm.monitoring.live.board import ALGORITHM, Watcher

_STYLES = {health.OK: "green", health.WATCH: "yellow", health.BAD: "bold red"}
_REFRESHES_PER_SECOND = 2
_MOST_TRIALS = 6
_BAR = 24
# Prefixes of the EnvRunners whose notes give the progress of a phase.
_RUNNERS = {phases.SAMPLING: "train_", phases.EVALUATING: "eval_"}


@dataclasses.dataclass
class _Shown:
    """A trial on the panel.

    Attributes:
        begun: Start of the current iteration, in seconds since the epoch.
        result: The newest result.
        left: Estimated seconds to the end of training at that result; None: unknown.
        note: The algorithm's newest note.
        runners: Newest notes of the EnvRunners, by process.
    """

    begun: float = dataclasses.field(default_factory=time.time)
    result: dict[str, Any] | None = None
    left: float | None = None
    note: dict[str, Any] = dataclasses.field(default_factory=dict)
    runners: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)


class LivePanel:
    """Shows the phase, episodes, remaining time and health of every trial.

    Args:
        total_iterations: Iterations of a trial; None: unknown.
        console: Console to draw on; None: standard output.
    """

    def __init__(
        self, total_iterations: float | None = None, console: Console | None = None
    ) -> None:
        self._total = total_iterations
        self._console = console or Console(file=sys.stdout)
        self._trials: dict[str, _Shown] = {}
        self._watcher = Watcher()
        self._live = Live(
            get_renderable=self.render,
            console=self._console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
        )

    def start(self) -> None:
        """Start drawing; the panel is removed also if the process exits early."""
        self._live.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Remove the panel."""
        atexit.unregister(self.stop)
        self._live.stop()
        self._watcher.close()

    def print(self, text: Text) -> None:
        """Print a line above the panel."""
        self._console.print(text, soft_wrap=True)

    def begin(self, trial_id: str) -> None:
        """Add a trial."""
        self._trials[trial_id] = _Shown()

    def end(self, trial_id: str) -> None:
        """Remove a trial."""
        self._trials.pop(trial_id, None)

    def update(self, trial_id: str, result: dict[str, Any], left: float | None) -> None:
        """Update a trial at the end of an iteration.

        Args:
            trial_id: The trial.
            result: Its result.
            left: Estimated seconds to the end of training; None: unknown.
        """
        shown = self._trials.setdefault(trial_id, _Shown())
        shown.begun, shown.result, shown.left = time.time(), result, left

    # Drawing -------------------------------------------------------------------------

    def render(self) -> RenderableType:
        """Return the current panel."""
        self._read_notes()
        shown = list(self._trials.items())
        rows: list[RenderableType] = []
        for trial_id, trial in shown[:_MOST_TRIALS]:
            rows += self._rows(trial_id if len(shown) > 1 else "", trial)
        if len(shown) > _MOST_TRIALS:
            rows.append(Text(f"and {len(shown) - _MOST_TRIALS} more trials"))
        return Group(*rows)

    def _read_notes(self) -> None:
        by_trial: dict[str, dict[str, dict[str, Any]]] = {}
        for trial_id, who, note in self._watcher.read():
            by_trial.setdefault(trial_id, {})[who] = note
        for trial_id, notes in by_trial.items():
            trial = self._trials.get(trial_id)
            if trial is not None:
                trial.note, trial.runners = notes.pop(ALGORITHM, {}), notes

    def _rows(self, name: str, trial: _Shown) -> list[RenderableType]:
        now = time.time()
        phase = trial.note.get("phase", phases.STARTING)
        since = now - trial.note.get("at", trial.begun)
        cells: list[RenderableType] = [Text(name)] if name else []
        cells += [Text(self._iteration(trial)), Text(phase, "bold")]
        done, total = self._episodes(trial, phase)
        if total:
            cells.append(ProgressBar(total, done, width=_BAR))
            cells.append(Text(f"{done}/{total} episodes"))
        cells.append(Text(f"{since:.0f} s"))
        if trial.left is not None:
            from rllib_llm.monitoring.formatting import duration

            left = max(0.0, trial.left - (now - trial.begun))
            cells.append(Text(f"left {duration(left)}"))
        grid = Table.grid(padding=(0, 2))
        grid.add_row(*cells)
        rows: list[RenderableType] = [grid]
        stalls = [n["stall"] for n in trial.runners.values() if n.get("stall")]
        rows += [Text(f"stalled: {stall}", "bold red") for stall in stalls[:2]]
        if trial.result is not None:
            rows.append(health_line(trial.result))
        return rows

    def _iteration(self, trial: _Shown) -> str:
        of = f"/{self._total:g}" if self._total else ""
        number = trial.note.get("iteration")
        if number is None:
            finished = lookup(trial.result or {}, ITERATION)
            number = int(finished or 0) + 1
        return f"iteration {number}{of}"

    @staticmethod
    def _episodes(trial: _Shown, phase: str) -> tuple[int, int]:
        """Return the finished and requested episodes of the phase, 0 if unknown."""
        prefix = _RUNNERS.get(phase)
        if prefix is None:
            return 0, 0
        began = trial.note.get("at", 0.0)
        # Older notes belong to the phase before.
        notes = [
            note
            for who, note in trial.runners.items()
            if who.startswith(prefix) and note["at"] >= began
        ]
        done = sum(n["done"] for n in notes)
        requested = sum(n["tasks"] for n in notes)
        return done, max(requested, trial.note.get("episodes", 0))


def health_line(result: dict[str, Any]) -> Text:
    """Return the gauges of a result with their states, and the active alarms."""
    line = Text("health  ")
    for reading in health.readings(result):
        line.append(f"{reading.name} {reading.value} ")
        line.append(reading.state, _STYLES[reading.state])
        line.append("  ")
    alarms = result.get("alarms", {})
    active = [n for n, v in alarms.items() if isinstance(v, int) and v and n in ALARMS]
    if active:
        line.append("alarms: " + ", ".join(active), "bold red")
    return line
