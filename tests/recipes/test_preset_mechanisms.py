"""Advantages, rewards and filters of each preset, compared with values by hand.

Losses and critics: test_preset_losses.py. Two iterations of each preset, compared with
the same formulas: test_credit_recipes.py, test_reward_recipes.py,
tests/components/test_loss_recipes.py, test_preset_runs.py.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from preset_helpers import advantages_of, config_of, rollout, searcher

from rllib_llm.advantages.estimators.anchor import anchors
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.assistants.questions import questions_about
from rllib_llm.assistants.settings import read_assistant
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task
from rllib_llm.recipes import search_spaces

approx = pytest.approx


# Credit ------------------------------------------------------------------------------


def one_success(task=0):
    """Four rollouts of unlike lengths, of which the first succeeds."""
    ends = [1, 0, 0, 0]
    return [
        rollout(i, [0] * (i % 3) + [r], task=task, greedy=0.25)
        for i, r in enumerate(ends)
    ]


def all_succeed(task=1):
    return [rollout(i, [0, 1], task=task, greedy=1.0) for i in range(4)]


# Returns 1, 0, 0, 0: mean 1/4, deviation 1/2; with 1, 1, 1, 1 of another task: 0.5175.
SPREAD = statistics.stdev([1, 0, 0, 0, 1, 1, 1, 1])
OF_GROUPS = {
    "frozen_lake_grpo": (1.5, -0.5),
    "starpo": (1.5, -0.5),
    "dapo": (1.5, -0.5),
    "dr_grpo": (0.75, -0.25),
    "rloo": (1.0, -1 / 3),
    "loop": (1.0, -1 / 3),
    "practitioners_guide": (1.0, -1 / 3),
    "maxrl": (3.0, -1.0),
    "lite_ppo": (0.75 / SPREAD, -0.25 / SPREAD),
    "remax": (0.75, -0.25),  # the greedy rollout has return 1/4
}


@pytest.mark.parametrize("name", OF_GROUPS)
def test_advantages_of_a_group_by_hand(name):
    success, failure = OF_GROUPS[name]
    *mixed, a, b, c, d = advantages_of(name, one_success() + all_succeed())
    assert mixed[0] == approx([success], rel=1e-5)
    for turns, i in zip(mixed[1:], (1, 2, 3), strict=True):
        assert turns == approx([failure] * (i % 3 + 1), rel=1e-5)
    assert [a, b, c, d] == [[0.0, 0.0]] * 4


@pytest.mark.parametrize("name", [n for n in OF_GROUPS if n != "remax"])
def test_a_group_of_one_gets_nothing(name):
    assert advantages_of(name, one_success()[:1]) == [[0.0]]


def test_the_guides_other_arm_divides_by_the_deviation():
    of = {"value": search_spaces.last_of}
    first, *_ = advantages_of("practitioners_guide", one_success(), **of)
    assert first == approx([4 / 3 * 1.5], rel=1e-5)
    sizes = {config_of("practitioners_guide", **o).env_config["size"] for o in ({}, of)}
    assert sizes == {3, 4}


def over_tokens(values, counts):
    """Return mean and deviation where each value counts as often as it has tokens."""
    every = [v for v, n in zip(values, counts, strict=True) for _ in range(n)]
    return statistics.mean(every), statistics.stdev(every)


@pytest.mark.parametrize("name", ["reinforce_pp", "r1_searcher"])
def test_reinforce_pp_standardises_returns_to_go_over_tokens(name):
    made = [
        rollout(0, [0.5, 1], num_tokens=[3, 1]),
        rollout(1, [0, -1], task=1, num_tokens=[1, 5]),
    ]
    to_go = [1.5, 1.0, -1.0, -1.0]
    mean, std = over_tokens(to_go, [3, 1, 1, 5])
    found = np.concatenate(advantages_of(name, made))
    assert found == approx([(g - mean) / std for g in to_go], rel=1e-5)


def test_the_baseline_of_reinforce_pp_comes_before_the_batch():
    made = [
        rollout(0, [0, 1], num_tokens=[1, 2]),
        rollout(1, [0], num_tokens=[4]),
        rollout(0, [3], task=1, num_tokens=[2]),
        rollout(1, [2], task=1, num_tokens=[1]),
    ]
    centred = [0.5, 0.5, -0.5, 0.5, -0.5]
    mean, std = over_tokens(centred, [1, 2, 4, 2, 1])
    found = np.concatenate(advantages_of("reinforce_pp_baseline", made))
    assert found == approx([(a - mean) / std for a in centred], rel=1e-5)


def test_gigpo_compares_places_and_a_place_of_its_own_gets_nothing():
    made = [
        rollout(0, [0, 0, 1], observations=["start", "left", "goal"]),
        rollout(1, [0, 0], observations=["start", "right"]),
    ]
    keys = anchors(TurnTable(made))
    assert np.bincount(keys)[keys].tolist() == [2, 1, 1, 2, 1]
    # By episode 1/2 and -1/2; at the start 0.95^2 against 0, elsewhere alone.
    step = 0.95**2 / 2
    first, second = advantages_of("gigpo", made)
    assert first == approx([0.5 + step, 0.5, 0.5])
    assert second == approx([-0.5 - step, -0.5])


def test_mt_grpo_gives_the_first_turn_its_own_reward_too():
    made = [rollout(i, r) for i, r in enumerate([[1, 1], [0, 1], [1, 0], [0, 0]])]
    one = 0.5 / (statistics.stdev([1, 1, 0, 0]) + 1e-6)
    found = advantages_of("mt_grpo", made)
    expected = [[2 * one, one], [0, one], [0, -one], [-2 * one, -one]]
    assert np.array(found) == approx(np.array(expected))


# Rewards -----------------------------------------------------------------------------


def rewards_of(name, *trajectories, iteration=0, stage=-1):
    """Return the rewards of a preset in each turn of each trajectory."""
    DriverComponents(config_of(name, stage=stage)).only.rewards(trajectories, iteration)
    return [t.rewards for t in trajectories]


HOME, RIVER = (
    ("home of Zanos", "zanos lives in ratal"),
    ("river of Ratal", "ratal has a river"),
)
FIND_HOME, FIND_RIVER = (HOME[0], [HOME[1]]), (RIVER[0], [RIVER[1]])


@pytest.mark.parametrize("name", ["starpo", "starpo_s"])
def test_starpo_takes_a_tenth_for_each_turn_without_an_action(name):
    found = rewards_of(name, rollout(0, [0, 0, 1], invalid=[True, True, False]))
    assert found[0] == approx([-0.1, -0.1, 1.0])


def test_search_r1_rewards_exact_answers_only():
    made = [searcher(0, [FIND_HOME], a) for a in ("The right.", "right one", None)]
    assert rewards_of("search_r1", *made) == [[0, 1], [0, 0], [0, 0]]


def test_r1_searcher_rewards_search_and_format_then_answers():
    def made():
        yield searcher(0, [FIND_HOME, FIND_RIVER], "wrong")
        yield searcher(1, [FIND_HOME], "right", failed=1)
        yield searcher(2, [FIND_HOME], None)

    sums = [sum(r) for r in rewards_of("r1_searcher", *made(), stage=0)]
    assert sums == approx([1.0, 0.5, 0.5])
    sums = [sum(r) for r in rewards_of("r1_searcher", *made())]
    assert sums == approx([0.0, 1.0, -2.0])


def test_research_rewards_f1_or_a_tenth_for_format():
    answers = ("right", "right or wrong", "wrong", None)
    made = [searcher(0, [FIND_HOME], a) for a in answers]
    sums = [sum(r) for r in rewards_of("research", *made)]
    assert sums == approx([1.0, 2 * (1 / 3) / (1 / 3 + 1), 0.1, 0.0])


def test_deepretrieval_rewards_recall_in_steps():
    made = [
        searcher(0, [("both", [HOME[1], RIVER[1]])], "right"),
        searcher(1, [FIND_HOME], "right"),
        searcher(2, [("none", ["noise"])], "right"),
    ]
    assert [sum(r) for r in rewards_of("deepretrieval", *made)] == approx(
        [5.0, 4.0, -3.5]
    )
    assert config_of("deepretrieval").max_turns == 1
    # The critic may learn from all of these returns.
    assert config_of("deepretrieval").vf_clip_param > 8.5**2


def test_stepsearch_rewards_new_results_and_penalises_repeats():
    good = searcher(0, [FIND_HOME, FIND_HOME, FIND_RIVER], "right")
    silent = searcher(1, [("noise", ["noise"])], None)
    first, again, second, end = rewards_of("stepsearch", good)[0]
    # The first document matches one of two needed ones, and a little of the other.
    assert 0.3 <= first < 0.6 and first + second == approx(0.6)
    assert again == approx(-0.6)
    assert end == approx(1 + 0.618)
    assert rewards_of("stepsearch", silent)[0] == approx([0.0, -1.0])


def test_otc_multiplies_success_by_how_few_calls_it_took():
    made = [searcher(i, [FIND_HOME] * m, "right") for i, m in enumerate((1, 2, 3))]
    made.append(searcher(3, [FIND_HOME], "wrong"))
    sums = [sum(r) for r in rewards_of("otc", *made)]
    assert sums == approx(
        [1.0, math.sin(2 * math.pi / 3), math.sin(3 * math.pi / 4), 0]
    )
    made = [searcher(i, [FIND_HOME] * m, "right") for i, m in enumerate((0, 2))]
    sums = [sum(r) for r in rewards_of("otc", *made)]
    assert sums == approx([1.0, math.cos(2 * math.pi / 5)])


@pytest.mark.parametrize("iteration, judge", [(0, 0.5), (10, 0.25), (20, 0), (99, 0)])
def test_atom_searchers_judge_fades_linearly(iteration, judge):
    """The search follows one of two rules, the answer none: 1/4 of the judge."""
    made = searcher(0, [FIND_HOME], "right")
    (search, answer) = rewards_of("atom_searcher", made, iteration=iteration)[0]
    assert search == approx(judge / 4) and answer == approx(1 - judge)


def test_ppr_takes_half_of_both_signals():
    found = rewards_of(
        "ppr_renorm",
        searcher(0, [("home of Zanos", []), ("home?", [])], "right"),
        searcher(1, [("home of Zanos", [])], "wrong"),
    )
    assert found == [approx([0.25, -0.25, 0.5]), approx([0.5, -0.5])]


def test_swirl_rewards_each_turn_by_the_judges_answer_alone():
    config = config_of("swirl")
    judge = read_assistant("judge", config.assistants["judge"])
    assert (judge.per, config.row_per_turn) == ("turn", True)
    made = [
        searcher(0, [FIND_HOME, FIND_HOME, ("x", ["y"])], "wrong"),
        searcher(1, [FIND_RIVER], "right"),
    ]
    good = [[q.is_good for q in questions_about(judge, t)] for t in made]
    # A needed document counts once, and a right answer.
    assert good == [[True, False, False, False], [True, True]]
    for trajectory, values in zip(
        made, ([1.0, 0.0, 1.0, 0.0], [0.0, 1.0]), strict=True
    ):
        trajectory.answers["judge"] = values
    assert rewards_of("swirl", *made) == [[1, 0, 1, 0], [0, 1]]
    assert advantages_of("swirl", made) == [[0.5, -0.5, 0.5, -0.5], [-0.5, 0.5]]


def test_demystifying_punishes_length_softly():
    (part,) = [
        p
        for p in DriverComponents(config_of("demystifying")).only.rewards.parts
        if p.component.name == "overlong"
    ]
    longest, buffer = part.settings["longest"], part.settings["buffer"]
    free = longest - buffer
    for count, punishment in ((free, 0), (free + buffer // 2, -0.5), (longest + 9, -1)):
        turn = searcher(0, [], "right", num_tokens=[count])
        (found,) = rewards_of("demystifying", turn)
        assert found == approx([1.0 + punishment])


# Choices -----------------------------------------------------------------------------


def left(name, made):
    """Return the rollouts that a preset learns from."""
    results, _ = DriverComponents(config_of(name)).only.filters(TurnTable(made))
    return [
        t
        for t, v in zip(made, results, strict=True)
        if not (v.is_dropped or v.is_masked)
    ]


def test_roc_keeps_half_in_proportion_and_the_cleanest_successes():
    good = [searcher(i, [FIND_HOME] * 4, "right", failed=i % 4) for i in range(12)]
    bad = [searcher(12 + i, [FIND_HOME], "wrong") for i in range(4)]
    kept = left("grpo_roc", [*bad, *good])
    solved = [t for t in kept if t.is_solved]
    assert (len(kept), len(solved)) == (8, 6)
    errors = [sum(i["tool_error"] for i in t.infos) for t in solved]
    assert sorted(errors) == [0, 0, 0, 1, 1, 1]
    # Two of the rarer class stay, though its share would be one.
    kept = left(
        "grpo_roc", [*good[:2], *(searcher(20 + i, [], "no") for i in range(14))]
    )
    assert sum(t.is_solved for t in kept) == 2 and len(kept) == 8


def test_rorecomp_keeps_short_successes_and_long_failures():
    lengths = [3, 9, 5, 7]
    made = [
        searcher(4 * (a != "right") + i, [], a, num_tokens=[n])
        for a in ("right", "wrong")
        for i, n in enumerate(lengths)
    ]
    kept = {(t.is_solved, t.num_tokens[0]) for t in left("rorecomp", made)}
    assert kept == {(True, 3), (True, 5), (False, 9), (False, 7)}


def test_starpo_s_keeps_the_quarter_of_tasks_that_vary_most():
    pairs = [(1, 1), (0, 1), (0.4, 0.6), (0, 0), (0.2, 0.4), (1, 0), (0, 0.1), (1, 0.5)]
    made = [
        rollout(i, [r], task=k) for k, p in enumerate(pairs) for i, r in enumerate(p)
    ]
    assert {t.task.group_id for t in left("starpo_s", made)} == {1, 5}


@pytest.mark.parametrize(
    "iteration, turns", [(0, 6), (6, 6), (7, 9), (13, 9), (14, 12), (500, 12)]
)
def test_scaling_inter_rl_grows_its_horizon(iteration, turns):
    components = DriverComponents(config_of("scaling_inter_rl"))
    tasks = components.assign([Task(0, i, 0) for i in range(2)], iteration)
    assert [t.max_turns for t in tasks] == [turns, turns]


# Text stand-ins ----------------------------------------------------------------------


def test_deep_dxsearch_rewards_evidence_only_with_form():
    def patient(index, score, read, **fields):
        infos = [
            {"score": 0.0, "gold_documents": ["a: fever"], "documents": [read]},
            {"score": score, "gold_documents": ["a: fever"], "documents": []},
        ]
        texts = {"completions": ["<refer>a</refer>", "<answer>a</answer>"]}
        return rollout(index, [0, score], infos=infos, **texts | fields)

    made = [
        patient(0, 1.0, "a: fever"),
        patient(1, 0.5, "b: rash"),
        patient(2, 0.0, "a: fever"),
        patient(3, 1.0, "a: fever", completions=["<refer>a</refer>", "a"]),
        patient(4, 1.0, "a: fever", invalid=[True, False]),
    ]
    sums = [sum(r) for r in rewards_of("deep_dxsearch", *made)]
    assert sums == approx([1.25, 0.5, 0.25, 0.0, 0.0])


@pytest.mark.parametrize("name", ["ui_r1", "ui_r1_pictures"])
def test_ui_r1_gives_a_point_for_each_of_type_box_and_format(name):
    parts = [(1.0, 1.0, False), (1.0, 0.0, False), (0.0, 0.0, False), (0.0, 0.0, True)]
    made = [
        rollout(i, [0], invalid=[bad], infos=[{"type_right": kind, "inside": box}])
        for i, (kind, box, bad) in enumerate(parts)
    ]
    assert rewards_of(name, *made) == [[3.0], [2.0], [1.0], [0.0]]


def test_deep_travel_checks_sources_of_feasible_plans_and_repeats_failed_tasks():
    checks = [(1.0, 1.0), (1.0, 2 / 3), (0.0, 1.0)]
    made = [
        rollout(i, [0], task=i, infos=[{"feasible": plan, "consistent": shown}])
        for i, (plan, shown) in enumerate(checks)
    ]
    assert rewards_of("deep_travel", *made) == [[1.0], [0.0], [0.0]]
    curriculum = DriverComponents(config_of("deep_travel")).only.curriculum.call
    curriculum.observe(TurnTable([rollout(0, [0], task=0), rollout(0, [1], task=1)]))
    tasks = [curriculum.assign(Task(g, 0, seed=100 + g), 1) for g in range(40)]
    repeated = [task.seed for task in tasks if task.seed < 100]
    assert repeated == [0]  # the failed one, which is sampled again once


def test_metaspatial_adds_format_collisions_and_rules():
    parts = [(1.0, 1.0, False), (0.5, 0.25, False), (1.0, 1.0, True)]
    made = [
        rollout(
            i,
            [0, 0],
            invalid=[bad, False],
            infos=[{"physics": 0.0, "rules": 0.0}, {"physics": room, "rules": kept}],
        )
        for i, (room, kept, bad) in enumerate(parts)
    ]
    sums = [sum(r) for r in rewards_of("metaspatial", *made)]
    assert sums == approx([1.0, 0.2 + 0.2 + 0.1, 0.8])
