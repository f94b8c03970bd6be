"""Errors on a full disk."""

from __future__ import annotations

import errno
import pickle
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from rllib_llm.cli import failures
from rllib_llm.cli.failures import describe_full_disk


def wrapped(error):
    """Return an error with a cause, wrapped as Ray does."""
    outer = RuntimeError("a trial failed")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_errno_of_a_full_disk(number, tmp_path):
    error = wrapped(OSError(number, "No space"))
    message = describe_full_disk(error, tmp_path / "not" / "made" / "yet")
    assert "The disk is full" in message and f"free in {tmp_path}." in message


def test_empty_files_of_tune_on_a_full_disk(tmp_path, monkeypatch):
    for error in (EOFError("Ran out of input"), pickle.UnpicklingError("cut")):
        assert describe_full_disk(wrapped(error), tmp_path) is None
    monkeypatch.setattr(
        failures.shutil, "disk_usage", lambda _: SimpleNamespace(free=4096)
    )
    assert "0.0 MiB are free" in describe_full_disk(EOFError(), tmp_path)
    assert describe_full_disk(ValueError("else"), tmp_path) is None
    remote = RuntimeError("OSError: [Errno 28] No space left on device")
    assert describe_full_disk(remote, tmp_path) is not None


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 900 KiB; its size can be changed."""
    if shutil.which("mount") is None:
        pytest.skip("no mount command")
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        return subprocess.run(command, capture_output=True).returncode

    if mount("size=900k"):
        pytest.skip("may not mount a file system here")
    yield folder, mount
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_run_on_a_full_disk_fails_clearly_and_resumes(small_disk, call, tmp_path):
    from test_cli_runs import write

    from rllib_llm.runs import checkpoints

    folder, mount = small_disk
    path = write(tmp_path / "full.yaml", evaluation=None, expect=None)
    args = ("train", path, "--storage", folder, "stop.training_iteration=40")
    status, out, err = call(*args)
    assert status == 1, out
    assert "StorageError: The disk is full" in err and "Aborted" not in err
    (run,) = folder.glob("full_*")
    at = checkpoints.newest_checkpoint(next(run.glob("trial_*")))
    assert at is not None
    assert mount("remount,size=50m") == 0
    end = f"stop.training_iteration={checkpoints.number_of(at) + 3}"
    status, _, err = call("train", "--resume", run, end)
    assert status == 0, err
