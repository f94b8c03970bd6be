"""Runs stopped by a signal, and runs locked by another process."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from started_runs import started
from test_cli_runs import results, write

from rllib_llm.runs import checkpoints

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


def test_sigterm_saves_and_a_living_run_is_not_resumed(call, tmp_path):
    path = write(
        tmp_path / "stopped.yaml",
        evaluation=None,
        expect=None,
        tune={"checkpoint_frequency": 100_000},
    )
    endless = ("train", path, "--storage", tmp_path, "stop.training_iteration=100000")
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with started(*endless, text=True, **pipes) as process:
        deadline = time.monotonic() + 180
        for line in process.stdout:
            assert time.monotonic() < deadline
            if line.split()[:1] == ["2"]:
                break
        (run,) = tmp_path.glob("stopped_*")
        status, _, err = call("train", "--resume", run, "stop.training_iteration=9")
        assert status == 1
        assert f"is being trained by process {process.pid} on" in err
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 143, out + err
    assert "SIGTERM: stopped before the end. Saved: " in err
    (trial,) = run.glob("trial_*")
    checkpoint = checkpoints.newest_checkpoint(trial)
    at = max(results(run))
    assert checkpoint is not None and at >= 2
    end = f"stop.training_iteration={at + 1}"
    status, _, err = call("train", "--resume", run, end)
    assert status == 0, err
    assert sorted(results(run)) == list(range(1, at + 2))
