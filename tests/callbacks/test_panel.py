"""The live panel on terminals and elsewhere."""

from __future__ import annotations

import io
import time

import pytest
from callback_helpers import make_result
from rich.console import Console
from test_progress_line import make_trial, play

from rllib_llm.monitoring import panel as module
from rllib_llm.monitoring.live import board
from rllib_llm.monitoring.panel import LivePanel, health_line
from rllib_llm.monitoring.progress_line import ProgressLine


class Notes:
    """Stand-in for the watcher."""

    def __init__(self):
        self.notes = []

    def read(self):
        """Return the notes."""
        return self.notes

    def close(self):
        """Do nothing."""


@pytest.fixture
def notes(monkeypatch):
    found = Notes()
    monkeypatch.setattr(module, "Watcher", lambda: found)
    return found


def shown(panel):
    console = Console(file=io.StringIO(), width=160)
    console.print(panel.render())
    return console.file.getvalue()


def algorithm(**note):
    return "t_0", board.ALGORITHM, {"at": time.time() - 5, **note}


def test_a_trial_shows_its_phase_and_its_episodes(notes):
    panel = LivePanel(total_iterations=50)
    panel.begin("t_0")
    assert "iteration 1/50" in shown(panel) and "starting" in shown(panel)
    now = time.time()
    notes.notes = [
        algorithm(phase="sampling", iteration=3, episodes=64),
        ("t_0", "train_1", {"at": now, "done": 10, "tasks": 32, "stall": None}),
        ("t_0", "train_2", {"at": now, "done": 5, "tasks": 32, "stall": None}),
        ("t_0", "eval_1", {"at": now, "done": 7, "tasks": 9, "stall": None}),
        ("t_0", "train_3", {"at": now - 60, "done": 9, "tasks": 9, "stall": None}),
        ("elsewhere", board.ALGORITHM, {"at": now}),
    ]
    text = shown(panel)
    assert "iteration 3/50" in text and "sampling" in text
    assert "15/64 episodes" in text  # not of another phase, nor of the one before
    notes.notes = [algorithm(phase="updating", iteration=3)]
    assert "updating" in shown(panel) and "episodes" not in shown(panel)


def test_stalls_are_shown(notes):
    panel = LivePanel()
    panel.begin("t_0")
    stall = "no turn finished for 70 s"
    notes.notes = [
        algorithm(phase="sampling", iteration=1),
        ("t_0", "train_0", {"at": 0, "done": 0, "tasks": 1, "stall": stall}),
    ]
    assert "stalled: no turn finished for 70 s" in shown(panel)


def test_results_add_time_left_and_health(notes):
    panel = LivePanel(total_iterations=50)
    result = make_result(3)
    result["alarms"] = {"kl": 1, "nan": 0, "num_rollbacks": 1}
    panel.update("t_0", result, left=90.0)
    text = shown(panel)
    assert "left 1:" in text and "KL 0.0100 ok" in text and "entropy 1.500 ok" in text
    assert "alarms: kl\n" in text.replace(" \n", "\n").rstrip(" ") + "\n"
    assert "iteration 4/50" in text


def test_states_have_colours():
    line = health_line(make_result(1, invalid_action_frac=0.9))
    styles = {line.plain[s.start : s.end]: str(s.style) for s in line.spans}
    assert styles == {"ok": "green", "bad": "bold red"}


def test_a_sweep_names_trials_and_counts_the_rest(notes):
    panel = LivePanel()
    for number in range(8):
        panel.begin(f"t_{number}")
    text = shown(panel)
    assert "t_0 " in text and "t_7" not in text and "and 2 more trials" in text
    panel.end("t_0")
    assert "and 1 more trials" in shown(panel)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_lines_are_printed_above_the_panel(notes, monkeypatch, capsys, no_color):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    progress = ProgressLine(stop={"training_iteration": 9})
    progress.setup()
    trial = make_trial()
    progress.on_trial_start(0, [trial], trial)
    result = make_result(1)
    result["alarms"] = {"kl": 1, "messages": "alarm kl: too far", "stopped_by": "kl"}
    play(progress, [result], [trial])
    trial.last_result = result
    progress.on_trial_complete(0, [trial], trial)
    progress.on_experiment_end([trial])
    text = capsys.readouterr().out
    assert "entropy" in text and "alarm kl: too far" in text
    assert "stopped by:  alarm kl" in text
    assert ("\x1b[31m" in text) is not bool(no_color)
    assert text.endswith("\n") and progress._panel is None


def test_without_a_terminal_only_lines_are_printed(notes, capsys):
    progress = ProgressLine(stop={"training_iteration": 9})
    progress.setup()
    result = make_result(1)
    result["alarms"] = {"messages": "alarm kl: one\nalarm nan: two"}
    play(progress, [result])
    lines = capsys.readouterr().out.splitlines()
    assert progress._panel is None and "\x1b" not in "".join(lines)
    assert lines[2:] == ["alarm kl: one", "alarm nan: two"]


def test_a_dumb_terminal_gets_lines_only(notes, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    progress = ProgressLine()
    progress.setup()
    assert progress._panel is None
