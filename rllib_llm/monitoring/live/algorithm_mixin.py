"""Mixin of an Algorithm that publishes its current phase."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rllib_llm.monitoring.live import board
from rllib_llm.monitoring.live.lines import progress_lines
from rllib_llm.rllib_bases import RLlibAlgorithm

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

STARTING, PREPARING = "starting", "preparing"
SAMPLING, UPDATING, SYNCING = "sampling", "updating", "syncing weights"
EVALUATING, SAVING = "evaluating", "saving"
_PREPARING_S = 0.5  # minimum seconds between two notes


def preparing(topic: str | None) -> Callable[[str, float], None]:
    """Return a callback for ``prepare_language_model`` that publishes its phases.

    Args:
        topic: Topic of the trial; None: only print lines on standard error.
    """
    notes, last = board.Publisher(topic, board.ALGORITHM), 0.0
    show = progress_lines()

    def announce(phase: str, fraction: float) -> None:
        nonlocal last
        show(phase, fraction)
        if notes.is_read and time.monotonic() - last > _PREPARING_S:
            last = time.monotonic()
            notes.write(phase=f"{PREPARING}: {phase} {fraction:.0%}", iteration=0)

    return announce


class LiveAlgorithm(RLlibAlgorithm):
    """Publishes a note at every change of phase if a watcher exists.

    It must come before the Algorithm class in the bases.
    """

    _notes = board.Publisher(None, board.ALGORITHM)

    def setup(self, config: LLMConfig) -> None:
        """Build the algorithm in the phase "starting"."""
        self._notes = board.Publisher(config.live_topic, board.ALGORITHM)
        with self.phase(STARTING):
            super().setup(config)

    @contextlib.contextmanager
    def phase(self, name: str, **more: Any) -> Iterator[None]:
        """Publish the phase of the block."""
        self._announce(name, **more)
        yield

    def _announce(self, name: str, **more: Any) -> None:
        if self._notes.is_read:
            iteration = self.iteration + (name not in (STARTING, SAVING))
            self._notes.write(phase=name, iteration=iteration, **more)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate in the phase "evaluating"."""
        with self.phase(EVALUATING):
            return super().evaluate(*args, **kwargs)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint in the phase "saving"."""
        with self.phase(SAVING):
            return super().save_checkpoint(*args, **kwargs)

    def cleanup(self) -> None:
        """Delete the notes."""
        super().cleanup()
        if self._notes.is_read:
            board.forget(self.config.live_topic)
