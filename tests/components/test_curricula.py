"""Curricula: changes of tasks, state, and refused settings."""

import copy
import dataclasses

import numpy as np
import pytest
from component_helpers import trajectory

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.components.registry import bind
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task
from rllib_llm.errors import ConfigError

SIZES = [{"size": 3}, {"size": 4}]


def curriculum(name, **settings):
    return bind("curriculum", {"name": name, **settings}).call


def play(of, groups, solve, rollouts=4, first=0):
    """One iteration: assign tasks, play them, observe. Returns the options given."""
    tasks = [
        of.assign(Task(g, 0, seed=g, options={"split": "train"}), 0)
        for g in range(first, first + groups)
    ]
    rng = np.random.default_rng(first)
    of.observe(
        TurnTable(
            [
                trajectory(t.group_id, r, rewards=[solve(t, r, rng)])
                for t in tasks
                for r in range(rollouts)
            ]
        )
    )
    return [t.options for t in tasks]


def always(task, rollout, rng):
    return 1.0


# Threshold ---------------------------------------------------------------------------


def test_the_threshold_curriculum_goes_up_when_enough_is_solved():
    of = curriculum(
        "threshold", levels=[*SIZES, {"size": 5}], threshold=0.75, window=16
    )
    half = [play(of, 2, lambda t, r, g: float(r < 2), first=4 * i) for i in range(4)]
    assert {o["size"] for options in half for o in options} == {3}
    assert {o["split"] for options in half for o in options} == {"train"}
    play(of, 2, lambda t, r, g: float(r < 3), first=100)
    assert of.level == 0  # 6 of the last 8, 10 of the last 16
    play(of, 2, always, first=200)
    assert of.level == 1  # 14 of the last 16
    assert play(of, 2, always, first=300)[0]["size"] == 4
    assert of.level == 1  # the window of a level starts empty
    play(of, 2, always, first=400)
    assert of.level == 2
    play(of, 9, always, first=500)
    assert of.level == 2  # the last one stays


def test_a_level_may_have_several_options_and_groups_stay_whole():
    of = curriculum("threshold", levels=[SIZES], seed=1)
    sizes = [o["size"] for o in play(of, 60, always)]
    assert 15 < sizes.count(3) < 45
    task = Task(7, 0, seed=7)
    assert of.assign(task, 0) == of.assign(task, 5)


# Horizon -----------------------------------------------------------------------------


def test_the_horizon_grows_by_phases_and_the_last_one_stays():
    of = curriculum("horizon", turns=[2, 5, 9], every=3)
    task = Task(0, 0, 0)
    bounds = [of.assign(task, iteration).max_turns for iteration in range(12)]
    assert bounds == [2, 2, 2, 5, 5, 5, 9, 9, 9, 9, 9, 9]


# Rising ------------------------------------------------------------------------------


def test_the_option_rises_slowly_at_first_and_then_stays():
    of = curriculum("rising", option="noise", start=0.1, end=0.5, iterations=8)
    task = Task(0, 0, 0, options={"split": "train"})
    values = [of.assign(task, i).options["noise"] for i in range(11)]
    # ZeroSearch's schedule: p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s), b = 4
    expected = [0.1 + (4 ** (i / 8) - 1) / 3 * 0.4 for i in range(9)]
    assert values == pytest.approx([*expected, 0.5, 0.5])
    assert values[4] < 0.3 and of.assign(task, 0).options["split"] == "train"
    assert of.all_options() == [{"noise": 0.1}, {"noise": 0.5}]


@pytest.mark.parametrize(
    "given", [{"option": ""}, {"iterations": 0}, {"base": 1.0}, {"base": float("nan")}]
)
def test_impossible_schedules_are_refused(given):
    settings = {"option": "noise", "start": 0.0, "end": 0.5, "iterations": 8, **given}
    with pytest.raises((ConfigError, ValueError), match=next(iter(given))):
        curriculum("rising", **settings)


# Bandit ------------------------------------------------------------------------------


def learnable(task, rollout, rng):
    """Size 4 varies, size 3 is always solved."""
    return float(rng.random() < 0.5) if task.options["size"] == 4 else 1.0


@pytest.mark.parametrize("measure", ["cv", "variance", "progress"])
@pytest.mark.parametrize("rule", ["ucb", "thompson"])
def test_the_bandit_finds_where_there_is_something_to_learn(measure, rule):
    of = curriculum("bandit", arms=SIZES, measure=measure, rule=rule, explore=0.1)
    given = [o for i in range(40) for o in play(of, 2, learnable, first=2 * i)]
    assert [o["size"] for o in given[-20:]].count(4) > 15


def test_ucb_by_hand():
    of = curriculum("bandit", arms=SIZES, measure="variance", explore=1.0)
    play(of, 2, lambda t, r, g: float(r % 2), rollouts=2)  # one try of each, 0.25
    assert of.counts.tolist() == [1, 1] and of.sums.tolist() == [0.25, 0.25]
    of.counts, of.sums = np.array([9.0, 1.0]), np.array([9 * 0.5, 0.0])
    # 0.5 + sqrt(ln 11 / 9) = 1.02 < 0 + sqrt(ln 11 / 1) = 1.55
    assert of.assign(Task(50, 0, 0), 0).options["size"] == 4
    # Now under way, so 0 + sqrt(ln 12 / 2) = 1.11 > 0.5 + sqrt(ln 12 / 9) = 1.03
    assert of.assign(Task(51, 0, 0), 0).options["size"] == 4
    # 0 + sqrt(ln 13 / 3) = 0.92 < 0.5 + sqrt(ln 13 / 9) = 1.03
    assert of.assign(Task(52, 0, 0), 0).options["size"] == 3


def test_what_was_long_ago_may_be_forgotten():
    of = curriculum("bandit", arms=SIZES, measure="variance", decay=0.5)
    play(of, 2, learnable)
    play(of, 0, learnable)
    assert of.counts.tolist() == [0.5, 0.5]


# Failed ------------------------------------------------------------------------------


def sampled(of, first, solved):
    """One iteration of as many tasks as ``solved``; returns their seeds."""
    tasks = [
        of.assign(Task(g, 0, seed=1000 + g, options={"of": g}), 0)
        for g in range(first, first + len(solved))
    ]
    assert all(t.options["of"] == t.seed - 1000 for t in tasks)
    of.observe(
        TurnTable(
            [
                dataclasses.replace(
                    trajectory(t.group_id, r, rewards=[wins > r]), task=t
                )
                for t, wins in zip(tasks, solved, strict=True)
                for r in range(4)
            ]
        )
    )
    return [t.seed for t in tasks]


def test_tasks_that_no_rollout_solved_come_again():
    of = curriculum("failed", prob=1.0, repeats=2)
    assert sampled(of, 0, [0, 1, 4, 0]) == [1000, 1001, 1002, 1003]
    # The oldest first; the second of them is solved now.
    assert sampled(of, 10, [0, 4, 4]) == [1000, 1003, 1012]
    assert sampled(of, 20, [0, 4]) == [1000, 1021]
    # Sampled again twice, and still not solved: it is given up.
    assert sampled(of, 30, [4]) == [1030]


def test_the_share_of_failed_tasks_and_their_number_are_bounded():
    of = curriculum("failed", prob=0.25, capacity=50, repeats=1, seed=3)
    sampled(of, 0, [0] * 80)
    assert len(of.get_state()["waiting"]) == 50
    seeds = sampled(of, 100, [4] * 100)
    again = [s for s in seeds if s < 1080]
    assert again == list(range(1030, 1030 + len(again)))  # the newest 50
    assert 13 <= len(again) <= 37
    assert sampled(copy.deepcopy(of), 300, [4] * 9) == sampled(of, 300, [4] * 9)


def test_failed_tasks_come_again_with_other_options():
    of = curriculum("failed", prob=1.0, repeats=1, options={"hint_prob": 1.0})
    assert of.all_options() == [{"hint_prob": 1.0}]
    assert curriculum("failed").all_options() == []
    task = Task(0, 0, seed=7, options={"split": "train", "hint_prob": 0.0})
    assert of.assign(task, 0) == task  # none has failed yet
    of.observe(TurnTable([trajectory(0, 0, rewards=[0.0])]))
    (waiting,) = of.get_state()["waiting"]
    assert waiting[1] == {}  # its own options, without the added ones
    again = of.assign(dataclasses.replace(task, group_id=1, seed=8), 1)
    assert (again.seed, again.options) == (100, {"hint_prob": 1.0})
    with pytest.raises(ConfigError, match="options"):
        curriculum("failed", options="hint")


# Both --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "threshold", "levels": [SIZES, SIZES], "threshold": 0.5, "window": 24},
        {"name": "bandit", "arms": SIZES, "rule": "thompson"},
        {"name": "bandit", "arms": SIZES, "decay": 0.9},
    ],
)
def test_a_restored_curriculum_goes_on_exactly(spec):
    of = bind("curriculum", spec)
    for i in range(3):
        play(of.call, 3, learnable, first=3 * i)
    again = bind("curriculum", spec)
    again.set_state(copy.deepcopy(of.get_state()))
    for i in range(3, 9):
        options = [play(c.call, 3, learnable, first=3 * i) for c in (of, again)]
        assert options[0] == options[1]
    assert str(of.get_state()) == str(again.get_state())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("threshold", "needs 'levels'"),
        ({"name": "threshold", "levels": []}, "must be a list of options"),
        ({"name": "threshold", "levels": [3]}, "must be options of the environment"),
        ({"name": "threshold", "levels": SIZES, "threshold": 0}, "threshold=0 must be"),
        ({"name": "threshold", "levels": SIZES, "window": 0}, "window=0 must be"),
        ({"name": "threshold", "levels": [{"siez": 3}]}, "Did you mean 'size'"),
        ({"name": "threshold", "levels": [{"size": 3}, {"size": 99}]}, "size"),
        ({"name": "failed", "prob": 0}, "prob=0 must be in"),
        ({"name": "failed", "repeats": 0}, "repeats=0 must be >= 1"),
        ({"name": "failed", "capacity": 1.5}, "capacity=1.5 must be a whole"),
        ({"name": "bandit", "arms": SIZES[:1]}, "two or more"),
        ({"name": "bandit", "arms": SIZES, "measure": "std"}, "measure must be"),
        ({"name": "bandit", "arms": SIZES, "rule": "best"}, "rule one of ucb"),
        ({"name": "bandit", "arms": SIZES, "decay": 0}, "decay in"),
        ({"name": "bandit", "arms": [{"size": 3}, {"holes": 1}]}, "holes"),
    ],
)
def test_bad_settings_are_refused_before_training(spec, message):
    config = GRPOConfig().environment("frozen_lake-v0").rollouts(curriculum=spec)
    with pytest.raises(ConfigError, match=message):
        DriverComponents(config).try_out()


def test_trying_out_changes_nothing():
    config = GRPOConfig().environment("frozen_lake-v0")
    config.rollouts(curriculum={"name": "bandit", "arms": SIZES})
    components = DriverComponents(config)
    before = str(components.get_state())
    components.try_out()
    assert (
        str(components.get_state()) == before
        and not components.only.curriculum.call._given
    )
