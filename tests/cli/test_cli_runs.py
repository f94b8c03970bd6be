"""Commands on real runs: train, evaluate, export, resume, failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from ray.rllib.core import DEFAULT_MODULE_ID
from started_runs import started, wait_for_checkpoint

from rllib_llm import weights, yaml_io
from rllib_llm.runs import checkpoints
from rllib_llm.runs import folders as runs

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
RECIPE = {
    "algo": "LLMPPO",
    "env": "copy_probe-v0",
    "language_model": {"tiny": TINY},
    "generation": {"max_new_tokens": 3},
    "rollouts": {"episodes_per_iteration": 8},
    "training": {"lr": 1e-3, "minibatch_size": 4},
    "evaluation": {"evaluation_interval": 1, "evaluation_duration": 4},
    "env_runners": {"num_envs_per_env_runner": 8},
    "stop": {"training_iteration": 2},
    "expect": {
        "env_runners/episode_return_mean": {"min": 0, "max": 1},
        "evaluation/env_runners/success_rate": 0,
    },
    "tune": {"checkpoint_frequency": 1},
}
# Numbers that depend on every weight and every sampled token.
TELLING = (
    ("env_runners", "episode_return_mean"),
    ("env_runners", "num_completion_tokens"),
    ("learners", "default_policy", "policy_loss"),
    ("learners", "default_policy", "entropy"),
    ("learners", "default_policy", "grad_norm"),
)


def write(path, **changes):
    path.write_text(yaml_io.dump({**RECIPE, **changes}))
    return path


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def after_sft(storage, ray_session):
    """A run of two iterations after SFT."""
    from rllib_llm.cli.implementation.train import train

    settings = {"demonstrations": 8, "epochs": 1, "minibatch_size": 4}
    path = write(storage / "probe.yaml", sft=settings)
    options = {"resume": None, "dry_run": False, "verbose": False, "storage": storage}
    assert train([str(path)], as_test=True, **options) == 0
    (run,) = storage.glob("probe_*")
    return run


def results(run):
    """Return all reported results of a run's only trial, by iteration."""
    (path,) = run.glob("trial_*/result.json")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["training_iteration"]: row for row in rows}


def pick(result, key):
    for part in key:
        result = result[part]
    return result


def test_a_run_writes_its_documented_files(after_sft):
    (trial,) = after_sft.glob("trial_*")
    assert checkpoints.newest_checkpoint(trial) is not None
    assert sorted(results(after_sft)) == [1, 2]
    assert (trial / "transcripts.jsonl").is_file()
    page = (after_sft / "transcripts.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "@DATA@" not in page
    assert any(trial.glob("events.out.tfevents*"))
    stored = runs.stored_recipe(after_sft)
    assert stored["env"] == "copy_probe-v0" and "torch" in stored["versions"]


def test_evaluate_gives_an_interval_and_repeats(call, after_sft):
    args = ("evaluate", after_sft, "--episodes", 12, "--json")
    first, again = call(*args), call(*args)
    assert first[0] == 0
    output = json.loads(first[1])
    (result,) = output["evaluations"]
    assert result["episodes"] == 12 and output["iteration"] == 2
    success = result["success"]
    assert success["low"] <= success["mean"] <= success["high"]
    assert output == json.loads(again[1])
    status, out, _ = call("evaluate", after_sft.name, "--storage", after_sft.parent)
    assert status == 0 and "95% interval" in out


def test_evaluate_samples_elsewhere_and_writes_outcomes(call, after_sft, tmp_path):
    file = tmp_path / "outcomes.json"
    elsewhere = ("--env", "bandit_probe-v0", "--env", "copy_probe-v0:words=2")
    how = ("--episodes", 5, "--samples", 3, "--both", "--out", file)
    status, out, err = call("evaluate", after_sft, *elsewhere, *how)
    assert status == 0 and out.count("pass@3") == 2, err
    output = json.loads(file.read_text())["evaluations"]
    assert [(e["env"], e["greedy"]) for e in output] == [
        (env, greedy)
        for env in ("bandit_probe-v0", "copy_probe-v0")
        for greedy in (True, False)
    ]
    assert [len(e["outcomes"]) for e in output] == [5, 15, 5, 15]
    assert output[3]["env_config"] == {"words": 2}
    for evaluation in output:
        returns = [o["episode_return"] for o in evaluation["outcomes"]]
        assert np.mean(returns) == pytest.approx(evaluation["episode_return"]["mean"])


def test_evaluate_searches_beside_plain_sampling(call, after_sft, tmp_path):
    file = tmp_path / "search.json"
    searches = ("--search", "mcts:simulations=4,width=2", "--search", "best_of:n=3")
    args = ("evaluate", after_sft, "--episodes", 4, *searches)
    status, out, err = call(*args, "--out", file)
    assert status == 0, err
    assert "best_of, oracle" in out and out.isascii()
    output = json.loads(file.read_text())
    assert output["mcts"]["simulations"] == 4
    (result,) = output["searches"]
    rows = {row["name"]: row for row in result["rows"]}
    assert rows["best_of, logp"]["episodes"] == 3
    assert rows["mcts"]["success"]["tasks"] == len(result["outcomes"]["mcts"]) == 4
    assert json.loads(call(*args, "--json")[1])["searches"][0]["rows"] == result["rows"]
    for option in ("--greedy", "--both"):
        status, _, err = call(*args, option)
        assert status == 1 and f"{option} has no effect with --search" in err
    status, _, err = call("evaluate", "--search", "mcts")
    assert status == 1 and "--search needs RUN" in err


def test_play_shows_what_evaluate_counts(call, after_sft, tmp_path):
    file = tmp_path / "outcomes.json"
    how = ("--episodes", 3, "--sampled", "--out", file)
    assert call("evaluate", after_sft, *how)[0] == 0
    (output,) = json.loads(file.read_text())["evaluations"]
    args = ("play", "copy_probe-v0", after_sft, "--episodes", 3)
    status, out, err = call(*args)
    assert status == 0, err
    shown = [line for line in out.splitlines() if ": return " in line]
    for outcome, line in zip(output["outcomes"], shown, strict=True):
        assert f": return {outcome['episode_return']:g}," in line


def test_a_loaded_policy_does_not_require_ray(after_sft):
    code = (
        "import ray, sys\n"
        "from rllib_llm import LLMPolicy\n"
        "policy = LLMPolicy.from_checkpoint(sys.argv[1])\n"
        "first, again = (policy.chat('Say yes', seed=3) for _ in range(2))\n"
        "assert first == again and isinstance(first, str)\n"
        "assert not ray.is_initialized()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(after_sft)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_export_loads_with_the_auto_classes(call, after_sft, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "exported"
    status, stdout, err = call("export", after_sft, out)
    assert status == 0 and "loaded back" in stdout, err
    model = AutoModelForCausalLM.from_pretrained(out)
    assert len(AutoTokenizer.from_pretrained(out)) == model.config.vocab_size
    assert [p.name for p in tmp_path.iterdir()] == ["exported"]
    (tmp_path / "new").write_text("")
    access = {p.stat().st_mode for p in (*out.iterdir(), tmp_path / "new")}
    assert len(access) == 1  # these have the permissions of new files
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "| training iterations | 2 |" in card and "`copy_probe-v0`" in card
    assert "trained from | tiny" in card
    status, _, err = call("export", after_sft, out)
    assert status == 1 and "exists" in err
    status, _, err = call("export", after_sft, tmp_path / "x", "--private")
    assert status == 1 and "no effect without --push" in err
    status, _, err = call("export", after_sft, tmp_path / "x", "--adapter")
    assert status == 1 and "without LoRA" in err


def test_a_finished_run_continues_when_stop_is_raised(call, after_sft):
    status, out, _ = call("train", "--resume", after_sft)
    assert status == 0 and "Nothing to do" in out
    longer = ("stop.training_iteration=3",)
    status, _, err = call("train", "--resume", after_sft, *longer)
    assert status == 0, err
    assert sorted(results(after_sft)) == [1, 2, 3]


def test_a_changed_recipe_is_not_resumed(call, after_sft):
    status, _, err = call("train", "--resume", after_sft, "training.lr=1", "seed=4")
    assert status == 1 and "differs in seed, training.lr" in err


def test_an_unmet_expectation_exits_with_status_1(call, storage):
    bound = {
        "env_runners/episode_return_mean": 2.0,
        "learners/default_policy/ref_kl": 0,
    }
    path = write(storage / "hopeless.yaml", expect=bound)
    args = ("train", path, "--storage", storage, "stop.training_iteration=1")
    status, out, _ = call(*args, "--as-test")
    assert status == 1 and "FAILED" in out and "not reported" in out
    assert call(*args)[0] == 0  # only --as-test judges


def test_a_failing_trial_prints_its_first_error_last(call, storage, tmp_path):
    module = tmp_path / "nan_reward_env.py"
    module.write_text(
        "from rllib_llm.envs import TextEnv, TurnResult\n"
        "class NanReward(TextEnv):\n"
        "    def start(self, rng):\n"
        "        return 'Say something.'\n"
        "    def reply(self, action):\n"
        "        return TurnResult('ok', reward=float('nan'))\n"
    )
    path = write(tmp_path / "nan.yaml", env="nan_reward_env:NanReward")
    done = subprocess.run(
        command("train", path, "--storage", storage),
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("EnvContractError: ") and "must be finite" in last
    assert "Traceback (most" not in done.stderr + done.stdout


def test_a_search_runs_every_variant(call, storage):
    path = write(storage / "grid.yaml", expect=None, training={"lr": {"grid": [1, 2]}})
    status, _, err = call(
        "train", path, "--storage", storage, "stop.training_iteration=1"
    )
    assert status == 0, err
    (run,) = storage.glob("grid_*")
    rates = [json.loads(p.read_text())["lr"] for p in run.glob("trial_*/params.json")]
    assert sorted(rates) == [1, 2]


def test_a_distributed_run_loads_in_one_process(call, storage):
    from rllib_llm.cli.load_run import load_algorithm
    from rllib_llm.evaluation.runner import local_runner

    path = write(storage / "spread.yaml", expect=None)
    remote = ("env_runners.num_env_runners=1", "learners.num_learners=1")
    assert call("train", path, "--storage", storage, *remote)[0] == 0
    (run,) = storage.glob("spread_*")
    checkpoint = runs.locate_checkpoint(run).checkpoint
    algo = load_algorithm(checkpoint)
    assert algo.env_runner_group.num_remote_workers() == 0
    assert algo.learner_group.is_local and algo.training_iteration == 2
    got = local_runner(algo).module.get_state()
    module = checkpoint / checkpoints.MODULES / DEFAULT_MODULE_ID
    saved = weights.load(module / weights.FILE)
    for name, value in got.items():
        assert np.array_equal(value, saved[name]), name
    algo.stop()


def command(*arguments):
    return [sys.executable, "-m", "rllib_llm", *map(str, arguments)]


def environment(*folders):
    paths = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_a_killed_run_resumes_exactly(call, storage):
    sft = {"demonstrations": 200, "mistake_rate": 0.5, "lr": 5e-3}
    path = write(storage / "killed.yaml", evaluation=None, sft=sft)
    endless = ("train", path, "--storage", storage, "stop.training_iteration=100000")
    with started(*endless) as process:
        where = (storage, "killed_*/trial_*", "checkpoint_000003")
        wait_for_checkpoint(process, *where, seconds=240)
    (run,) = storage.glob("killed_*")
    (trial,) = run.glob("trial_*")
    at = (
        int(checkpoints.newest_checkpoint(trial).name[-6:]) + 1
    )  # one checkpoint an iteration
    end = f"stop.training_iteration={at + 2}"
    status, _, err = call("train", "--resume", run, end)
    assert status == 0, err
    status, _, err = call("train", path, "--storage", storage / "reference", end)
    assert status == 0, err
    (reference,) = (storage / "reference").glob("killed_*")
    expected, got = results(reference), results(run)
    for iteration in (at + 1, at + 2):
        assert pick(expected[iteration], TELLING[-1]) > 0  # something is learned
        for key in TELLING:
            assert pick(got[iteration], key) == pick(expected[iteration], key), key


def test_two_runs_are_compared_on_the_same_tasks(call, storage, after_sft):
    path = write(storage / "other.yaml", expect=None, training={"lr": 0.1})
    status, _, err = call("train", path, "--storage", storage)
    assert status == 0, err
    (other,) = storage.glob("other_*")
    args = ("compare", after_sft, other, "--episodes", 6, "--json")
    first, again = call(*args), call(*args)
    assert first[0] == 0, first[2]
    found = json.loads(first[1])
    assert found == json.loads(again[1])
    assert found["settings"]["training.lr"] == [1e-3, 0.1]
    assert [p["what"] for p in found["played"]] == ["success", "return"]
    output = call("evaluate", other, "--episodes", 6, "--json")[1]
    (alone,) = json.loads(output)["evaluations"]
    success, returns = found["played"]
    assert success["n"] == returns["n"] == 6 and found["left_out"] == 0
    assert success["mean_b"] == alone["success"]["mean"]
    assert returns["mean_b"] == pytest.approx(alone["episode_return"]["mean"])
    status, out, _ = call("compare", other, other, "--episodes", 6, "--sampled")
    assert status == 0 and "The recipes are the same." in out and "1.0000" in out
