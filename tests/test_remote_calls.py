"""Calls to other processes: time limits, and a list of all of them."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

import rllib_llm
from rllib_llm.algorithms.driver.learner_group import LearnerActors
from rllib_llm.errors import CallTimeoutError, LearnerError
from rllib_llm.remote_calls import TimeLimit, name_of, result_of

PACKAGE = Path(rllib_llm.__file__).parent
# Calls that wait for another process, by file and function, and what ends them.
WAITING = {
    # The helpers: each has a TimeLimit.
    ("remote_calls.py", "result_of", "ray.get"): 1,
    ("algorithms/driver/runner_group_calls.py", "call_runners", "foreach_env_runner"): (
        1
    ),
    ("algorithms/driver/learner_group.py", "_wait", "ray.wait"): 1,
    # Of a reference that ray.wait has returned.
    ("algorithms/driver/learner_group.py", "_wait", "ray.get"): 1,
    # Those that LearnerActors.foreach_actor limits.
    ("algorithms/driver/learner_group.py", "foreach_learner", "foreach_learner"): 1,
    ("algorithms/driver/learner_group.py", "foreach_actor", "foreach_actor"): 1,
    ("algorithms/driver/learner_group.py", "foreach_shard", "foreach_actor"): 1,
    ("algorithms/driver/learner_group.py", "get_state", "foreach_learner"): 1,
    ("algorithms/driver/learner_group.py", "_ask_version", "foreach_learner"): 1,
    ("algorithms/driver/learner_group.py", "save_to_path", "foreach_learner"): 1,
    ("algorithms/driver/learner_group.py", "restore_from_path", "foreach_learner"): 1,
    ("algorithms/driver/weight_sync.py", "pack", "foreach_learner"): 1,
    ("algorithms/driver/weight_transfer.py", "pack", "foreach_learner"): 1,
    (
        "algorithms/driver/init_from_checkpoint.py",
        "initialise_from",
        "foreach_learner",
    ): (2),
    ("algorithms/reward_model/reward_model.py", "score", "foreach_learner"): 1,
    ("algorithms/selfplay/self_play.py", "_on_learners", "foreach_learner"): 1,
    ("monitoring/alarms/algorithm_mixin.py", "lower_lr", "foreach_learner"): 1,
    ("monitoring/alarms/algorithm_mixin.py", "lr_scales", "foreach_learner"): 1,
    ("monitoring/alarms/algorithm_mixin.py", "roll_back", "foreach_learner"): 2,
    # Does not wait; _fetch has a deadline for each call.
    ("algorithms/driver/sample_ahead.py", "_call", "foreach_env_runner_async"): 1,
    ("algorithms/driver/sample_ahead.py", "_fetch", "fetch_ready_async_reqs"): 1,
    # With a timeout of 60 s per node.
    ("doctor/cluster.py", "examine_cluster", "ray.get"): 1,
    # With timeout_seconds.
    ("algorithms/algorithm.py", "_sync_weights", "sync_weights"): 1,
}
NAMES = {
    "sync_weights",
    "fetch_ready_async_reqs",
    "foreach_actor",
    "foreach_actor_async",
    "foreach_env_runner",
    "foreach_env_runner_async",
    "foreach_env_runner_async_fetch_ready",
    "foreach_learner",
}


def waiting_calls(tree: ast.AST) -> list[tuple[str, str]]:
    """Return the function and the name of each call that may wait for a process."""
    found = []

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            name = text.rpartition(".")[2]
            if text in ("ray.get", "ray.wait"):
                found.append((function, text))
            elif name in NAMES:
                found.append((function, name))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(tree, "")
    return found


def test_every_call_to_another_process_has_a_time_limit():
    """One that is not in the list needs a limit: use result_of or call_runners."""
    calls: dict[tuple[str, str, str], int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        for function, name in waiting_calls(ast.parse(path.read_text("utf-8"))):
            key = (place, function, name)
            calls[key] = calls.get(key, 0) + 1
    assert calls == WAITING


def test_the_list_sees_calls_of_every_form():
    text = "def f():\n    x = [ray.get(r) for r in a.b.foreach_env_runner(g)]\n"
    assert waiting_calls(ast.parse(text)) == [
        ("f", "ray.get"),
        ("f", "foreach_env_runner"),
    ]


def test_names_of_calls():
    import functools

    assert name_of("update") == "update"
    assert name_of(functools.partial(functools.partial(len))) == "len"
    assert name_of(TimeLimit(1.0, "s")) == "TimeLimit"


@pytest.mark.ray
def test_a_value_that_does_not_arrive_is_an_error_in_words(ray_session):
    import ray

    @ray.remote(num_cpus=0)
    def late(seconds):
        time.sleep(seconds)
        return "late"

    limit = TimeLimit(0.5, "fault_tolerance.call_timeout_s")
    assert result_of(ray.put(3), "the object", limit) == 3
    begin = time.monotonic()
    with pytest.raises(
        CallTimeoutError,
        match=r"actor in sleep\(\) with weights version 4 did not answer within 0.5 s "
        r"\(fault_tolerance.call_timeout_s\)",
    ):
        result_of(late.remote(30), "The actor in sleep() with weights version 4", limit)
    assert time.monotonic() - begin < 20


class Limits:
    """Limits of calls to Learners."""

    collective_s = 60.0

    def of_call(self, name):
        seconds = 0.5 if name == "update" else 60.0
        return TimeLimit(seconds, f"fault_tolerance.limit_of_{name}")


@pytest.mark.ray
def test_learners_of_which_none_answers_end_the_run_in_words(ray_session):
    import ray

    @ray.remote(num_cpus=0)
    class Learner:
        def apply(self, call, **kwargs):
            return call(self)

        def update(self):
            time.sleep(30)

        def fast(self):
            return 5

    actors = [Learner.remote() for _ in range(2)]
    group = LearnerActors(actors, limits=Limits(), version=lambda: 6)
    assert [r.get() for r in group.foreach_actor("fast")] == [5, 5]
    with pytest.raises(LearnerError) as error:
        group.foreach_actor("update")
    for text in (
        "update() after weights version 6: Learner 0 of 2 does not answer within 0.5 s "
        "(fault_tolerance.limit_of_update)",
        "Learner 1 of 2 does not answer within 0.5 s",
        "tune.max_failures=1",
    ):
        assert text in str(error.value)
