"""Parsing, help and errors of the command line, without training."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rllib_llm.cli.failures import describe
from rllib_llm.errors import EnvContractError
from rllib_llm.recipes import shipped_recipes
from rllib_llm.version import __version__

VERBS = (
    "train",
    "evaluate",
    "play",
    "init",
    "export",
    "list",
    "check",
    "doctor",
    "plot",
    "sweep",
    "compare",
    "view",
)


def test_help_names_every_verb(call):
    status, out, _ = call("--help")
    assert status == 0 and all(verb in out for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_have_help(call, verb):
    status, out, _ = call(verb, "--help")
    assert status == 0 and "Usage" in out


def test_version(call):
    assert call("--version") == (0, f"rllib-llm {__version__}\n", "")


def test_help_does_not_import_heavy_packages():
    code = (
        "import sys\n"
        "from rllib_llm.cli.main import main\n"
        "try:\n    main(['train', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'ray', 'transformers', 'gymnasium'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_list_shows_all_kinds(call):
    status, out, _ = call("list")
    assert status == 0
    for name in ("GRPO", "LLMPPO", "frozen_lake-v0", *shipped_recipes()):
        assert name in out
    assert "LLMPPO" not in call("list", "envs")[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["list", "algorithm"], "Did you mean 'algorithms'"),
        (["train"], "The recipe is missing"),
        (["train", "seed=3"], "The recipe is missing"),
        (["train", "frozen_lake_pp"], "Did you mean 'frozen_lake_ppo'"),
        (["train", "frozen_lake_ppo", "training.lrr=3"], "Did you mean 'lr'"),
        (["train", "--resume", "/no/such/run"], "does not exist"),
        (["evaluate", "/no/such/run"], "does not exist"),
        (["evaluate", "x", "--greedy", "--both"], "exclude each other"),
        (["evaluate", "x", "--greedy", "--samples", "2"], "same every time"),
        (["evaluate", "x", "--env", ":size=4"], "does not name an environment"),
        (["init", "enf", "mine"], "Did you mean 'env'"),
        (["init", "env", "Mine"], "lower-case"),
        (["export", "/no/such/run", "/no/such/export"], "does not exist"),
        (["check", "frozen_lak-v0"], "Did you mean 'frozen_lake-v0'"),
        (["check", "frozen_lake-v0", "sise=4"], "Did you mean 'size'"),
        (["check", "frozen_lake-v0", "--model", "tiny"], "checkpoint folder"),
    ],
)
def test_errors_exit_with_status_1_and_a_remedy(call, arguments, message):
    status, _, err = call(*arguments)
    assert status == 1 and message in err and "Traceback" not in err


def test_check_reports_an_environment(call):
    status, out, _ = call("check", "guess_number-v0", "upper=7")
    assert status == 0 and "guess_number-v0: ok" in out and "expert_success" in out


def test_as_test_requires_expectations(call, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "{algo: LLMPPO, env: bandit_probe-v0, stop: {training_iteration: 1}}"
    )
    status, _, err = call("train", str(path), "--as-test")
    assert status == 1 and "'expect'" in err


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_dry_runs(call, name):
    status, out, err = call("train", name, "--dry-run")
    if status and "pip install 'rllib-llm[" in err:
        pytest.skip(err)  # its environment requires an optional package
    assert status == 0, err
    for part in ("per iteration", "tokens", "updates", "parameters", "memory"):
        assert part in out
    assert "nothing was trained" in out


def test_root_cause_of_wrapped_errors():
    class Wrapper(Exception):
        pass

    wrapped = Wrapper("many lines")
    wrapped.cause = EnvContractError("Rewards must be finite.")
    assert describe(wrapped) == "EnvContractError: Rewards must be finite."
    printed = Wrapper(
        "trace\n  File x\nrllib_llm.errors.EnvContractError: Rewards must be finite."
    )
    assert describe(printed) == "EnvContractError: Rewards must be finite."
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise Wrapper("outer") from error
    except Wrapper as error:
        assert describe(error).startswith("KeyError: 'inner' (")
