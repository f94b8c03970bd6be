"""Pass matrices, strategies and their evolution, against loops and by hand."""

import copy
import dataclasses
import json

import numpy as np
import pytest
from component_helpers import rearranged, trajectory

from rllib_llm.components.registry import bind
from rllib_llm.data.turn_table import MissingInfo, TurnTable, example_table
from rllib_llm.errors import ConfigError
from rllib_llm.filters.apply import Filters
from rllib_llm.filters.pass_matrix import Strategy, agreement, scores, select
from rllib_llm.filters.strategy_search import (
    Problem,
    best,
    evolve,
    mutated,
    place,
    rate,
)

INITIAL = Strategy()


def matrix(*rows):
    return np.array([[c == "1" for c in row] for row in rows])


def slow_weights(values, strategy):
    if strategy.standardise:
        mean = sum(values) / len(values)
        std = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
        spread = [(v - mean) / std if std > 1e-9 else 0.0 for v in values]
        return [2.718281828459045 ** (strategy.power * z) for z in spread]
    powers = [v**strategy.power for v in values]
    return powers if sum(powers) > 0 else [1.0] * len(values)


def slow_scores(passes, strategy):
    """The formula, one number after the other."""
    num_solutions, num_tests = len(passes), len(passes[0])
    agreeing = [
        (sum(row == other for other in passes) / num_solutions) ** strategy.consensus
        for row in passes
    ]
    share = [sum(row[j] for row in passes) / num_solutions for j in range(num_tests)]
    u, w = [1.0] * num_solutions, [1.0] * num_tests
    for _ in range(strategy.rounds + 1):
        s = [
            agreeing[i] * sum(w[j] * passes[i][j] for j in range(num_tests)) / sum(w)
            for i in range(num_solutions)
        ]
        t = [
            (1 - strategy.separation)
            * sum(u[i] * passes[i][j] for i in range(num_solutions))
            / sum(u)
            + strategy.separation * 4 * share[j] * (1 - share[j])
            for j in range(num_tests)
        ]
        u, w = slow_weights(s, strategy), slow_weights(t, strategy)
    return s, t


def random_strategy(rng):
    strategy = INITIAL
    for _ in range(int(rng.integers(1, 12))):
        strategy = mutated(strategy, rng)
    return strategy


def random_problem(rng, solutions=6, tests=5):
    """Right solutions pass right tests; the others pass by chance."""
    right = rng.random(solutions) < 0.5
    good = rng.random(tests) < 0.6
    luck = rng.random((solutions, tests)) < 0.35
    return Problem(np.where(good, right[:, None] | luck, luck), right)


# Scores -------------------------------------------------------------------------------


def test_the_initial_strategy_counts_passes():
    s, t = scores(matrix("110", "100", "000"), INITIAL)
    assert np.allclose(s, [2 / 3, 1 / 3, 0]) and np.allclose(t, [2 / 3, 1 / 3, 0])


@pytest.mark.parametrize("seed", range(60))
def test_scores_against_a_slow_loop_and_in_any_order(seed):
    rng = np.random.default_rng(seed)
    strategy = random_strategy(rng)
    passes = random_problem(rng, *rng.integers(1, 9, 2)).passes
    s, t = scores(passes, strategy)
    slow_s, slow_t = slow_scores(passes.tolist(), strategy)
    assert np.allclose(s, slow_s, atol=1e-9) and np.allclose(t, slow_t, atol=1e-9)
    assert s.min() >= 0 and t.max() <= 1
    rows, columns = (rng.permutation(n) for n in passes.shape)
    moved_s, moved_t = scores(passes[rows][:, columns], strategy)
    assert moved_s.tolist() == s[rows].tolist()
    assert moved_t.tolist() == t[columns].tolist()
    # Each solution, or each test, written twice changes no score.
    assert np.allclose(scores(np.repeat(passes, 2, 0), strategy)[0][::2], s)
    assert np.allclose(scores(np.repeat(passes, 2, 1), strategy)[1][::2], t)


def test_mutual_weights_and_separation_lower_useless_tests():
    # Two wrong solutions pass the tests that all pass, and a wrong test.
    passes = matrix("1110", "1110", "1101", "1100")
    initial, separating = scores(passes, INITIAL)[1], Strategy(separation=1.0)
    assert initial.argmax() == 0  # passed by all: it separates nothing
    assert scores(passes, separating)[1].tolist() == [0, 0, 1, 0.75]
    weighted = scores(passes, Strategy(rounds=3, power=2.0, separation=1.0))[0]
    assert weighted[0] > weighted[2] > weighted[3]
    assert scores(passes, INITIAL)[0][0] == scores(passes, INITIAL)[0][2]
    alike = scores(passes, Strategy(consensus=1.0))[0]
    assert alike[0] == 2 * alike[2]


# Selection ----------------------------------------------------------------------------


def kept(passes, **genes):
    solutions, tests = select(passes, Strategy(**genes))
    return solutions.tolist(), tests.tolist()


def test_the_best_solutions_and_the_tests_that_they_pass():
    passes = matrix("110", "110", "011", "000")
    # Test 0 is passed by both, test 1 by one: it scores less.
    assert kept(matrix("110", "100")) == ([1, 0], [1, 0, 0])
    # Three solutions pass two tests each; test 2, of the best score, is passed by all.
    assert kept(passes) == ([1, 1, 1, 0], [0, 1, 0])
    assert kept(passes, consensus=1.0) == ([1, 1, 0, 0], [0, 1, 0])
    assert kept(matrix("110", "110", "000")) == ([1, 1, 0], [1, 1, 0])


@pytest.mark.parametrize(
    "passes",
    [
        matrix("11", "11"),  # trivial
        matrix("00", "00"),
        matrix("10", "01", "00"),  # the best ones share no test
        matrix("11"),
        np.zeros((3, 0), bool),
        np.zeros((0, 3), bool),
    ],
)
def test_trivial_and_inconsistent_problems_are_dropped(passes):
    solutions, tests = select(passes, INITIAL)
    assert solutions.shape + tests.shape == passes.shape
    assert not solutions.any() and not tests.any()


def test_thresholds_drop_problems():
    passes = matrix("1100", "1000", "1000")  # best 0.5, spread 0.25
    assert any(kept(passes)[0])
    assert any(kept(passes, least_best=0.5, least_spread=0.2)[0])
    assert not any(kept(passes, least_best=0.51)[0])
    assert not any(kept(passes, least_spread=0.25)[0])


def agreed(passes, right):
    return agreement(passes, np.array(right, bool), *scores(passes, INITIAL))


def test_agreement_by_hand():
    passes = matrix("11", "10", "00")
    for right, expected in (
        ([1, 1, 0], 1.0),  # test 1 divides them so, and has the best score
        ([1, 0, 0], 0.5),
        ([0, 1, 1], 0.0),
        ([1, 1, 1], 0.0),
    ):
        assert agreed(passes, right) == expected
    # Equal scores: the mean over the two first ones; test 1 is passed by all.
    assert agreed(matrix("11", "11", "10"), [1, 0, 0]) == 0.25


# Evolution ----------------------------------------------------------------------------


def test_mutations_change_one_gene_within_its_range():
    rng, strategy, changed = np.random.default_rng(0), INITIAL, set()
    for _ in range(500):
        child = mutated(strategy, rng)
        before, after = (dataclasses.asdict(s) for s in (strategy, child))
        names = [k for k in before if before[k] != after[k]]
        assert len(names) <= 1
        changed |= set(names)
        assert 0 <= child.rounds <= 4 and 0 <= child.power <= 4
        assert all(
            0 <= after[k] <= 1 for k in ("separation", "least_best", "least_spread")
        )
        strategy = child
    assert changed == set(dataclasses.asdict(INITIAL))


def test_cells_hold_what_agrees_most():
    problems = [random_problem(np.random.default_rng(s)) for s in range(20)]
    archive = {}
    elites = [rate(random_strategy(np.random.default_rng(s)), problems) for s in (1, 2)]
    low = dataclasses.replace(elites[0], agreement=0.1)
    for elite in (low, elites[0], low):
        place(archive, elite)
    assert list(archive.values()) == [elites[0]]
    keeps = [dataclasses.replace(low, agreement=a, kept=k) for a, k in ((1, 0), (0, 1))]
    assert best(keeps, 0.0) is keeps[0] and best(keeps, 0.5) is keeps[1]
    assert best(keeps[:1], 0.5) is keeps[0]


def test_evolution_agrees_more_each_generation_and_repeats():
    problems = [random_problem(np.random.default_rng(s)) for s in range(20)]

    def run(seed):
        islands, curve = [[], []], []
        for generation in range(4):
            rng = np.random.default_rng([seed, generation])
            elites = evolve(islands, problems, 16, rng)
            islands = [[e.strategy for e in island] for island in elites]
            both = [best(island, 0.0) for island in elites]
            curve.append(max(e.agreement for e in both))
        return islands, curve

    islands, curve = run(0)
    assert curve == sorted(curve)
    assert curve[-1] > rate(INITIAL, problems).agreement + 0.1
    assert run(0) == (islands, curve)
    assert run(1)[0] != islands
    # The best travels to the next island.
    found = [{rate(s, problems).agreement for s in island} for island in islands]
    assert curve[-1] in found[0] & found[1]


# The filter ---------------------------------------------------------------------------

RIGHT = "def f(n):\n    return n + 2"
SAME = "def f(n):\n    return 2 + n"
WRONG = "def f(n):\n    return n * 2"
ADDS, TWO, LIE = [[1], 3], [[2], 4], [[5], 10]  # all pass TWO, WRONG alone the last


def rollout(task, number, code, test, checked=None, success=True):
    infos = [
        {"program": code, "test": None, "checked": checked},
        {"program": None, "test": test, "checked": None},
    ]
    return trajectory(task, number, rewards=[0, 0], infos=infos, success=success)


def problem(task, *, seeds=False, codes=(RIGHT, SAME, WRONG), tests=(ADDS, TWO, ADDS)):
    return [
        rollout(task, i, code, test, code != WRONG if seeds else None, code != WRONG)
        for i, (code, test) in enumerate(zip(codes, tests, strict=True))
    ]


def filtered(table, **settings):
    bound = bind("filter", {"name": "evolved", **settings})
    return bound.call, bound.call(table)


@pytest.mark.sandbox
def test_turns_of_the_best_functions_and_tests_stay():
    trivial = problem(2, tests=[TWO] * 3)
    table = TurnTable([*problem(0, seeds=True), *problem(1), *trivial])
    call, keep = filtered(table, children=0)
    parts = [x.tolist() for x in table.split(keep)]
    # TWO has the best score: all pass it. Seed problems are left out.
    assert parts == [[0, 0]] * 3 + [[1, 0], [1, 1], [0, 0]] + [[0, 0]] * 3
    assert call.metrics["num_checked"] == 1.0
    assert call.metrics["agreement_initial"] == call.metrics["agreement_evolved"]
    assert call.metrics["kept_initial"] == 0.5
    assert call.metrics["right_all"] == pytest.approx(2 / 3)
    assert call.metrics["right_evolved"] == 1.0
    # Another order of delivery.
    order = np.random.default_rng(0).permutation(len(table))
    moved = rearranged(table, order)
    assert [x.tolist() for x in moved.split(filtered(moved, children=0)[1])] == [
        parts[i] for i in order
    ]


@pytest.mark.sandbox
def test_the_strategy_decides_what_is_kept_and_truth_does_not():
    table = TurnTable(problem(1, tests=(ADDS, LIE, LIE)))
    call, keep = filtered(table)
    assert keep.tolist() == [0, 0, 0, 1, 1, 1]  # WRONG passes two tests of three
    for one in table.trajectories:
        one.success, one.rewards = not one.success, [1.0, 1.0]
    assert call(TurnTable(table.trajectories)).tolist() == keep.tolist()
    # Functions that pass the same tests, two of three, outweigh one more passed test.
    call.strategy = Strategy(consensus=2.0)
    assert call(table).tolist() == [1, 1, 1, 0, 0, 0]


@pytest.mark.sandbox
def test_seed_problems_decide_the_strategy_and_a_resumed_filter_goes_on():
    # Liars: two of three tests are passed by the wrong function alone.
    lied = {"tests": (ADDS, LIE, LIE)}
    seeds = [p for k in range(6) for p in problem(k, seeds=True, **lied)]
    table = TurnTable([*seeds, *problem(9, **lied)])
    call, _ = filtered(table, children=40)
    assert call.metrics["agreement_initial"] == 0.5  # the test, not the functions
    assert call.strategy != Strategy()
    keep = call(table)
    assert keep.tolist()[-6:] == [1, 1, 1, 0, 0, 0]
    assert call.metrics["agreement_evolved"] == 1.0
    assert call.metrics["right_evolved"] > call.metrics["right_initial"]
    other = bind("filter", {"name": "evolved", "children": 40}).call
    other.set_state(json.loads(json.dumps(call.get_state())))
    assert other(table).tolist() == call(table).tolist()
    assert other.get_state() == call.get_state()
    few = bind("filter", {"name": "evolved", "memory": 4}).call
    few(table)
    assert len(few.problems) == 4


@pytest.mark.sandbox
def test_functions_and_tests_that_nobody_can_run():
    odd = problem(3, codes=("x =", "def g(): 1", RIGHT), tests=(None, ADDS, [[], 1]))
    table = TurnTable([*odd, rollout(4, 0, None, None)])
    call, keep = filtered(table)
    assert keep.tolist() == [0, 0, 0, 1, 1, 0, 0, 0]
    assert filtered(TurnTable([]))[1].shape == (0,)
    copied = copy.deepcopy(call)
    assert copied(table).tolist() == keep.tolist()


@pytest.mark.sandbox
def test_bad_settings_and_other_environments_are_refused():
    for settings, message in (
        ({"children": -1}, "children=-1"),
        ({"least_kept": 2.0}, "least_kept=2.0"),
        ({"children": 0, "islands": 3}, "evolves nothing"),
        ({"sandbox": "no"}, "no"),
    ):
        with pytest.raises(ConfigError, match=message):
            Filters([{"name": "evolved", **settings}]).try_out()
    with pytest.raises(MissingInfo, match="'checked'"):
        filtered(example_table())
    filters = Filters(["evolved"])
    filters(TurnTable(problem(1)))
    assert filters.metrics()["evolved", "right_all"] == pytest.approx(2 / 3)
