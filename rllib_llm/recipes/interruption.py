"""SIGTERM and Ctrl-C: a run finishes its iteration, writes a checkpoint and stops."""

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
        number: Of the signal; None: nobody asked.
        is_training: Whether there are trials to end in order.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.is_training = False

    @property
    def name(self) -> str:
        """The signal's name."""
        return signal.Signals(self.number).name

    @property
    def status(self) -> int:
        """Exit status by the convention of shells: 143 for SIGTERM, 130 for SIGINT."""
        return 128 + self.number

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Let a first signal end trials in order meanwhile, not the process."""
        self.is_training = True
        try:
            yield
        finally:
            self.is_training = False

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Let a first signal end the process meanwhile: there are no trials yet."""
        before, self.is_training = self.is_training, False
        try:
            yield
        finally:
            self.is_training = before

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take note of a signal; the second one ends the process at once."""
        again, self.number = self.number is not None, number
        if again:
            _say(f"{self.name} again: ended at once, without a checkpoint.")
            os._exit(self.status)
        if not self.is_training:
            _say(f"{self.name}: ended before training began.")
            raise SystemExit(self.status)
        _say(
            f"{self.name}: this iteration is finished and a checkpoint written, then "
            "the run stops. Once more ends it at once."
        )


# Signals belong to a process; Tune's callbacks, which are pickled, look here.
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
    os.environ[_NO_HANDLER] = "1"  # Tune's own abandons the iteration
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
    """Saves every running trial after its iteration and ends the experiment, if asked.

    Trials are left as Tune's own interruption leaves them, so that a resumed run goes
    on with them and with those that had not begun.
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
        """Have Tune save the trial."""
        if _current.number is not None:
            result[SHOULD_CHECKPOINT] = True

    @override(Callback)
    def on_checkpoint(
        self, iteration: int, trials: list[Trial], trial: Trial, *args: Any, **info: Any
    ) -> None:
        """Note that it was saved."""
        if _current.number is not None:
            self._saved.add(trial.trial_id)

    @override(Callback)
    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """End the experiment once no unsaved trial is running."""
        if _current.number is None:
            return
        running = {t.trial_id for t in trials if t.status == t.RUNNING}
        if running <= self._saved:
            signal.raise_signal(signal.SIGUSR1)  # Tune's way to be interrupted


def _say(text: str) -> None:
    os.write(_STANDARD_ERROR, f"\n{text}\n".encode())
