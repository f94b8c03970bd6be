"""Progress lines, one per iteration, and the paths of a run's files at its end."""

from __future__ import annotations

import math
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray.rllib.utils.annotations import override
from ray.tune import Callback

from rllib_llm.callbacks import result_keys
from rllib_llm.callbacks.result_keys import lookup, lookup_learner
from rllib_llm.callbacks.tune_logging import TRANSCRIPTS_FILE, live_folder
from rllib_llm.monitoring.formatting import duration

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

    from rllib_llm.monitoring.panel import LivePanel

Cell = Callable[[dict[str, Any]], str]

HEADER_EVERY = 20
RESUME_COMMAND = "rllib-llm train --resume"
_RECENT = 5  # iterations whose mean duration extrapolates to the end


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _value(key: str, form: str) -> Cell:
    return lambda result: _number(lookup(result, key), form)


def _learner(key: str, form: str) -> Cell:
    return lambda result: _number(lookup_learner(result, key), form)


def _truncated(result: dict[str, Any]) -> str:
    return _number(result_keys.truncated(result), ".0%")


def _tokens_per_second(result: dict[str, Any]) -> str:
    """Return sampled tokens per second of sampling, environment time included."""
    tokens = lookup(result, result_keys.TOKENS)
    seconds = lookup(result, result_keys.SAMPLING_SECONDS)
    return _number(tokens / seconds if tokens is not None and seconds else None, ".0f")


def _elapsed(result: dict[str, Any]) -> str:
    return duration(lookup(result, result_keys.SECONDS_TOTAL))


# Title, width and cell of each column; docs/metrics.md explains them.
COLUMNS: tuple[tuple[str, int, Cell], ...] = (
    ("iter", 5, _value(result_keys.ITERATION, ".0f")),
    ("return", 7, _value(result_keys.RETURN, ".3f")),
    ("success", 7, _value(result_keys.SUCCESS, ".0%")),
    ("turns", 5, _value(result_keys.TURNS, ".1f")),
    ("tok/turn", 8, _value(result_keys.TOKENS_PER_TURN, ".1f")),
    ("trunc", 5, _truncated),
    ("invalid", 7, _value(result_keys.INVALID, ".0%")),
    ("KL(k3)", 7, _learner(result_keys.KL, ".4f")),
    ("clip", 5, _learner(result_keys.CLIP, ".2f")),
    ("entropy", 7, _learner(result_keys.ENTROPY, ".3f")),
    ("|dlogp|", 7, _learner(result_keys.TRAIN_INFERENCE_MISMATCH, ".1e")),
    ("tok/s", 6, _tokens_per_second),
    ("time", 7, _elapsed),
)
_LEFT_WIDTH = 7


class ProgressLine(Callback):
    """Prints one line per iteration and trial.

    Lines are plain ASCII. On a terminal the header is bold, reached expectations are
    green and alarms are red, unless ``NO_COLOR`` is set. Below the lines a panel shows
    the running trials (docs/live.md).

    Args:
        title: Title of the run, e.g. ``"GRPO guess_number-v0"``; printed first.
        stop: Bounds of result keys at which training stops, to estimate the remaining
            time. Only those that grow with training (iterations, seconds, lifetime
            counts) are used.
        time_budget_s: Seconds after which all trials are stopped; None: no limit.
        begin: Description of the initial policy, for the line of its evaluation.
        expect: Thresholds by result key, e.g.
            ``{"env_runners/episode_return_mean": 0.9}``; reached when every value is
            at least its threshold.
        tensorboard: Whether the run writes TensorBoard files.
    """

    def __init__(
        self,
        title: str = "",
        stop: dict[str, float] | None = None,
        expect: dict[str, float] | None = None,
        tensorboard: bool = True,
        *,
        time_budget_s: float | None = None,
        begin: str = "before training",
    ):
        self.title = title
        self.begin = begin
        self.stop = {k: v for k, v in (stop or {}).items() if _grows(k)}
        self.time_budget_s = time_budget_s
        self._began: float | None = None  # seconds since the epoch
        self.expect = dict(expect or {})
        self.tensorboard = tensorboard
        self.reached: dict[str, int] = {}  # trial id -> iteration
        self.stopped_by: dict[str, str] = {}  # trial id -> alarm
        self._several = False
        self._panel: LivePanel | None = None
        self._lines = 0
        # Counters of ``stop`` and seconds of a trial's last iterations.
        self._recent: dict[str, deque[dict[str, float]]] = {}
        # First and last evaluation by trial id.
        self._held_out: dict[str, list[str]] = {}

    # Tune's events -------------------------------------------------------------------

    @override(Callback)
    def setup(self, *args: Any, **info: Any) -> None:
        """Read the number of trials and start the panel."""
        total = info.get("total_num_samples") or info.get("num_samples") or 1
        self._several = total != 1  # -1: unlimited
        self._began = time.time()
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            from rllib_llm.monitoring.panel import LivePanel

            self._panel = LivePanel(self.stop.get(result_keys.ITERATION))
            self._panel.start()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the panel, since Tune pickles its callbacks."""
        return {**self.__dict__, "_panel": None}

    @override(Callback)
    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Print what starts and how to watch it."""
        if self.title:
            folder = trial.storage.experiment_fs_path
            self._print(f"{self.title}   run: {folder}", "bold")
            if self.tensorboard:
                live = shlex.quote(str(live_folder(trial, of_run=True)))
                self._print(f"watch: tensorboard --logdir {live}")
            self.title = ""
        if self._several:
            # Values come from the config: PBT does not update evaluated_params.
            searched = trial.evaluated_params.items()
            settings = ", ".join(f"{k}={trial.config.get(k, v)}" for k, v in searched)
            self._print(f"{trial.trial_id} starts: {settings or 'no search settings'}")
        if self._panel is not None:
            self._panel.begin(trial.trial_id)

    @override(Callback)
    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Print the line of an iteration."""
        self._several = self._several or len(trials) > 1
        prefix = f"{trial.trial_id} " if self._several else ""
        if self._lines % HEADER_EVERY == 0:
            self._print(" " * len(prefix) + self.header(), "bold")
        self._lines += 1
        first = self._first_line(trial.trial_id, result)
        if first:
            self._print(prefix + first)
        advice = result.get(result_keys.FIRST_EVALUATION, {}).get("advice")
        if advice:
            self._print(f"{prefix}{advice}", "red")
        reached = self._check_expected(trial.trial_id, result)
        line = prefix + self.line(trial.trial_id, result) + reached
        self._print(line, "green" if reached else None)
        for message in result.get("alarms", {}).get("messages", "").splitlines():
            self._print(f"{prefix}{message}", "red")
        if self._panel is not None:
            left = self._seconds_left(trial.trial_id, result)
            self._panel.update(trial.trial_id, result, left)

    @override(Callback)
    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record the alarm that stopped a trial."""
        self._leave(trial)
        stopped_by = (trial.last_result or {}).get("alarms", {}).get("stopped_by")
        if stopped_by:
            self.stopped_by[trial.trial_id] = stopped_by

    @override(Callback)
    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Print the path of the error file."""
        self._leave(trial)
        self._print(f"{trial} failed; the error is in {trial.error_file}", "red")

    @override(Callback)
    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        """Print the paths of results, curves and checkpoints, and how to resume."""
        if self._panel is not None:
            self._panel.stop()
            self._panel = None
        if not trials:
            return
        for trial in trials:
            name = f"{trial.trial_id} " if len(trials) > 1 else ""
            checkpoint = trial.checkpoint.path if trial.checkpoint else "none"
            if trial.trial_id in self.stopped_by:
                alarm = self.stopped_by[trial.trial_id]
                self._print(f"{name}stopped by:  alarm {alarm}", "red")
            if self.expect:
                self._print(f"{name}expect:      {self._expectation(trial.trial_id)}")
            if len(self._held_out.get(trial.trial_id, ())) > 1:
                self._print(f"{name}held out:    {self._first_and_last(trial)}")
            self._print(f"{name}transcripts: {trial.path}/{TRANSCRIPTS_FILE}")
            self._print(f"{name}checkpoint:  {checkpoint}")
        run = shlex.quote(trials[0].storage.experiment_fs_path)
        self._print(f"run folder:  {run}")
        if self.tensorboard:
            self._print(f"curves:      tensorboard --logdir {run}")
        self._print(f"resume:      {RESUME_COMMAND} {run}")

    # Text ----------------------------------------------------------------------------

    def header(self) -> str:
        """Return the titles of the columns."""
        titles = [title.rjust(width) for title, width, _ in COLUMNS]
        if self._shows_left:
            titles.append("left".rjust(_LEFT_WIDTH))
        return " ".join(titles)

    def line(self, trial_id: str, result: dict[str, Any]) -> str:
        """Return the line of one result."""
        cells = [cell(result).rjust(width) for _, width, cell in COLUMNS]
        counters = {
            key: lookup(result, key) for key in (*self.stop, result_keys.SECONDS)
        }
        recent = self._recent.setdefault(trial_id, deque(maxlen=_RECENT))
        recent.append({k: v for k, v in counters.items() if v is not None})
        if self._shows_left:
            left = duration(self._seconds_left(trial_id, result))
            cells.append(left.rjust(_LEFT_WIDTH))
        evaluation = _evaluation(result)
        if evaluation:
            self._held_out.setdefault(trial_id, [""])[1:] = [evaluation]
        return " ".join(cells) + (f"   eval {evaluation}" if evaluation else "")

    def _first_line(self, trial_id: str, result: dict[str, Any]) -> str:
        """Return the line of the evaluation before training, "" without one."""
        evaluation = _evaluation(result, first=True)
        if not evaluation:
            return ""
        self._held_out[trial_id] = [evaluation]
        widths = [width for _, width, _ in COLUMNS]
        widths += [_LEFT_WIDTH] if self._shows_left else []
        cells = [("-" if i else "0").rjust(width) for i, width in enumerate(widths)]
        return f"{' '.join(cells)}   eval {evaluation}   {self.begin}"

    def _first_and_last(self, trial: Trial) -> str:
        first, last = self._held_out[trial.trial_id]
        return f"{first} {self.begin}; {last} at the end" if first else last

    @property
    def _shows_left(self) -> bool:
        return bool(self.stop or self.time_budget_s)

    def _seconds_left(self, trial_id: str, result: dict[str, Any]) -> float | None:
        """Return the estimated seconds to the first bound; None: unknown."""
        recent = list(self._recent.get(trial_id, ()))
        seconds = [r[result_keys.SECONDS] for r in recent if result_keys.SECONDS in r]
        if not seconds:
            return None
        mean = sum(seconds) / len(seconds)
        ends = []
        for key, bound in self.stop.items():
            value, rise = recent[-1].get(key), _rise(key, recent, mean)
            if value is not None and rise:
                remaining = max(0, math.ceil((bound - value) / rise))
                ends.append(remaining * mean)
        if self.time_budget_s and self._began is not None:
            ends.append(max(0.0, self._began + self.time_budget_s - time.time()))
        return min(ends, default=None)

    def _leave(self, trial: Trial) -> None:
        if self._panel is not None:
            self._panel.end(trial.trial_id)

    def _check_expected(self, trial_id: str, result: dict[str, Any]) -> str:
        """Return the marker if all expectations are met for the first time."""
        if not self.expect or trial_id in self.reached:
            return ""
        for key, threshold in self.expect.items():
            value = lookup(result, key)
            if value is None or value < threshold:
                return ""
        self.reached[trial_id] = int(lookup(result, result_keys.ITERATION) or 0)
        return f"   expect {self._thresholds()} reached"

    def _thresholds(self) -> str:
        return ", ".join(
            f"{k.split('/', 1)[-1]} >= {v:g}" for k, v in self.expect.items()
        )

    def _expectation(self, trial_id: str) -> str:
        if trial_id not in self.reached:
            return f"{self._thresholds()} NOT reached"
        return f"{self._thresholds()} reached at iteration {self.reached[trial_id]}"

    def _print(self, text: str, style: str | None = None) -> None:
        # Looked up for every line: notebooks and test runners replace sys.stdout.
        stream = sys.stdout
        if self._panel is not None:
            from rich.text import Text

            self._panel.print(Text(text, style=style or ""))
            return
        if style and stream.isatty() and not os.environ.get("NO_COLOR"):
            from rich.console import Console
            from rich.text import Text

            Console(file=stream, soft_wrap=True).print(Text(text, style=style))
            return
        stream.write(text.encode("ascii", "replace").decode("ascii") + "\n")
        stream.flush()


def _grows(key: str) -> bool:
    """Return True if a result key grows with training."""
    return key in (result_keys.ITERATION, result_keys.SECONDS_TOTAL) or key.endswith(
        "_lifetime"
    )


def _rise(key: str, recent: list[dict[str, float]], seconds: float) -> float | None:
    """Return the growth of a counter per iteration; None: unknown."""
    if key == result_keys.ITERATION:
        return 1.0
    if key == result_keys.SECONDS_TOTAL:
        return seconds
    values = [r[key] for r in recent if key in r]
    if len(values) < 2:
        return None
    return (values[-1] - values[0]) / (len(values) - 1)


def _evaluation(result: dict[str, Any], *, first: bool = False) -> str:
    """Return the text of a result's evaluation, "" without one.

    Args:
        result: Result of an iteration.
        first: Whether to read the evaluation before training.
    """
    of = (result_keys.EVAL_RETURN, result_keys.EVAL_SUCCESS, result_keys.EVAL_EPISODES)
    of_first = (
        result_keys.FIRST_RETURN,
        result_keys.FIRST_SUCCESS,
        result_keys.FIRST_EPISODES,
    )
    ret, success, count = (lookup(result, key) for key in (of_first if first else of))
    if ret is None:
        return ""
    text = "" if success is None else f"success {success:.0%} "
    return f"{text}return {ret:.3f} (n={_number(count, '.0f')})"
