"""Reports and curves of runs, compared with values computed by hand or by loops."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from run_builder import RETURN, write_run

from rllib_llm.errors import ConfigError
from rllib_llm.runs import read_run
from rllib_llm.runs.plotting import lines_of, shown
from rllib_llm.runs.report import as_json, changes_of, make_report
from rllib_llm.runs.seed_statistics import mean_interval

SUCCESS = "evaluation/env_runners/success_rate"


def final_of(lr, kl, seed):
    return {0.1: 0.5, 0.2: 0.8}[lr] + {0.0: 0.0, 1.0: 0.01}[kl] + 0.02 * seed


@pytest.fixture
def sweep(tmp_path):
    trials = []
    for lr, kl, seed in itertools.product((0.1, 0.2), (0.0, 1.0), (0, 1, 2)):
        final = final_of(lr, kl, seed)
        config = {"lr": lr, "ref_kl_coeff": kl, "seed": seed, "gamma": 1}
        trials.append((config, [0.0, final + 0.1, final]))
    keys = ["lr", "ref_kl_coeff", "seed"]
    tune = {"metric": RETURN, "mode": "max"}
    return write_run(tmp_path / "sweep", trials, {"tune": tune}, keys)


def test_settings_are_ranked_over_seeds(sweep):
    report = make_report(read_run(sweep))
    assert [r.setting.params for r in report.rows] == [
        {"lr": 0.2, "ref_kl_coeff": 1.0},
        {"lr": 0.2, "ref_kl_coeff": 0.0},
        {"lr": 0.1, "ref_kl_coeff": 1.0},
        {"lr": 0.1, "ref_kl_coeff": 0.0},
    ]
    for row in report.rows:
        finals = [final_of(*row.setting.params.values(), seed) for seed in range(3)]
        mean = sum(finals) / 3
        spread = math.sqrt(sum((f - mean) ** 2 for f in finals) / 2)
        half = 4.302652729911275 * spread / math.sqrt(3)  # t, 2 degrees of freedom
        assert row.final.mean == pytest.approx(mean)
        assert row.final.high == pytest.approx(mean + half)
        assert row.final.low == pytest.approx(mean - half)
        assert row.best.mean == pytest.approx(mean + 0.1)
        assert (row.iterations, row.states) == ((3, 3), {"done": 3})
    lowest = make_report(read_run(sweep), mode="min").rows
    assert [r.setting for r in lowest] == [r.setting for r in report.rows[::-1]]


def test_effects_of_settings(sweep):
    effects = {e.name: e for e in make_report(read_run(sweep)).effects}
    assert list(effects) == ["lr", "seed", "ref_kl_coeff"]
    finals = {
        (lr, kl, s): final_of(lr, kl, s)
        for lr, kl, s in itertools.product((0.1, 0.2), (0.0, 1.0), (0, 1, 2))
    }
    grand = sum(finals.values()) / 12
    total = sum((f - grand) ** 2 for f in finals.values())
    for position, name in enumerate(("lr", "ref_kl_coeff", "seed")):
        between = 0.0
        for value in {key[position] for key in finals}:
            group = [f for key, f in finals.items() if key[position] == value]
            between += len(group) * (sum(group) / len(group) - grand) ** 2
        assert effects[name].share == pytest.approx(between / total)
    assert [value for value, _ in effects["lr"].levels] == [0.2, 0.1]
    assert effects["lr"].p_value < 0.01 < 0.5 < effects["ref_kl_coeff"].p_value


def test_random_searches_are_ranked(tmp_path):
    rates = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]
    trials = [({"lr": lr}, [-math.log(lr)]) for lr in rates]
    run = read_run(write_run(tmp_path / "run", trials, searched=["lr"]))
    (effect,) = make_report(run).effects
    assert effect.trend == pytest.approx(-1) and effect.share == pytest.approx(1)
    assert not effect.levels and effect.p_value < 1e-6
    few = read_run(write_run(tmp_path / "few", trials[:2], searched=["lr"]))
    assert make_report(few).effects == []


def test_the_metric_is_the_recipes_or_held_out_success(tmp_path):
    rows = [{RETURN: 1.0}, {RETURN: 1.0, SUCCESS: 0.5}]
    plain = read_run(write_run(tmp_path / "plain", [({}, rows)]))
    assert make_report(plain).metric == SUCCESS
    assert make_report(plain, RETURN).rows[0].final.mean == 1.0
    asked = {"tune": {"metric": RETURN, "mode": "min"}}
    named = make_report(read_run(write_run(tmp_path / "n", [({}, rows)], asked)))
    assert (named.metric, named.mode) == (RETURN, "min")
    with pytest.raises(ConfigError, match="did not report"):
        make_report(plain, "no/such/metric")
    with pytest.raises(ConfigError, match="'max' or 'min'"):
        make_report(plain, mode="best")


def test_unfinished_trials_and_unequal_lengths(tmp_path):
    trials = [
        ({"lr": 1, "seed": 0}, [0.1, 0.2, 0.3]),
        ({"lr": 1, "seed": 1}, [0.3, 0.4]),
        ({"lr": 1, "seed": 2}, []),
        ({"lr": 2, "seed": 0}, []),
    ]
    run = write_run(tmp_path / "run", trials, searched=["lr", "seed"])
    (run / "trial_00002" / "error.txt").write_text("Traceback")
    first, last = make_report(read_run(run)).rows
    assert first.final.n == 2 and first.iterations == (0, 3)
    assert first.states == {"done": 2, "failed": 1}
    assert last.final is None and last.states == {"unfinished": 1}
    points = first.setting.curve(RETURN)
    assert [(i, round(v.mean, 9), v.n) for i, v in points] == [(1, 0.2, 2), (2, 0.3, 2)]


def test_changes_by_pbt_are_reported(tmp_path):
    run = write_run(
        tmp_path / "run", [({"lr": 0.1}, [1, 2]), ({"lr": 0.2}, [3])], searched=["lr"]
    )
    path = run / "trial_00000" / "result.json"
    later = {"training_iteration": 3, "config": {"lr": 0.3}, "done": True}
    with path.open("a") as file:
        file.write(json.dumps(later) + "\n")
    (run / "trial_00000" / "params.json").write_text('{"lr": 0.3}')  # as Tune does
    found = read_run(run)
    assert found.trials[0].params == {"lr": 0.1}
    assert changes_of(found.trials[0]) == [
        {"iteration": 1, "lr": 0.1},
        {"iteration": 3, "lr": 0.3},
    ]
    report = make_report(found)
    assert report.effects == [] and [len(r.changes) for r in report.rows] == [0, 1]
    assert as_json(report)["settings"][1]["changes"]["trial_00000"][1]["lr"] == 0.3


def test_intervals_of_one_and_of_equals():
    assert mean_interval([2.0]).half is None
    assert mean_interval([2.0, 2.0]).half == 0
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        found = mean_interval(rng.normal(1.0, 3.0, size=4))
        covered += found.low <= 1.0 <= found.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.02)


def test_curves_are_labelled_by_their_differences(sweep, tmp_path):
    lines = lines_of([read_run(sweep)])
    assert [line.label for line in lines][:2] == [
        "lr=0.1, ref_kl_coeff=0",
        "lr=0.1, ref_kl_coeff=1",
    ]
    assert all(len(line.setting.trials) == 3 for line in lines)
    a, b, c = (
        write_run(tmp_path / str(i), [({"seed": 0}, [0])], {"name": name, **fields})
        for i, (name, fields) in enumerate(
            [
                ("x", {"training": {"lr": 1}, "seed": 0}),
                ("x", {"training": {"lr": 2}}),
                ("x", {"training": {"lr": 1}, "seed": 5}),
            ]
        )
    )
    lines = lines_of([read_run(run) for run in (a, b, c)])
    assert [line.label for line in lines] == ["x training.lr=1", "x training.lr=2"]
    assert len(lines[0].setting.trials) == 2
    other = write_run(tmp_path / "o", [({"seed": 0}, [0])], {"name": "y", "env": "z"})
    lines = lines_of([read_run(run) for run in (a, other)])
    assert [line.label for line in lines] == ["x", "y"]


def test_values_are_shown_short():
    assert shown(0.00012345) == "0.0001234" and shown(None) == "None"
    assert shown({"name": "gspo"}) == "gspo"
    assert shown({"name": "clip", "low": 0.2}) == "clip(low=0.2)"
    assert shown([{"a": 1}]) == '[{"a": 1}]'


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_pictures_are_written(sweep, tmp_path, ending):
    pytest.importorskip("matplotlib")
    from rllib_llm.runs.plotting import plot_lines

    out = tmp_path / "new" / f"curves.{ending}"
    plot_lines(lines_of([read_run(sweep)]), [RETURN, "training_iteration"], out)
    assert out.stat().st_size > 5000
