"""Reasoning Gym's tasks, graded without evaluating answers; skipped without it."""

from __future__ import annotations

import importlib.metadata
import inspect
import re

import numpy as np
import pytest

pytest.importorskip("reasoning_gym")

import reasoning_gym

from rllib_llm.envs import check_env, make_env
from rllib_llm.envs.adapters import reasoning_grading as grading
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError

DATASETS = reasoning_gym.factory.DATASETS
# Drawing a question takes more than a tenth of a second.
SLOW = {
    *("arc_agi", "figlet_font", "futoshiki", "group_anagrams", "knight_swap"),
    *("puzzle24", "sokoban", "spell_backward", "word_ladder", "zebra_puzzles"),
}
# Of each kind of grading; the others belong to the slow lane.
FEW = {
    *("chain_sum", "coin_flip", "countdown", "gcd", "knights_knaves"),
    *("mini_sudoku", "n_queens", "number_sorting", "spiral_matrix"),
}
NO_ANSWERS = {
    "boxnet",
    "graph_color",
    "propositional_logic",
    "rubiks_cube",
    "rush_hour",
}
# What would show if it were evaluated: a file, or no end.
PROBES = ["__import__('pathlib').Path({path!r}).touch()", "9**9**9**9", "(" * 3_000]
JUNK = [
    "",
    "-1",
    "nan",
    "[NaN, NaN, NaN]",
    "{}",
    "[]",
    "1e999999999",
    "x=1",
    "9" * 3_000,
]


def env_of(task, **options):
    return make_env("reasoning_gym-v0", {"task": task, **options})


def test_every_task_is_graded_or_refused_by_name():
    assert grading.gradable() | set(grading.REFUSED) == set(DATASETS)
    assert not grading.gradable() & set(grading.REFUSED)
    for task in grading.REFUSED:
        with pytest.raises(ConfigError, match=f"task='{task}' is not supported"):
            env_of(task).reset(seed=0)


def test_no_scorer_that_is_used_evaluates_the_answer():
    evaluating = re.compile(r"\b(eval|exec|parse_expr|sympify|literal_eval)\(")
    harmless = {"number_sorting"}  # evaluates the library's own answer only
    for task in grading.SCORED - harmless:
        source = inspect.getsource(DATASETS[task][0].score_answer)
        assert not evaluating.search(source), task
    refused = [t for t in grading.REFUSED if "evaluates" in grading.REFUSED[t]]
    for task in [*refused, "countdown", "puzzle24", "n_queens", "binary_matrix"]:
        assert evaluating.search(inspect.getsource(DATASETS[task][0].score_answer))


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=[] if task in FEW else [pytest.mark.slow])
        for task in sorted(grading.gradable() - SLOW - NO_ANSWERS)
    ],
)
def test_reference_answers_score_full_and_junk_does_not(task, tmp_path):
    env = env_of(task)
    for seed in range(4):
        options = {"split": ("train", "test")[seed % 2]}
        transcript = play(env, seed, expert_policy, options=options)
        assert transcript.success is True, str(transcript)
    probe = tmp_path / "probe"
    for completion in (*PROBES[:1], *JUNK):
        completion = (
            completion.format(path=str(probe)) if "path" in completion else completion
        )
        score = grading.grade(task, env._settings, env.instance, completion)
        assert score < 0.5 or completion == env.instance["answer"], completion
    assert not probe.exists()


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(SLOW))
def test_slow_tasks_score_their_reference_answers(task):
    transcript = play(env_of(task), 0, expert_policy)
    assert transcript.success is True, str(transcript)


@pytest.mark.parametrize("task", ["countdown", "n_queens", "spiral_matrix"])
def test_tasks_whose_scorers_evaluate_are_graded_here(task, tmp_path):
    env = env_of(task)
    env.reset(seed=0)
    pid = grading._WORKER.process and grading._WORKER.process.pid
    probe = tmp_path / "probe"
    for completion in PROBES:
        completion = (
            completion.format(path=str(probe)) if "path" in completion else completion
        )
        assert grading.grade(task, {}, env.instance, completion) == 0.0
    assert not probe.exists()
    assert (grading._WORKER.process and grading._WORKER.process.pid) == pid


def test_countdown_wants_each_number_once_and_the_target():
    instance = {"metadata": {"numbers": [3, 4, 5], "target": 17}}
    for completion, score in {
        "3*4 + 5": 1.0,
        "5 + 4*3": 1.0,
        "17": 0.0,
        "3*4": 0.0,
        "3*4 + 5*1": 0.0,
        "3*4 - 5": 0.0,
        "3**4 + 5": 0.0,
        "1/0": 0.0,
    }.items():
        assert grading.grade("countdown", {}, instance, completion) == score


def test_answers_that_the_library_accepts_by_mistake_are_wrong():
    env = env_of("number_sorting")
    env.reset(seed=0)
    count = env.instance["answer"].count(",") + 1
    nothing = "[" + ", ".join(["NaN"] * count) + "]"
    library = reasoning_gym.create_dataset("number_sorting", seed=0, size=1)
    assert library.score_answer(nothing, env.instance) == 1.0
    assert grading.grade("number_sorting", {}, env.instance, nothing) == 0.0

    env = env_of("coin_flip")
    env.reset(seed=0)
    assert grading.grade("coin_flip", {}, env.instance, "0") == 0.0
    facts = env.instance["metadata"]["rational"]
    fraction = f"{facts['numerator']}/{facts['denominator']}"
    assert grading.grade("coin_flip", {}, env.instance, fraction) == 1.0


def test_a_scorer_that_takes_too_long_is_killed(monkeypatch):
    env = env_of("rush_hour")
    env.reset(seed=0)
    grading.grade("rush_hour", {}, env.instance, "A+1")
    pid = grading._WORKER.process.pid
    monkeypatch.setattr(grading, "_TIMEOUT_S", 0.5)
    assert grading.grade("rush_hour", {}, env.instance, "F+999999999") == 0.0
    assert grading._WORKER.process is None
    monkeypatch.undo()
    grading.grade("rush_hour", {}, env.instance, "A+1")
    assert grading._WORKER.process.pid != pid


def test_partial_scores_are_rewards_but_no_success():
    env = env_of("chain_sum", answer_format="text")
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(f"It is {env.instance['answer']}.")
    assert 0 < reward < 1 and terminated and info["success"] is False
    assert info["gold_answers"] == [env.instance["answer"]]


def test_levels_and_options_reach_the_library():
    def question(**options):
        return env_of("basic_arithmetic", **options).reset(seed=0)[0]

    assert len({question(level=n) for n in (0, 3)}) == 2
    terms = {"min_terms": 9, "max_terms": 9}
    asked = env_of("chain_sum", level=0, task_options=terms).reset(seed=0)[0]
    assert asked.count(" + ") + asked.count(" - ") == 8


def test_tasks_change_between_episodes():
    env = make_env("reasoning_gym-v0")
    assert "greatest common" in env.reset(seed=0, options={"task": "gcd"})[0].lower()
    assert env.task == "gcd"


def test_tasks_without_reference_answers_have_no_scripts():
    env = env_of("graph_color")
    env.reset(seed=0)
    for policy in (env.expert_action, env.random_action):
        with pytest.raises(NotImplementedError, match="graph_color"):
            policy(np.random.default_rng(0))
    assert check_env("reasoning_gym-v0", {"task": "graph_color"}, seeds=range(2)).ok


def test_other_versions_are_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1.26")
    with pytest.raises(ConfigError, match=r"reasoning-gym==0\.1\.25"):
        make_env("reasoning_gym-v0")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"task": "chain_sums"}, "Did you mean 'chain_sum'"),
        ({"level": -1}, "level=-1"),
        ({"task": "gsm_symbolic", "level": 1}, "no curriculum"),
        ({"task": "caesar_cipher", "level": 2}, "rotation must be in range"),
        ({"task_options": {"min_terms": 0}}, "min_terms"),
        ({"task_options": {"colour": 1}}, "colour"),
        ({"task_options": {"seed": 1}}, "'seed', which the environment sets"),
        ({"answer_format": "json"}, "answer_format='json'"),
    ],
)
def test_impossible_options_are_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        make_env("reasoning_gym-v0", config).reset(seed=0)
