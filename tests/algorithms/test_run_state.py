"""A restored run has all of the training state and continues bit by bit."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pytest
from team_helpers import PairTogether, single_config, team_config

from rllib_llm import GRPOConfig, LLMPPOConfig, MARFTConfig, SelfPlayConfig
from rllib_llm.curricula.task_options import with_options
from rllib_llm.data.types import Task

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
# Durations and start times, which are not part of the state.
OF_TIME = {
    "env_runners/sample",
    "env_runners/engine_busy_frac",
    "iterations_since_restore",
    "timestamp",
}


class Counted:
    """Counts how often it was asked, and lets that show in what it answers."""

    def __init__(self):
        self.asked = 0

    def get_state(self):
        return self.asked

    def set_state(self, state):
        self.asked = state


class Bonus(Counted):
    """A reward that grows with every trajectory."""

    def __call__(self, trajectory):
        self.asked += 1
        return 0.01 * self.asked + 0.1 * len(trajectory.completions[-1])


class Passing(Counted):
    """A filter that masks another trajectory in every iteration."""

    def __call__(self, table):
        self.asked += 1
        return np.arange(len(table)) != self.asked % max(len(table), 1)


class Walking(Counted):
    """A curriculum of one more turn in every group, up to three."""

    def assign(self, task: Task, iteration: int) -> Task:
        self.asked += 1
        return with_options(task, {})

    def observe(self, table):
        self.asked += len(table)


class Fading(Counted):
    """A loss term that grows with every update."""

    def __call__(self, batch):
        return 0.01 * self.asked * batch.logp

    def end_update(self, means):
        self.asked += 1


def grpo():
    return single_config(
        GRPOConfig,
        slots=1,
        rollouts={
            "episodes_per_iteration": 8,
            "group_size": 4,
            "rewards": [Bonus],
            "filters": [{"name": Passing, "effect": "mask"}],
            "curriculum": {"name": Walking},
        },
        training={
            "lr": [[0, 1e-2], [100, 1e-3]],
            "drop_zero_variance_groups": False,
            "advantage_estimator": ["group", {"name": "history", "weight": 0.5}],
            "ref_kl_coeff": 0.1,
            "ref_kl_target": 1e-9,
            "loss_terms": [Fading, {"name": "entropy_target", "target": 9.0}],
        },
        replay={
            "episodes_per_iteration": 4,
            "capacity_tokens": 400,
            "keep": Passing,
            "draw": "priority",
            "advantages": "rebased",
        },
        alarms={"entropy_explosion": {"above": 0.01, "action": "lower_lr"}},
    )


def scorer():
    return single_config(
        GRPOConfig,
        slots=1,
        rollouts={
            "episodes_per_iteration": 8,
            "group_size": 4,
            "rewards": ["scorer"],
        },
        training={"drop_zero_variance_groups": False},
        scorer={"loss": "pairwise", "lr": 1e-2, "label_noise": 0.3, "num_epochs": 2},
    )


def causal():
    return single_config(
        GRPOConfig,
        slots=1,
        rollouts={"episodes_per_iteration": 8, "group_size": 4},
        training={"loss_terms": [{"name": "entropy", "weights": "causal"}]},
        scorer={"loss": "causal", "lr": 1e-2, "minibatch_size": 4},
    )


def asked():
    judge = {
        "policy": "default_policy",
        "template": "{transcript}",
        "parse": {"number": "([0-9])", "low": 0, "high": 9},
        "temperature": 1.0,
        "samples": 2,
        "unreadable": 0.5,
    }
    return single_config(
        GRPOConfig,
        slots=1,
        rollouts={
            "episodes_per_iteration": 8,
            "group_size": 4,
            "assistants": {"now": judge, "first": {**judge, "weights": "initial"}},
            "rewards": [
                {"name": "asked", "of": "now"},
                {"name": "asked", "of": "first"},
            ],
        },
        training={"drop_zero_variance_groups": False},
    )


def turn_critic():
    return single_config(
        GRPOConfig,
        slots=1,
        rollouts={"episodes_per_iteration": 8, "group_size": 1},
        training={
            "advantage_estimator": "turn_critic",
            "drop_zero_variance_groups": False,
        },
        replay={"episodes_per_iteration": 4, "coeff": 0.0},
        scorer={"loss": "td", "lr": 1e-2, "minibatch_size": 4},
    )


def ppo():
    return single_config(
        LLMPPOConfig,
        slots=1,
        training={
            "use_kl_loss": True,
            "kl_target": 1e-9,
            "entropy_coeff": [[0, 0.1], [60, 0.0]],
            "critic_lr": 1e-2,
            "num_epochs": 2,
            "minibatch_size": 2,
        },
        alarms={"entropy_explosion": {"above": 0.01, "action": "rollback"}},
    )


def marft():
    return team_config(
        PairTogether,
        MARFTConfig,
        slots=1,
        policies=("a", "b"),
        mapping={"ann": "a", "ben": "b"},
        training={"update_schedule": "alternate", "alternate_every": 1},
    )


def self_play():
    pytest.importorskip("openskill")
    return team_config(
        PairTogether,
        SelfPlayConfig,
        slots=1,
        policies=None,
        league={"pool_size": 2, "snapshot_min_games": 1, "snapshot_max_games": 2},
    )


# Components without state: rewards and advantages of the group alone.
STATELESS = {
    "grpo": set(),
    "scorer": {"llm_driver_components", "llm_advantage_estimators"},
    "causal": {"llm_driver_components", "llm_advantage_estimators"},
    "asked": {"llm_driver_components", "llm_advantage_estimators"},
    "turn_critic": {"llm_driver_components", "llm_advantage_estimators"},
    "ppo": {"llm_driver_components"},
    "marft": {"llm_driver_components"},
    "self_play": {"llm_driver_components"},
}
RUNS = {
    f.__name__: f
    for f in (grpo, scorer, causal, asked, turn_critic, ppo, marft, self_play)
}


def flat(tree, path=()):
    """Leaves of nested mappings and sequences by path; arrays as bytes."""
    if isinstance(tree, Mapping):
        parts = tree.items()
    elif isinstance(tree, list | tuple):
        parts = enumerate(tree)
    elif hasattr(tree, "detach"):
        return {path: tree.detach().cpu().numpy().tobytes()}
    else:
        return {path: tree.tobytes() if isinstance(tree, np.ndarray) else tree}
    return {k: v for name, part in parts for k, v in flat(part, (*path, name)).items()}


def state_of(algo):
    """All that is saved but what RLlib measured, times among it."""
    found = flat(algo.get_state())
    return {k: v for k, v in found.items() if "metrics_logger" not in k}


def numbers_of(result):
    """Return a result's values without its timers."""
    found = flat({k: v for k, v in result.items() if k != "config"})
    names = {path: "/".join(map(str, path)) for path in found}
    return {
        path: value
        for path, value in found.items()
        if isinstance(value, int | float | np.number)
        and names[path] not in OF_TIME
        and not re.search("time|throughput|_s$|_sec_|perf", names[path])
    }


def assert_equal(left, right):
    assert left.keys() == right.keys()
    unequal = [k for k in left if not _equal(left[k], right[k])]
    assert not unequal, unequal


def _equal(a, b):
    both_nan = isinstance(a, float) and isinstance(b, float) and a != a and b != b
    return both_nan or bool(a == b)


@pytest.mark.parametrize("name", RUNS)
def test_a_restored_run_has_everything_and_goes_on_as_it_would(name, tmp_path):
    # The table of drafts is not restored, so that passes would be rounded differently.
    algo = RUNS[name]().generation(num_speculative_tokens=0).build_algo()
    fresh = state_of(algo)
    for _ in range(2):
        algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    restored = type(algo).from_checkpoint(path)
    saved = state_of(algo)
    assert_equal(state_of(restored), saved)
    unchanged = {k[0] for k in saved} - {
        k[0] for k in saved if not _equal(saved[k], fresh.get(k))
    }
    assert unchanged <= STATELESS[name], "A restored default proves nothing."
    for _ in range(2):
        assert_equal(numbers_of(restored.train()), numbers_of(algo.train()))
        assert_equal(state_of(restored), state_of(algo))
    algo.stop()
    restored.stop()


def weights_of(runner):
    """Return the weights with which an EnvRunner samples."""
    tensors = runner.modules["default_policy"].shared_tensors(inference_only=True)
    return flat({name: tensor.clone() for name, tensor in tensors.items()})


def test_going_back_to_a_checkpoint_gives_every_runner_its_weights(tmp_path):
    config = ppo().evaluation(evaluation_interval=100, evaluation_duration=1)
    config.evaluation(evaluation_before_training=False)
    algo = config.build_algo()
    runners = [algo.env_runner, algo.eval_env_runner]
    algo.train()
    algo.evaluate()  # RLlib sends the evaluating EnvRunner its weights
    saved = weights_of(algo.env_runner)
    assert_equal(weights_of(algo.eval_env_runner), saved)
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.train()
    algo.evaluate()
    for runner in runners:
        assert weights_of(runner) != saved
    algo.restore_from_path(path)
    for runner in runners:
        assert_equal(weights_of(runner), saved)
        for engine in runner.engines.values():
            assert engine.weights_version == runner._weights_seq_no
    algo.stop()
