"""The lock of a run folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from rllib_llm.errors import ConfigError
from rllib_llm.recipes.locking import HoldRunLock, run_lock

_HOLD = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from rllib_llm.recipes.locking import run_lock\n"
    "with run_lock(Path(sys.argv[1])):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(600)\n"
)


def test_lock_of_another_process_is_respected_until_it_dies(tmp_path):
    run = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(run)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        message = rf"{run} is being trained by process {holder.pid} on \S+ since 20"
        for _ in range(2):  # asking changes nothing
            with pytest.raises(ConfigError, match=message), run_lock(run):
                raise AssertionError("both hold it")
        with pytest.raises(ConfigError, match="start a run with another name"):
            HoldRunLock(run).setup()
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with run_lock(run):
        pass


def test_the_lock_is_reentrant_within_a_process(tmp_path):
    check = (
        "import sys\n"
        "from filelock import FileLock, Timeout\n"
        "try:\n"
        "    FileLock(sys.argv[1]).acquire(timeout=0)\n"
        "except Timeout:\n"
        "    sys.exit(7)\n"
    )

    def is_held():
        lock = str(tmp_path / "run.lock")
        return subprocess.run([sys.executable, "-c", check, lock]).returncode == 7

    callback = HoldRunLock(tmp_path)
    with run_lock(tmp_path):
        callback.setup()
        assert is_held()
    assert is_held()
    callback.on_experiment_end([])
    assert not is_held()


def test_a_second_run_in_a_folder_does_not_touch_its_recipe(tmp_path):
    from rllib_llm.recipes import recipe_from_dict
    from rllib_llm.recipes.tuning import make_tuner

    run = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(run)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        recipe = recipe_from_dict(
            {
                "algo": "LLMPPO",
                "env": "guess_number-v0",
                "stop": {"training_iteration": 1},
            }
        )
        with pytest.raises(ConfigError, match="is being trained by"):
            make_tuner(recipe, tmp_path, run_name="run", callbacks=[])
        assert not (run / "recipe.yaml").exists()
    finally:
        holder.kill()
        holder.wait()
