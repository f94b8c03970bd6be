"""The progress line."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pyarrow.fs
import pytest
from callback_helpers import make_result

from rllib_llm.callbacks import PROGRESS_KEYS, run_callbacks
from rllib_llm.callbacks.result_keys import lookup, lookup_learner
from rllib_llm.monitoring.formatting import duration
from rllib_llm.monitoring.progress_line import HEADER_EVERY, ProgressLine

RETURN = "env_runners/episode_return_mean"


def make_trial(trial_id="t_0", **params):
    storage = SimpleNamespace(
        experiment_fs_path="/results/my run",
        storage_filesystem=pyarrow.fs.LocalFileSystem(),
    )
    return SimpleNamespace(
        trial_id=trial_id,
        storage=storage,
        evaluated_params=params,
        config=params,
        local_experiment_path="/tmp/of_ray",
        path=f"/results/my run/{trial_id}",
        checkpoint=SimpleNamespace(path="/results/my run/checkpoint_0"),
        error_file="/results/error.txt",
    )


def play(progress, results, trials=None):
    trials = trials or [make_trial()]
    for result in results:
        for trial in trials:
            progress.on_trial_result(0, trials, trial, result)


def test_line_shows_each_value_under_its_title(capsys):
    play(ProgressLine(), [make_result(3, episode_return_mean=0.25, turns_mean=4.0)])
    header, line = capsys.readouterr().out.splitlines()
    cells = dict(zip(header.split(), line.split(), strict=True))
    assert cells["iter"] == "3" and cells["return"] == "0.250"
    assert cells["turns"] == "4.0" and cells["KL(k3)"] == "0.0100"
    assert cells["entropy"] == "1.500"  # not that of __all_modules__
    assert cells["tok/s"] == "200" and cells["time"] == "0:06"
    assert cells["success"] == "-"
    assert line.isascii() and len(line) == len(header) <= 100


def test_truncation_adds_the_token_limits(capsys):
    stop = {"max_tokens_turn": 0.25, "context_overflow": 0.5, "max_turns": 0.25}
    play(ProgressLine(), [make_result(1, stop=stop)])
    assert " 75% " in capsys.readouterr().out


LIFETIME = "env_runners/num_env_steps_sampled_lifetime"


@pytest.mark.parametrize(
    ("stop", "budget", "left"),
    [
        ({"training_iteration": 32}, None, ["1:02", "1:00"]),
        ({"time_total_s": 60}, None, ["0:58", "0:56"]),
        ({"time_total_s": 61}, None, ["1:00", "0:58"]),  # whole iterations
        ({"training_iteration": 32, "time_total_s": 20}, None, ["0:18", "0:16"]),
        ({"training_iteration": 3, "time_total_s": 20}, None, ["0:04", "0:02"]),
        ({LIFETIME: 80}, None, ["-", "0:12"]),
        ({"training_iteration": 32}, 10, ["0:07", "0:07"]),
        ({RETURN: 0.9}, 10, ["0:07", "0:07"]),
    ],
)
def test_time_left_to_the_first_bound(capsys, monkeypatch, stop, budget, left):
    """Each iteration takes two seconds and ten steps."""
    now = [1000.0]
    monkeypatch.setattr("rllib_llm.monitoring.progress_line.time.time", lambda: now[0])
    progress = ProgressLine(stop=stop, time_budget_s=budget)
    progress.setup()
    now[0] += 3
    counts = {"num_env_steps_sampled_lifetime": 10}
    play(progress, [make_result(1, **counts)])
    counts = {"num_env_steps_sampled_lifetime": 20}
    play(progress, [make_result(2, **counts)])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.endswith("left")
    assert [line.split()[-1] for line in lines] == left


def test_time_left_ignores_other_bounds(capsys):
    play(ProgressLine(stop={RETURN: 0.9}), [make_result(1)])
    assert "left" not in capsys.readouterr().out


def test_the_evaluation_before_training_is_a_row_of_its_own(capsys):
    numbers = {"episode_return_mean": 0.7, "success_rate": 0.71, "num_episodes": 64}
    result = make_result(1)
    result["evaluation_before_training"] = {
        "env_runners": numbers,
        "advice": "The imitation failed: do this.",
    }
    evaluation = {"episode_return_mean": 0.6, "success_rate": 0.61, "num_episodes": 64}
    progress = ProgressLine(stop={"training_iteration": 2}, begin="after SFT")
    play(progress, [result, make_result(2, evaluation=evaluation)])
    header, before, advice, _, last = capsys.readouterr().out.splitlines()
    assert before.split()[0] == "0" and before[: len(header)].count("-") > 10
    assert before[len(header) :] == (
        "   eval success 71% return 0.700 (n=64)   after SFT"
    )
    assert advice == "The imitation failed: do this."
    assert "after SFT" not in last
    progress.on_experiment_end([make_trial()])
    assert (
        "held out:    success 71% return 0.700 (n=64) after SFT; "
        "success 61% return 0.600 (n=64) at the end"
    ) in capsys.readouterr().out


def test_header_is_repeated(capsys):
    play(ProgressLine(), [make_result(i) for i in range(HEADER_EVERY + 1)])
    assert capsys.readouterr().out.count("entropy") == 2


def test_expectations_are_marked_once(capsys):
    progress = ProgressLine(expect={RETURN: 0.5})
    values = [0.1, float("nan"), 0.5, 0.9]
    play(
        progress,
        [make_result(i, episode_return_mean=v) for i, v in enumerate(values, 1)],
    )
    lines = capsys.readouterr().out.splitlines()
    marked = [i for i, line in enumerate(lines) if "reached" in line]
    assert marked == [3] and "episode_return_mean >= 0.5" in lines[3]
    progress.on_experiment_end([make_trial()])
    assert "reached at iteration 3" in capsys.readouterr().out


def test_evaluations_are_shown(capsys):
    evaluation = {"episode_return_mean": 0.5, "success_rate": 0.25, "num_episodes": 8}
    play(ProgressLine(), [make_result(1, evaluation=evaluation), make_result(2)])
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("eval success 25% return 0.500 (n=8)")
    assert "eval" not in second


def test_sweeps_name_the_trial(capsys):
    progress = ProgressLine(expect={RETURN: 0.5})
    progress.setup(total_num_samples=2)
    trials = [make_trial("t_0", lr=1e-4), make_trial("t_1", lr=1e-3)]
    progress.on_trial_start(0, trials, trials[1])
    assert "t_1 starts: lr=0.001" in capsys.readouterr().out
    play(progress, [make_result(1, episode_return_mean=1.0)], trials)
    header, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["t_0", "t_1"]
    assert header.index("return") + len("return") == lines[0].index("1.000") + 5
    assert all("reached" in line for line in lines)


def test_paths_are_printed_at_the_end(capsys):
    ProgressLine(expect={RETURN: 2.0}).on_experiment_end([make_trial()])
    text = capsys.readouterr().out
    assert "/results/my run/t_0/transcripts.jsonl" in text
    assert "tensorboard --logdir '/results/my run'" in text
    assert "rllib-llm train --resume '/results/my run'" in text
    assert "checkpoint_0" in text and "NOT reached" in text


@pytest.mark.parametrize(("no_color", "styled"), [("", True), ("1", False)])
def test_colour_only_on_a_terminal(monkeypatch, capsys, no_color, styled):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    play(ProgressLine(), [make_result(1)])
    assert "\x1b[" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    play(ProgressLine(), [make_result(1)])
    text = capsys.readouterr().out
    assert ("\x1b[" in text) is styled


def test_callbacks_can_be_copied_as_tune_does(config):
    callbacks = run_callbacks("my_recipe", config, stop={"training_iteration": 3})
    play(callbacks[0], [make_result(1)])
    copied = pickle.loads(pickle.dumps(copy.deepcopy(callbacks)))[0]
    assert "my_recipe" in copied.title and "guess_number-v0" in copied.title


def test_searched_settings_do_not_flood_the_title(config):
    config.seed = {"grid_search": [1, 2]}
    assert run_callbacks("r", config)[0].title.endswith("seed searched")


def test_durations_and_lookups():
    assert [duration(s) for s in (None, 59.6, 3661)] == ["-", "1:00", "1:01:01"]
    assert lookup({"a": {"b": "text"}}, "a/b") is None
    assert lookup_learner({"learners": {"p": {"x": 1}, "q": {"x": 3}}}, "x") == 2
    assert RETURN in PROGRESS_KEYS


def test_tensorboard_command_has_the_run_folder(capsys):
    ProgressLine("GRPO").on_trial_start(0, [], make_trial())
    assert "watch: tensorboard --logdir '/results/my run'\n" in capsys.readouterr().out
