"""The commands ``sweep report``, ``plot`` and ``compare``."""

from __future__ import annotations

import builtins
import json

import pytest
from run_builder import RETURN, write_run


@pytest.fixture
def run(tmp_path):
    trials = [
        ({"lr": lr, "seed": seed}, [0.1, lr + seed])
        for lr in (0.1, 0.2)
        for seed in (0, 1)
    ]
    return write_run(tmp_path / "sweep", trials, searched=["lr", "seed"])


def test_the_report_is_a_table_in_ascii(call, run):
    status, out, err = call("sweep", "report", run)
    assert status == 0, err
    assert out.isascii()
    lines = [line.split() for line in out.splitlines() if line]
    assert lines[0][:5] == ["sweep:", "2", "settings,", "4", "trials,"]
    assert lines[1] == ["#", "lr", "final", "best", "seeds", "iterations", "state"]
    assert lines[2][:5] == ["1", "0.2", "0.7", "+-", "6.4"]
    assert lines[3][:5] == ["2", "0.1", "0.6", "+-", "6.4"]
    assert "effects (share" in out and "seed" in out


def test_the_report_as_json(call, run):
    status, out, _ = call("sweep", "report", "sweep", "--storage", run.parent, "--json")
    report = json.loads(out)
    assert status == 0 and report["metric"] == RETURN
    best = report["settings"][0]
    assert best["params"] == {"lr": 0.2} and best["seeds"] == [0, 1]
    assert best["curve"][1] == {
        "iteration": 2,
        "mean": pytest.approx(0.7),
        "low": pytest.approx(0.7 - 6.3531, abs=1e-3),
        "high": pytest.approx(0.7 + 6.3531, abs=1e-3),
        "n": 2,
    }


def test_curves_are_drawn(call, run, tmp_path):
    pytest.importorskip("matplotlib")
    status, out, err = call("plot", run, "--out", tmp_path / "a.png")
    assert status == 0 and "2 curves" in out and "lr=0.1  (2 trials)" in out, err
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    status, out, _ = call("sweep", "report", run, "--plot", tmp_path / "b.svg")
    assert status == 0 and "<svg" in (tmp_path / "b.svg").read_text()
    status, _, err = call("plot", run, "--out", tmp_path / "a.xyz")
    assert status == 1 and "must end in .png" in err


def test_plot_without_matplotlib_names_the_extra(call, run, monkeypatch):
    imported = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    status, _, err = call("plot", run)
    assert status == 1 and "rllib-llm[plots]" in err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["sweep", "report", "/no/such"], "does not exist"),
        (["sweep", "report", ".", "--metric", "x"], "does not contain a trial"),
        (["compare", ".", "."], "does not contain a trial"),
    ],
)
def test_errors_name_the_remedy(call, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = call(*arguments)
    assert status == 1 and message in err


def test_recipes_and_results_are_compared_without_playing(call, run, tmp_path):
    other = write_run(tmp_path / "other", [({}, [0.3])], {"training": {"lr": 3}})
    status, out, err = call("compare", run, other, "--episodes", 0)
    assert status == 0 and out.isascii(), err
    rows = [line.split() for line in out.splitlines()]
    assert ["training.lr", "None", "3"] in rows
    assert [RETURN, "0.65", "+-", "0.92", "0.3"] in rows
    status, out, _ = call("compare", run, other, "--episodes", 0, "--json")
    assert json.loads(out)["settings"] == {"training.lr": [None, 3]}
    game = write_run(tmp_path / "game", [({}, [0.3])], {"env_config": {"size": 5}})
    status, _, err = call("compare", run, game)
    assert status == 1 and "do not play the same tasks" in err
