"""Every setting of every alarm changes when it fires or what it does."""

from __future__ import annotations

import math

import pytest
from setting_looks import alarmed, config_of
from setting_table import PROBES

from rllib_llm.callbacks import result_keys
from rllib_llm.env_runner import build
from rllib_llm.monitoring.alarms.catalogue import ALARMS, MODULE, TRUNCATED

# By alarm: the values of what it reads, iteration by iteration, that make it fire.
GROWN = [[0.2] * 5 + [0.9] * 3]
FIRES = {
    "kl": [[0.01, 0.01, 0.5]],
    "entropy_collapse": [[1.0, 0.01, 0.01, 0.01]],
    "entropy_explosion": [[0.4] * 5 + [2.0] * 3],
    "reward_variance": [[0.2] * 5 + [0.97] * 5, []],
    "repetition": [[0.1, 0.8, 0.8, 0.8]],
    "echo": GROWN,
    "copying": GROWN,
    "length": [[40.0] * 5 + [150.0] * 3],
    "truncation": [[0.0, 0.6, 0.6, 0.6]],
    "no_valid_action": [[1.0, 1.0, 1.0]],
    "invalid_turns": GROWN,
    "unended_turns": GROWN,
    "grad_norm": [[30.0] * 12 + [1.0] * 11 + [30.0]],
    "nan": [[0.1, math.nan], [0.1] * 2, [1.0] * 2, [1.0] * 2, [0.0] * 2],
    "return_drop": [[0.8] * 12 + [0.1] * 3],
    "train_inference_mismatch": [[0.001, 0.2, 0.2]],
    "stalled": [[0.0, 2.0]],
}
NARROW = [[], [0.5] * 10 + [0.03] * 5]  # returns of no groups lose their spread
# Of these settings other series tell.
SERIES = {
    ("reward_variance", "fraction"): NARROW,
    ("reward_variance", "baseline"): NARROW,
}
# Values with which the alarm is silent about the same series.
SILENT = {
    "above": 1e6,
    "factor": 1e6,
    "window": 40,
    "baseline": 40,
    "history": 23,
    ("entropy_collapse", "below"): 1e-6,
    ("no_valid_action", "below"): 1.5,
    ("reward_variance", "fraction"): 1e-3,
    ("return_drop", "fraction"): 5.0,
}
THRESHOLDS = [
    (name, key)
    for name, alarm in ALARMS.items()
    for key in alarm.thresholds
    if key != "after_s"
]
ACTIONS = [(name, action) for name, alarm in ALARMS.items() for action in alarm.actions]
SOLVED = [name for name, alarm in ALARMS.items() if alarm.unless_solved]


def iterations(name, series=None, **more):
    """Return what each iteration reports."""
    series = series or FIRES[name]
    reads = [
        result_keys.TRUNCATED[0] if r == TRUNCATED else r for r in ALARMS[name].reads
    ]
    paths = [
        path.removeprefix(MODULE) if path.startswith(MODULE) else f"/{path}"
        for path in reads
    ]
    length = max(map(len, series))
    return [
        {p: values[i] for p, values in zip(paths, series) if values} | more
        for i in range(length)
    ]


def times(name, series=None, *, more=None, logdir="/nowhere", **settings):
    """Return how often an alarm fires, and what is done about it."""
    given = iterations(name, series, **(more or {}))
    reports, logged = alarmed(given, logdir=logdir, **{name: settings})
    return sum(r[name] for r in reports), logged, reports


def test_every_alarm_has_its_series():
    assert set(FIRES) == set(ALARMS)


@pytest.mark.parametrize(("name", "key"), THRESHOLDS)
def test_a_threshold_decides_whether_it_fires(name, key):
    series = SERIES.get((name, key))
    assert times(name, series)[0] > 0
    silent = SILENT.get((name, key), SILENT.get(key))
    assert times(name, series, **{key: silent})[0] == 0
    default = ALARMS[name].thresholds[key]
    assert times(name, series, **{key: default}) == times(name, series)


@pytest.mark.parametrize(("name", "action"), ACTIONS)
def test_an_action_is_what_is_done(name, action, tmp_path):
    fired, logged, reports = times(name, action=action, logdir=tmp_path)
    assert fired
    done = [each[0] for each in logged]
    stopped = [r["stopped_by"] for r in reports if "stopped_by" in r]
    assert done == {"lower_lr": ["lower"], "rollback": ["back", "lower"]}.get(
        action, []
    )
    assert stopped == ([name] if action == "stop" else [])


@pytest.mark.parametrize("name", [n for n, a in ACTIONS if a == "lower_lr"])
def test_a_cooldown_is_the_iterations_between_two_actions(name):
    last = [values[-1:] * 20 if values else [] for values in FIRES[name]]
    long = [a + b for a, b in zip(FIRES[name], last)]
    often, seldom = (
        len(times(name, long, action="lower_lr", cooldown=c)[1]) for c in (1, 100)
    )
    assert seldom == 1
    if name != "grad_norm":  # what lasts is no spike
        assert often > 1


@pytest.mark.parametrize("name", SOLVED)
def test_a_solved_task_silences_it(name):
    path = f"/{result_keys.SUCCESS}"
    assert times(name, more={path: 0.7})[0]
    assert times(name, more={path: 0.7}, solved=0.6)[0] == 0
    assert times(name, more={path: 0.95})[0] == 0
    assert times(name, more={path: 0.95}, solved=None)[0]


def test_stalls_are_counted_after_the_seconds_of_the_setting(monkeypatch):
    monkeypatch.setattr(build, "RolloutMonitor", lambda after, publisher: after)

    def after(alarm):
        return build.monitor(config_of("PPO", alarms={"stalled": alarm}), 0)

    assert after({"after_s": 7.0}) == 7.0
    assert after({}) == ALARMS["stalled"].thresholds["after_s"]
    assert after(False) is None


def test_every_alarm_can_be_switched_off():
    for name in ALARMS:
        reports, _ = alarmed(iterations(name), **{name: False})
        assert all(name not in r for r in reports)
        assert f"alarms.{name}" in PROBES
