"""Every alarm on synthetic histories on which it must or must not fire."""

from __future__ import annotations

import math
import random

import pytest

from rllib_llm.errors import ConfigError
from rllib_llm.monitoring.alarms import detectors
from rllib_llm.monitoring.alarms.catalogue import ALARMS
from rllib_llm.monitoring.alarms.metric_history import History
from rllib_llm.monitoring.alarms.settings import bind_alarms

NAN = math.nan


def noisy(start, end, count, noise=0.02, seed=0):
    """Return a line from ``start`` to ``end`` with noise."""
    rng = random.Random(seed)
    step = (end - start) / max(1, count - 1)
    return [start + i * step + rng.gauss(0.0, noise) for i in range(count)]


STEADY = noisy(0.5, 0.5, 30)
FIRES = {
    "kl": ([[0.01, 0.01, 0.5]], [[0.25]], [[0.01, math.inf]]),
    "entropy_collapse": ([[*noisy(1.0, 0.01, 20, 0.0), 0.01, 0.01, 0.005]],),
    "entropy_explosion": ([[0.4] * 10 + [2.0, 2.5, 3.0]],),
    "reward_variance": (
        [[0.2] * 5 + [0.97] * 5, []],
        [[], [0.5] * 10 + [0.03] * 5],  # no groups: the spread of all returns
    ),
    "repetition": ([[0.1, 0.6, 0.7, 0.8]],),
    "echo": ([[0.2] * 5 + [0.7, 0.8, 0.9]],),
    "copying": ([[0.1] * 5 + [0.6, 0.6, 0.6]],),
    "length": ([[40.0] * 5 + [130.0, 150.0, 200.0]],),
    "truncation": ([[0.0, 0.6, 0.6, 0.7]],),
    "no_valid_action": ([[1.0, 1.0, 1.0]], [[1.0] * 20], [[0.995, NAN, 1.0, 0.99]]),
    "invalid_turns": (
        [[0.12] * 5 + [0.2, 0.3, 0.32, 0.32]],
        [[0.0] * 5 + [0.3] * 3],
    ),
    "unended_turns": ([[0.0] * 5 + [0.7, 0.9, 1.0]], [[0.2] * 10 + [1.0] * 3]),
    "grad_norm": ([[1.0] * 10 + [30.0]],),
    "nan": (
        [[0.1, NAN], [0.1], [1.0], [1.0], [0.0]],
        [[0.1], [0.1], [1.0], [math.inf], [0.0]],
        [[0.1], [0.1], [1.0], [1.0], [0.0, 1.0]],  # a step was skipped
        [[0.1], [0.1], [1.0], [1.0], [1.0]],  # in the first update
    ),
    "return_drop": ([noisy(0.1, 0.8, 20) + noisy(0.1, 0.1, 3)],),
    "train_inference_mismatch": ([[0.001, 0.2, 0.3]],),
    "stalled": ([[0.0, 2.0]],),
}
QUIET = {
    "kl": ([[0.5, 0.01]], [[0.1]], [[]], [[NAN]]),
    "entropy_collapse": ([[0.01, 0.5, 0.5]], [[0.01, 0.01]], [STEADY]),
    "entropy_explosion": (
        [[0.4] * 10 + [1.5, 0.4, 0.4]],
        [[0.1] * 10 + [0.5] * 3],  # five times as much, and still little
        [[3.0] * 8],
    ),
    "reward_variance": (
        [[0.97] * 4, []],
        [[0.9] * 10, [0.5] * 15],
        [[], [0.0] * 20],  # nothing to lose: e.g. a zero-sum game
        [[], noisy(0.5, 0.2, 20)],
    ),
    "repetition": ([[0.6, 0.6]], [[0.9, 0.1, 0.1]]),
    "echo": ([[0.8] * 10], [[0.05] * 5 + [0.2] * 3]),  # always so; still low
    "copying": ([[0.9] * 10],),
    "length": ([[4.0] * 5 + [30.0] * 3], [[100.0] * 5 + [200.0] * 3]),
    "truncation": ([[0.9, 0.1, 0.1]],),
    "no_valid_action": ([[1.0, 1.0]], [[1.0, 0.9] + [1.0] * 9], [[]]),
    "invalid_turns": (
        [[0.3] * 5 + [0.5] * 3],
        [[0.0] * 5 + [0.15] * 3],
        [[1.0] * 8],
        [[0.0] * 5 + [0.5, 0.0, 0.0]],
    ),
    "unended_turns": ([[1.0] * 8], [[0.0] * 5 + [0.4] * 3]),
    "grad_norm": ([[1.0, 30.0]], [[1.0] * 10 + [5.0]], [[0.0] * 10 + [1.0]]),
    "nan": ([[0.1], [], [1.0], [1.0], [3.0, 3.0]], [[], [], [], [], []]),
    "return_drop": (
        [noisy(0.1, 0.8, 40)],
        [noisy(0.0, 0.0, 60)],  # a zero-sum game
        [noisy(0.1, 0.2, 40, noise=0.1)],
        [noisy(-10.0, -12.0, 40)],
        [[0.8, 0.1]],
    ),
    "train_inference_mismatch": ([[0.3, 0.001, 0.002]],),
    "stalled": ([[2.0, 0.0]], [[]]),
}


def detect(name, series):
    alarm = ALARMS[name]
    thresholds = {k: v for k, v in alarm.thresholds.items() if k != "after_s"}
    assert len(series) == len(alarm.reads)
    return alarm.detect(*series, **thresholds)


def test_every_alarm_has_both_cases():
    assert set(FIRES) == set(QUIET) == set(ALARMS)


@pytest.mark.parametrize(
    ("name", "series"), [(n, s) for n, cases in FIRES.items() for s in cases]
)
def test_it_fires(name, series):
    assert detect(name, series)


@pytest.mark.parametrize(
    ("name", "series"), [(n, s) for n, cases in QUIET.items() for s in cases]
)
def test_it_does_not_fire(name, series):
    assert detect(name, series) is None


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_fire_return_drop(seed):
    values = noisy(0.5, 0.5, 100, noise=0.15, seed=seed)
    fired = [detect("return_drop", [values[:n]]) for n in range(1, len(values))]
    assert not any(fired)


# Settings -----------------------------------------------------------------------------


def test_defaults_warn_and_settings_change_them():
    chosen = bind_alarms({"kl": {"above": 0.5, "action": "stop"}, "nan": False})
    assert chosen["kl"].thresholds == {"above": 0.5, "window": 1}
    assert chosen["kl"].action == "stop" and "nan" not in chosen
    others = {c.action for name, c in chosen.items() if name != "kl"}
    assert others == {"warn"} and len(chosen) == len(ALARMS) - 1
    assert chosen["echo"].solved == 0.9 and chosen["length"].solved is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kll": {}}, "Unknown alarm 'kll'. Did you mean 'kl'"),
        ({"kl": {"abov": 1}}, "Did you mean 'above'"),
        ({"kl": {"action": "rolback"}}, "Did you mean 'rollback'"),
        ({"kl": {"above": "much"}}, "above='much' must be a number"),
        ({"kl": {"above": True}}, "above=True must be a number"),
        ({"kl": {"window": 0}}, "window=0 must be a whole number of iterations"),
        ({"kl": 0.5}, "must be a mapping such as {'above': 0.2, 'action': 'warn'}"),
        ({"stalled": {"action": "rollback"}}, "Use warn or stop"),
    ],
)
def test_invalid_settings_are_rejected(given, message):
    with pytest.raises(ConfigError, match=message):
        bind_alarms(given)


def test_alarms_of_a_recipe(tmp_path):
    from rllib_llm.recipes import load_recipe

    recipe = load_recipe(
        "guess_number_grpo",
        ["alarms.kl.action=rollback", "alarms.lr_factor=0.25", "alarms.echo=false"],
    )
    chosen = recipe.config.chosen_alarms()
    assert chosen["kl"].action == "rollback" and "echo" not in chosen
    assert recipe.config.alarm_lr_factor == 0.25
    with pytest.raises(ConfigError, match="Did you mean 'entropy_collapse'"):
        load_recipe("guess_number_grpo", ["alarms.entropy_colapse.action=stop"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr_factor": 1.5}, "lr_factor=1.5 must be a number in \\(0, 1\\)"),
        ({"min_lr": -1.0}, "min_lr=-1.0 must be a number >= 0"),
        ({"max_rollbacks": -1}, "max_rollbacks=-1 must be a whole number"),
        ({"snapshots": "tape"}, "snapshots='tape' must be one of memory, disk"),
    ],
)
def test_common_settings_are_checked(settings, message):
    from rllib_llm import GRPOConfig

    with pytest.raises(ConfigError, match=message):
        GRPOConfig().alarms(**settings).validate_alarms()


def test_alarms_do_not_fire_at_their_bound():
    assert detectors.is_above([0.5] * 3, above=0.5, window=3) is None
    assert detectors.is_below([0.5] * 3, below=0.5, window=3) is None
    assert detectors.is_above([0.5, 0.5, 0.6], above=0.5, window=3) is not None


def test_a_spike_is_compared_with_what_came_before_it():
    # The median of 1, 1 and 10 is 1; that of the last three is 10.
    found = detectors.has_spiked([1.0, 1.0, 10.0, 11.0], factor=10.0, history=3)
    assert found is not None and "11 times" in found


def test_updates_of_replayed_rows_alone_have_no_values_of_sampled_ones():
    history = History()

    def add(iteration, **learner):
        result = {"training_iteration": iteration, "env_runners": {}}
        history.add({**result, "learners": {"default_policy": learner}})

    def series(name):
        return history.series(f"learners/<module>/{name}", "default_policy")

    add(1, total_loss=0.1, policy_loss=0.2, entropy=0.5)
    add(2, total_loss=0.1, policy_loss=NAN, entropy=NAN, replay_token_frac=1.0)
    assert series("policy_loss") == [0.2] and series("entropy") == [0.5]
    assert series("total_loss") == [0.1, 0.1]
    # A loss that is not finite is still seen, there and beside sampled rows.
    add(3, total_loss=NAN, policy_loss=NAN, replay_token_frac=1.0)
    add(4, total_loss=0.1, policy_loss=NAN, replay_token_frac=0.5)
    assert math.isnan(series("total_loss")[2]) and math.isnan(series("policy_loss")[1])
