"""Tune loggers for results (JSON), transcripts (JSONL) and TensorBoard."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.fs
from ray.air.constants import EXPR_RESULT_FILE
from ray.rllib.utils.annotations import override
from ray.tune.logger import JsonLoggerCallback, LoggerCallback, TBXLoggerCallback
from ray.tune.utils.util import flatten_dict
from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from rllib_llm.callbacks import result_keys
from rllib_llm.callbacks.histograms import (
    LIMITS,
    Histogram,
    pop_histograms,
    read_histograms,
    without_histograms,
)
from rllib_llm.callbacks.result_keys import ITERATION
from rllib_llm.transcripts.collector import (
    pop_transcripts,
    read_result,
    without_transcripts,
)
from rllib_llm.transcripts.reader import TRANSCRIPTS_FILE
from rllib_llm.transcripts.selection import GROUP_MATE

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

_SIMPLE = (bool, int, float, str)
# Metrics in TensorBoard's HParams tab.
_HPARAM_METRICS = (
    result_keys.RETURN,
    result_keys.SUCCESS,
    result_keys.EVAL_RETURN,
    result_keys.EVAL_SUCCESS,
    ITERATION,
)


class TranscriptLogger(LoggerCallback):
    """Writes each trial's transcripts to ``transcripts.jsonl`` in its folder.

    It also removes them and histograms from the result, so that result.json,
    progress.csv, Tune's state and other loggers get numbers only. Tune passes the same
    dictionary to all callbacks in order, its own loggers last, so this callback must
    come after every other that reads transcripts or histograms.
    """

    _SAVED_FILE_TEMPLATES = [TRANSCRIPTS_FILE]

    @override(LoggerCallback)
    def log_trial_start(self, trial: Trial) -> None:
        """Restore the transcripts of a resumed trial, or begin an empty file."""
        trial.init_local_path()
        if not stores_locally(trial):
            self._restore_from_remote(TRANSCRIPTS_FILE, trial)
        elif not trial.checkpoint:
            Path(live_folder(trial), TRANSCRIPTS_FILE).unlink(missing_ok=True)

    @override(LoggerCallback)
    def log_trial_result(
        self, iteration: int, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Append this iteration's records."""
        records = pop_transcripts(result)
        pop_histograms(result)
        if not records:
            return
        # Reopened every time: Tune pickles callbacks, and readers see complete lines.
        path = Path(live_folder(trial), TRANSCRIPTS_FILE)
        with path.open("a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


class LiveJsonLogger(JsonLoggerCallback):
    """Tune's JSON logger, writing into the run folder at once.

    Tune's own writes to a temporary folder that it copies every few seconds, whereas
    checkpoints go to the run folder directly. After a kill, a checkpoint could then be
    newer than the last row of ``result.json``, and a resumed run lacked those rows.
    Tune does not add its own logger if this one is given.
    """

    @override(JsonLoggerCallback)
    def log_trial_start(self, trial: Trial) -> None:
        """Open the file; a trial without a checkpoint begins an empty one."""
        if not stores_locally(trial):
            super().log_trial_start(trial)
            return
        if trial in self._trial_files:
            self._trial_files[trial].close()
        trial.init_local_path()
        self.update_config(trial, trial.config)
        path = Path(live_folder(trial), EXPR_RESULT_FILE)
        mode = "a" if trial.checkpoint else "w"
        self._trial_files[trial] = path.open(mode, encoding="utf-8")


class TranscriptTensorBoard(TBXLoggerCallback):
    """Tune's TensorBoard logger, with transcripts, histograms and hyperparameters.

    Tune does not add its own TensorBoard logger if a TBXLoggerCallback is given, so
    scalars are written once.

    Args:
        hyperparameters: Settings of the run by their dotted names, for the HParams tab
            in addition to the searched ones.
    """

    def __init__(self, hyperparameters: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._hyperparameters = dict(hyperparameters or {})

    @override(TBXLoggerCallback)
    def log_trial_start(self, trial: Trial) -> None:
        """Open the file in the run folder, where TensorBoard shows it during the run.

        Tune would write to a temporary folder that it copies only now and then.
        """
        if trial in self._trial_writer:
            self._trial_writer[trial].close()
        trial.init_local_path()
        # The writer's thread may write after flush() returned; a short interval bounds
        # what a kill can lose.
        self._trial_writer[trial] = SummaryWriter(live_folder(trial), flush_secs=2)
        self._trial_result[trial] = {}

    @override(TBXLoggerCallback)
    def log_trial_result(
        self, iteration: int, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Write scalars, histograms, and one text per split and kind of transcript."""
        bare = without_histograms(without_transcripts(result))
        super().log_trial_result(iteration, trial, bare)
        texts: dict[str, list[str]] = defaultdict(list)
        for record in read_result(result):
            if record["selected_as"] == GROUP_MATE:
                continue  # their texts would be most of the file
            tag = f"transcripts/{record['split']}/{record['selected_as']}"
            texts[tag].append(to_markdown(record))
        writer = self._trial_writer[trial]
        for tag, parts in texts.items():
            writer.add_text(tag, "\n\n---\n\n".join(parts), result[ITERATION])
        histograms = read_histograms(result)
        for tag, histogram in histograms.items():
            _add_histogram(writer, tag, histogram, result[ITERATION])
        if texts or histograms:
            writer.flush()

    @override(TBXLoggerCallback)
    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        """Write hyperparameters, also for a run without a search."""
        # The parent class calls _try_log_hparams only for trials of a search.
        if trial in self._trial_writer and not trial.evaluated_params:
            self._try_log_hparams(trial, self._trial_result[trial])
        super().log_trial_end(trial, failed)

    @override(TBXLoggerCallback)
    def _try_log_hparams(self, trial: Trial, result: dict[str, Any]) -> None:
        searched = flatten_dict(trial.evaluated_params, delimiter="/")
        settings = {**self._hyperparameters, **searched}
        settings = {k: v for k, v in settings.items() if isinstance(v, _SIMPLE)}
        shown = [f"ray/tune/{key}" for key in _HPARAM_METRICS]
        metrics = {key: float(result[key]) for key in shown if key in result}
        if settings and metrics:
            writer = self._trial_writer[trial].file_writer
            for summary in hparams(settings, metrics):
                writer.add_summary(summary)


def stores_locally(trial: Trial) -> bool:
    """Return True if the run folder is on a file system of this machine."""
    return isinstance(trial.storage.storage_filesystem, pyarrow.fs.LocalFileSystem)


def live_folder(trial: Trial, *, of_run: bool = False) -> str:
    """Return the folder with a trial's results and TensorBoard files during the run.

    A trial's folder is created.

    Args:
        trial: The trial.
        of_run: Whether to return the folder of the whole run.
    """
    storage = trial.storage
    local = stores_locally(trial)
    if of_run:
        return storage.experiment_fs_path if local else trial.local_experiment_path
    if local:
        Path(storage.trial_fs_path).mkdir(parents=True, exist_ok=True)
    return storage.trial_fs_path if local else trial.local_path


class NoTensorBoard(TBXLoggerCallback):
    """Replaces Tune's TensorBoard logger and writes nothing."""

    @override(TBXLoggerCallback)
    def log_trial_start(self, trial: Trial) -> None:
        """Do not open a file."""

    @override(TBXLoggerCallback)
    def log_trial_result(
        self, iteration: int, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Write nothing."""


def _add_histogram(
    writer: SummaryWriter, tag: str, histogram: Histogram, step: int
) -> None:
    filled = np.flatnonzero(histogram.counts)
    # With an empty bucket on each side; otherwise TensorBoard draws from minus
    # infinity.
    chosen = range(max(0, filled[0] - 1), min(len(LIMITS), filled[-1] + 2))
    limits = [min(float(LIMITS[i]), np.finfo(np.float64).max) for i in chosen]
    writer.add_histogram_raw(
        tag,
        min=histogram.low,
        max=histogram.high,
        num=int(histogram.counts.sum()),
        sum=histogram.total,
        sum_squares=histogram.squares,
        bucket_limits=limits,
        bucket_counts=[int(histogram.counts[i]) for i in chosen],
        global_step=step,
    )


def to_markdown(record: dict[str, Any]) -> str:
    """Return a transcript record as Markdown."""
    lines = [
        f"**return {record['return']:g}** | success {record['success']} | "
        f"stop {record['stop_reason']} | {record['num_turns']} turns | "
        f"group {record['group_id']}, rollout {record['rollout']}, "
        f"seed {record['seed']}"
    ]
    expected = 0
    for turn in record["turns"]:
        if turn["turn"] != expected:
            lines.append(f"*{turn['turn'] - expected} turns omitted*")
        expected = turn["turn"] + 1
        notes = [f"{turn['tokens']} tokens", f"reward {turn['reward']:g}"]
        if turn["logp_mean"] is not None:
            notes.append(f"mean logp {turn['logp_mean']:.2f}")
        if turn["finish"] != "stop":
            notes.append(f"ended by {turn['finish']}")
        if turn["invalid"]:
            notes.append("no valid action")
        lines += ["environment:", _fenced(turn["observation"])]
        lines += [f"model ({', '.join(notes)}):", _fenced(turn["completion"])]
    lines += ["environment:", _fenced(record["final_observation"])]
    return "\n\n".join(lines)


def _fenced(text: str) -> str:
    """Return the text in a code fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
