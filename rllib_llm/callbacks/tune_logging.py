"""Tune loggers: transcripts as JSONL beside result.json, and as TensorBoard text."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.utils.annotations import override
from ray.tune.logger import LoggerCallback, TBXLoggerCallback

from rllib_llm.callbacks.keys import ITERATION
from rllib_llm.callbacks.transcripts import (
    pop_transcripts,
    read_result,
    without_transcripts,
)
from rllib_llm.results.transcripts import TRANSCRIPTS_FILE

if TYPE_CHECKING:
    from ray.tune.experiment import Trial


class TranscriptLogger(LoggerCallback):
    """Writes each trial's transcripts to ``transcripts.jsonl`` in its folder.

    Also takes them out of the result, so that result.json, progress.csv and Tune's own
    state stay small. Tune hands one result to all callbacks in turn, its own loggers
    last: put this one after everything that reads transcripts.
    """

    _SAVED_FILE_TEMPLATES = [TRANSCRIPTS_FILE]

    @override(LoggerCallback)
    def log_trial_start(self, trial: Trial) -> None:
        """Bring back what a resumed trial wrote before."""
        trial.init_local_path()
        self._restore_from_remote(TRANSCRIPTS_FILE, trial)

    @override(LoggerCallback)
    def log_trial_result(
        self, iteration: int, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Append this iteration's records."""
        records = pop_transcripts(result)
        if not records:
            return
        # Opened anew each time: callbacks must stay picklable, and readers see it all.
        path = Path(trial.local_path, TRANSCRIPTS_FILE)
        with path.open("a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


class TranscriptTensorBoard(TBXLoggerCallback):
    """Tune's TensorBoard logger, with transcripts in the Text tab.

    A user-supplied TBXLoggerCallback replaces Tune's own, so scalars are written once.
    """

    @override(TBXLoggerCallback)
    def log_trial_result(
        self, iteration: int, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Write scalars as ever, then one text per split and kind of pick."""
        super().log_trial_result(iteration, trial, without_transcripts(result))
        texts: dict[str, list[str]] = defaultdict(list)
        for record in read_result(result):
            tag = f"transcripts/{record['split']}/{record['picked']}"
            texts[tag].append(to_markdown(record))
        writer = self._trial_writer[trial]
        for tag, parts in texts.items():
            writer.add_text(tag, "\n\n---\n\n".join(parts), result[ITERATION])
        if texts:
            writer.flush()


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
            lines.append(f"*{turn['turn'] - expected} turns left out*")
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
    """Put text into a code fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
