"""Orderly end of a run on SIGTERM or Ctrl-C, with a last checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from ray.rllib.utils.annotations import override
from ray.tune import Callback
from ray.tune.result import SHOULD_CHECKPOINT

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_NO_HANDLER = "TUNE_DISABLE_SIGINT_HANDLER"
_STANDARD_ERROR = 2


class Interruption:
    """The signal that asked this process to stop, if one did.

    Attributes:
        number: Number of the signal; None: none was received.
        is_training: Whether trials are running that must be saved first.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.is_training = False

    @property
    def name(self) -> str:
        """The signal's name, e.g. ``"SIGTERM"``."""
        return signal.Signals(self._received()).name

    @property
    def status(self) -> int:
        """Exit status by the convention of shells: 143 for SIGTERM, 130 for SIGINT."""
        return 128 + self._received()

    def _received(self) -> int:
        assert self.number is not None, "No signal was received."
        return self.number

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Let the first signal within the block end the trials, not the process."""
        self.is_training = True
        try:
            yield
        finally:
            self.is_training = False

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Let the first signal within the block end the process: no trials run yet."""
        before, self.is_training = self.is_training, False
        try:
            yield
        finally:
            self.is_training = before

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; end the process at once on the second."""
        is_second, self.number = self.number is not None, number
        if is_second:
            _write(f"{self.name} received twice: stopped without a checkpoint.")
            # Not sys.exit, which would first run Tune's cleanup.
            os._exit(self.status)
        if not self.is_training:
            _write(f"{self.name} received: stopped before training began.")
            raise SystemExit(self.status)
        _write(
            f"{self.name} received: the run stops after this iteration and a "
            "checkpoint. Send it again to stop at once."
        )


# At module level, not in SaveAndStop: Tune pickles its callbacks, and a copy would
# never see the signal.
_current = Interruption()


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Handle SIGTERM and Ctrl-C while the block runs (in the main thread)."""
    global _current
    _current = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield _current
        return
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    tune_setting = os.environ.get(_NO_HANDLER)
    os.environ[_NO_HANDLER] = "1"  # Tune's own handler aborts the iteration
    for each in _SIGNALS:
        signal.signal(each, _current.handle)
    try:
        yield _current
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        os.environ.pop(_NO_HANDLER)
        if tune_setting is not None:
            os.environ[_NO_HANDLER] = tune_setting


class SaveAndStop(Callback):
    """Saves running trials and ends the experiment after an interruption.

    Trials keep the state in which Tune's own interruption leaves them, so that a
    resumed run continues them and starts the pending ones.
    """

    def __init__(self) -> None:
        self._saved: set[str] = set()

    @override(Callback)
    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Make Tune save the trial."""
        if _current.number is not None:
            result[SHOULD_CHECKPOINT] = True

    @override(Callback)
    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, *args: Any, **info: Any
    ) -> None:
        """Record that the trial was saved."""
        if _current.number is not None:
            self._saved.add(trial.trial_id)

    @override(Callback)
    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """End the experiment once no unsaved trial is running."""
        if _current.number is None:
            return
        running = {t.trial_id for t in trials if t.status == t.RUNNING}
        if running <= self._saved:
            signal.raise_signal(signal.SIGUSR1)  # Tune stops on it, state saved


def _write(text: str) -> None:
    # os.write, not print: a signal handler may interrupt a buffered write to stderr.
    os.write(_STANDARD_ERROR, f"\n{text}\n".encode())
