"""Actions of alarms in real iterations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from team_helpers import tiny_model, worth

from rllib_llm import GRPOConfig
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ModelError
from rllib_llm.monitoring.alarms.alarm_actions import Guard

EVERY_TIME = {"below": 100.0, "window": 1, "cooldown": 1, "solved": None}


class Words(TextEnv):
    """One-turn environment whose reward depends on the letters of the answer."""

    max_turns = 1

    def start(self, rng):
        """Begin."""
        return "Go."

    def parse(self, completion):
        """Take anything."""
        return completion or "-"

    def reply(self, action):
        """Pay."""
        return TurnResult("On.", worth(action), terminated=True)

    def random_action(self, rng):
        """Say a digit."""
        return str(rng.integers(10))


def grpo(lr=1e-3, **alarms):
    return (
        GRPOConfig()
        .environment(Words)
        .language_model(model=tiny_model())
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=8, group_size=4)
        .training(lr=lr, drop_zero_variance_groups=False)
        .alarms(**alarms)
    )


@pytest.fixture
def run(ray_session):
    """Build algorithms; stop them after the test."""
    built = []

    def build(config):
        built.append(config.build_algo())
        return built[-1]

    yield build
    for algo in built:
        algo.stop()


def parameters(algo):
    return algo.get_module().get_state()


def rate(result):
    return result["learners"]["default_policy"]["policy_learning_rate"]


def same(a, b):
    return all(np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.ray
def test_warnings_come_once_and_change_nothing(run, caplog):
    algo = run(grpo(entropy_collapse=EVERY_TIME))
    results = [algo.train() for _ in range(2)]
    assert [r["alarms"]["entropy_collapse"] for r in results] == [1, 1]
    assert "alarm entropy_collapse (default_policy)" in results[0]["alarms"]["messages"]
    assert "messages" not in results[1]["alarms"] and not results[1]["done"]
    assert caplog.text.count("alarm entropy_collapse") == 1
    assert rate(results[1]) == 1e-3


@pytest.mark.ray
def test_lower_lr_keeps_the_schedule(run):
    schedule = [[0, 1e-3], [16, 1e-4]]  # in environment steps, one per episode
    algo = run(
        grpo(
            lr=schedule,
            entropy_collapse={**EVERY_TIME, "action": "lower_lr"},
            min_lr=4e-5,
        )
    )
    results = [algo.train() for _ in range(4)]
    # Halved after each iteration: the next update's rate is the schedule's times that.
    assert rate(results[0]) == pytest.approx(5.5e-4)
    assert rate(results[1]) == pytest.approx(1e-4 / 2)
    assert rate(results[2]) == rate(results[3]) == 4e-5  # min_lr
    assert results[1]["alarms"]["lr_scale"] == {"default_policy": 0.25}
    path = algo.save_to_path()
    restored = run(grpo(lr=schedule, entropy_collapse=False, min_lr=4e-5))
    restored.restore_from_path(path)
    assert restored.lr_scales() == {"default_policy": pytest.approx(1 / 16)}
    assert rate(restored.train()) == 4e-5


@pytest.mark.ray
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_rollback_restores_weights_and_moments(run, place, tmp_path):
    fires = {"below": 0.0, "window": 1, "solved": None, "action": "rollback"}
    algo = run(grpo(entropy_collapse=fires, snapshots=place, snapshot_interval=1))
    start = parameters(algo)
    optimizer = algo.learner_group._learner._named_optimizers["default_policy_policy"]
    algo.train()  # quiet: the state after it waits
    algo.train()  # quiet: now that state is good
    good = algo.guard._snapshots.good
    assert good.iteration == 1 and (good.path is None) == (place == "memory")
    moments = {k: v["exp_avg"].clone() for k, v in optimizer.state.items()}
    now = parameters(algo)
    algo.guard._alarms["entropy_collapse"].thresholds["below"] = 100.0
    result = algo.train()
    assert "Rolled back to iteration 1." in result["alarms"]["messages"]
    assert result["alarms"]["num_rollbacks"] == 1
    assert not same(parameters(algo), now) and not same(parameters(algo), start)
    restored = good.load()["learners"]["learner"]["rl_module"]["default_policy"]
    assert same(restored, parameters(algo))
    pairs = [(optimizer.state[k]["exp_avg"], m) for k, m in moments.items()]
    assert any(not torch.equal(now, before) for now, before in pairs)
    # The engine samples with them, and the next update starts from them.
    assert algo.env_runner.engine.weights_version > 3
    algo.guard._alarms["entropy_collapse"].thresholds["below"] = 0.0
    after = algo.train()
    assert rate(after) == 5e-4 and after["training_iteration"] == 4
    assert after["learners"]["default_policy"]["train_inference_mismatch_max"] < 1e-3


@pytest.mark.ray
def test_too_many_rollbacks_stop_the_run(run):
    algo = run(
        grpo(
            entropy_collapse={**EVERY_TIME, "action": "rollback"},
            max_rollbacks=1,
        )
    )
    start = parameters(algo)
    first, second = algo.train(), algo.train()
    assert first["alarms"]["num_rollbacks"] == 1 and not first["done"]
    assert second["done"] and second["alarms"]["stopped_by"] == "entropy_collapse"
    assert "training stops: max_rollbacks=1." in second["alarms"]["messages"]
    assert same(parameters(algo), start)  # what the last checkpoint will hold


@pytest.mark.ray
def test_stop_reports_its_alarm(run):
    algo = run(grpo(entropy_collapse={**EVERY_TIME, "action": "stop"}, kl={}))
    result = algo.train()
    assert result["done"] and result["alarms"]["stopped_by"] == "entropy_collapse"
    assert "Training stops." in result["alarms"]["messages"]


@pytest.mark.ray
def test_rollback_after_non_finite_weights(run):
    algo = run(grpo(nan={"action": "rollback"}))
    algo.train()
    module = algo.learner_group._learner.module["default_policy"].unwrapped()
    for parameter in module.parameters():
        parameter.data.fill_(float("nan"))
    result = algo.train()
    assert result["alarms"]["num_rollbacks"] == 1
    assert np.isfinite(result["learners"]["default_policy"]["entropy"])
    guard = Guard(grpo().copy(), algo)
    assert not guard.after_model_error(ModelError("logits"))


@pytest.mark.ray
@pytest.mark.slow
def test_rollback_reaches_other_processes(run):
    config = grpo(
        entropy_collapse={**EVERY_TIME, "action": "rollback", "cooldown": 3},
        max_rollbacks=1,
    )
    # Other processes cannot import this file; every reward of the probe is 0 here.
    config.environment("bandit_probe-v0").training(entropy_coeff=0.1)
    config.env_runners(num_env_runners=1).learners(num_learners=1)
    algo = run(config)
    start = algo.learner_group.get_weights()["default_policy"]
    result = algo.train()
    assert result["alarms"]["num_rollbacks"] == 1
    assert same(algo.learner_group.get_weights()["default_policy"], start)
    algo.guard._alarms["entropy_collapse"].thresholds["below"] = 0.0
    result = algo.train()
    learner = result["learners"]["default_policy"]
    assert rate(result) == 5e-4
    assert (
        learner["train_inference_mismatch_max"] < 1e-3
        and learner["policy_staleness_mean"] == 0.0
    )
    assert not same(algo.learner_group.get_weights()["default_policy"], start)
