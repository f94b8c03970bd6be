"""Projects written by ``rllib-llm init`` are valid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rllib_llm.errors import ConfigError
from rllib_llm.templates import KINDS, write_template


@pytest.mark.parametrize(
    "kind, name, message",
    [
        ("enf", "mine", "Did you mean 'env'"),
        ("env", "My", "must be a valid module name"),
        ("env", "lambda", "must be a valid module name"),
        ("env", "7up", "must be a valid module name"),
        ("env", "json", "is taken"),
    ],
)
def test_invalid_names_are_rejected(kind, name, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        write_template(kind, name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "test_my_thing.py").write_text("mine")
    with pytest.raises(ConfigError, match="does not overwrite"):
        write_template("env", "my_thing", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["test_my_thing.py"]


def test_files_are_small(tmp_path):
    sizes = {}
    for kind in KINDS:
        module, *_ = write_template(kind, f"my_{kind}", tmp_path / "new")
        sizes[kind] = len(module.read_text().splitlines())
        assert "$" not in module.read_text()
    assert sizes["env"] <= 60 and sizes["reward"] <= 10 and sizes["algorithm"] <= 40


def test_files_pass_the_linter(tmp_path):
    pytest.importorskip("ruff")
    for kind in KINDS:
        write_template(kind, f"my_{kind}", tmp_path)
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--select", "E,F,I,UP,B,SIM,C4,RUF", "--line-length", "88"]
    for command in (["check", *rules], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *command, "."], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


def run(folder: Path, *command: str) -> str:
    path = f"{Path(__file__).parents[2]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


COMMAND = "from rllib_llm.cli.main import main; main()"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_written_projects_run(kind, tmp_path):
    """Run its tests, the check, a dry run and one training iteration."""
    name = f"my_{kind}"
    # As the console script begins: without the current folder on the path.
    command = ["-P", "-c", COMMAND]
    run(tmp_path, *command, "init", kind, name)
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{name}.py")
    if kind == "env":
        assert ": ok" in run(tmp_path, *command, "check", f"{name}:MyEnv")
    assert "All checks passed" in run(
        tmp_path, *command, "train", f"{name}.yaml", "--dry-run"
    )
    small = ("stop.training_iteration=1", "sft.demonstrations=16")
    storage = ("--storage", str(tmp_path / "runs"))
    run(tmp_path, *command, "train", f"{name}.yaml", *small, *storage)
