"""Filters against slow choices and by hand."""

import numpy as np
import pytest
from component_helpers import random_table, rearranged, trajectory

from rllib_llm.components.registry import COMPONENTS, bind
from rllib_llm.data.turn_table import MissingInfo, MissingScores, TurnTable
from rllib_llm.data.types import StopReason
from rllib_llm.errors import ConfigError
from rllib_llm.filters.apply import Filters

# Without `asked`, which needs an assistant (tests/assistants), and `evolved`, which
# needs functions (test_evolved_filter.py).
FILTERS = tuple(n for n in COMPONENTS["filter"] if n not in ("asked", "evolved"))
NEEDED = {"turn_info": {"key": "tool_error", "value": False}}


def kept(name, table, **settings):
    return bind("filter", {"name": name, **settings}).call(table)


def group(task, returns, **fields):
    """Rollouts of one task; each field is a list, one entry per rollout."""
    each = [{k: v[i] for k, v in fields.items()} for i in range(len(returns))]
    return [
        trajectory(task, i, rewards=[0.0, r], **each[i]) for i, r in enumerate(returns)
    ]


def with_infos(table, seed=3):
    rng = np.random.default_rng(seed)
    for t in table.trajectories:
        t.infos = [
            {"tool": rng.choice([None, "x"]), "tool_error": bool(rng.random() < 0.3)}
            for _ in t.rewards
        ]
        t.stop_reason = StopReason.TERMINATED if rng.random() < 0.5 else None
    return table


# Groups ------------------------------------------------------------------------------


def test_the_tasks_that_vary_most_stay():
    # Deviations 0, 0.5, 0.2, 1.
    pairs = [[1, 1], [0, 1], [0.4, 0.8], [-1, 1]]
    table = TurnTable([t for k, pair in enumerate(pairs) for t in group(k, pair)])

    def tasks(**settings):
        return sorted(set(table.task[kept("variance", table, **settings)].tolist()))

    assert tasks() == [3]
    assert tasks(value=0.5) == [1, 3]
    assert tasks(value=1.0) == [0, 1, 2, 3]
    assert tasks(value=1.0, zero=False) == [1, 2, 3]
    assert tasks(by="above", value=0.3) == [1, 3]
    # 1 / 1.7 = 0.588, 1.5 / 1.7 = 0.882.
    assert tasks(by="mass", value=0.58) == [3]
    assert tasks(by="mass", value=0.6) == [1, 3]
    assert tasks(by="mass", value=0.9) == [1, 2, 3]


# Members -----------------------------------------------------------------------------


def test_the_highest_returns_are_of_the_batch_or_of_each_task():
    pairs = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    table = TurnTable([t for k, four in enumerate(pairs) for t in group(k, four)])
    of_batch = kept("success", table, top=0.5)
    assert of_batch.tolist() == [False] * 4 + [True] * 4
    of_tasks = kept("success", table, top=0.5, per_task=True)
    assert of_tasks.tolist() == [False, False, True, True] * 2


def test_a_filter_does_not_see_what_an_earlier_one_dropped():
    seen = []

    def first(table):
        return np.arange(len(table)) >= 2

    def second(table):
        seen.append(table.returns.tolist())
        return np.arange(len(table)) > 0

    table = TurnTable(group(0, [1.0, 2.0, 3.0, 4.0]))
    for effect, later in (("drop", [3.0, 4.0]), ("mask", [1.0, 2.0, 3.0, 4.0])):
        seen.clear()
        filters = Filters([{"name": first, "effect": effect}, second])
        outcomes, shares = filters(table)
        assert seen == [later]
        assert shares["second"] == 1 / len(later)
        dropped = [v.is_dropped for v in outcomes]
        first_kept = 2 if effect == "drop" else 0
        assert dropped.index(False) == (first_kept + 1 if effect == "drop" else 1)


def roc_table(solved, errors, task=0):
    """Rollouts with one call each, or none where the error is None."""
    made = []
    for i, (ok, error) in enumerate(zip(solved, errors, strict=True)):
        tool = None if error is None else "x"
        infos = [{"tool": tool, "tool_error": bool(error)}, {"tool": None}]
        made.append(trajectory(task, i, rewards=[0, ok], success=bool(ok), infos=infos))
    return made


def test_roc_keeps_half_in_proportion_and_clean_successes():
    # Six solved, of penalties 1, 0, 0.5 (no call), 0, 1, 0.5, and two unsolved.
    errors = [True, False, None, False, True, None, True, True]
    table = TurnTable(roc_table([1] * 6 + [0, 0], errors))
    stays = kept("roc", table)
    assert stays[:6].tolist() == [False, True, True, True, False, False]
    assert stays[6:].sum() == 1


def test_roc_counts_repeated_answers():
    of = roc_table([1, 1], [False, False])
    of[0].completions = ["<answer>a</answer> <answer>a</answer>", "<answer>a</answer>"]
    assert kept("roc", TurnTable(of)).tolist() == [False, True]


@pytest.mark.parametrize("num_good", range(9))
def test_roc_keeps_the_number_asked_for_and_both_classes(num_good):
    table = TurnTable(roc_table([1] * num_good + [0] * (8 - num_good), [False] * 8))
    stays = kept("roc", table)
    assert stays.sum() == 4
    good = int(stays[:num_good].sum())
    assert abs(good - num_good / 2) <= 0.5
    if 0 < num_good < 8:
        assert 1 <= good <= 3
        both = int(kept("roc", table, least_per_class=2)[:num_good].sum())
        assert min(2, num_good) <= both <= 4 - min(2, 8 - num_good)


def test_rocs_choice_of_failures_is_even_and_repeats():
    counts = np.zeros(4)
    for task in range(400):
        table = TurnTable(roc_table([0] * 4, [False] * 4, task))
        stays = kept("roc", table)
        assert np.array_equal(stays, kept("roc", table))
        counts += stays
    assert np.abs(counts - 200).max() < 40  # standard deviation: 10
    other = [kept("roc", table, seed=s).tolist() for s in range(20)]
    assert len(set(map(tuple, other))) > 1


def test_priority_is_short_when_right_and_long_when_wrong():
    tokens = [[n, 0] for n in (5, 2, 9, 4, 1, 8)]
    table = TurnTable(
        group(
            0, [1, 1, 1, 0, 0, 0], num_tokens=tokens, success=[True] * 3 + [False] * 3
        )
    )
    assert kept("priority", table, alpha=0.3).tolist() == [0, 1, 0, 0, 0, 1]
    assert kept("priority", table).tolist() == [1, 1, 0, 1, 0, 1]
    assert kept("priority", table, alpha=1.0).all()


def test_success_by_itself_by_return_or_by_rank():
    table = TurnTable(group(0, [0.1, 0.9, 0.4]) + group(1, [0.8, 0.2, 0.8]))
    assert kept("success", table).tolist() == [0, 1, 0, 1, 0, 1]
    assert kept("success", table, least=0.4).tolist() == [0, 1, 1, 1, 0, 1]
    assert kept("success", table, top=1 / 6).tolist() == [0, 1, 0, 0, 0, 0]
    assert kept("success", table, top=1 / 3, per_task=True).tolist() == [
        0,
        1,
        0,
        1,
        0,
        1,
    ]


# What was said -----------------------------------------------------------------------


def test_bad_texts_and_ends_are_left_out():
    table = TurnTable(
        [
            trajectory(0, i, completions=[text], stop_reason=reason)
            for i, (text, reason) in enumerate(
                [
                    ("a b c d", StopReason.TERMINATED),
                    ("a b a b a b a b a b", StopReason.TERMINATED),
                    ("caf\u00e9 \u4f60\u597d\n", StopReason.MAX_TURNS),
                    ("\ufffd\x00 ok", StopReason.MAX_TOKENS_EPISODE),
                    ("", None),
                ]
            )
        ]
    )
    assert kept("repetition", table, n=2).tolist() == [1, 0, 1, 1, 1]
    assert kept("unreadable", table).tolist() == [1, 1, 1, 0, 1]
    assert kept("unreadable", table, most=0.4).all()
    assert kept("incomplete", table).tolist() == [1, 1, 0, 0, 0]
    outcomes, _ = Filters(["incomplete", "unreadable"])(table)
    assert not any(v.is_dropped for v in outcomes)
    assert [v.is_masked for v in outcomes] == [False, False, True, True, True]


def test_turns_after_the_first_error_are_not_learnt_from():
    one = trajectory(0, 0, rewards=[0, 0, 0], invalid=[False, True, False])
    two = trajectory(0, 1, rewards=[0, 0], infos=[{"tool_error": True}, {}])
    fine = trajectory(0, 2, rewards=[0, 1])
    table = TurnTable([one, two, fine])
    assert kept("first_error", table).tolist() == [1, 1, 0, 1, 0, 1, 1]
    without = kept("first_error", table, and_error=False)
    assert without.tolist() == [1, 0, 0, 0, 0, 1, 1]
    outcomes, _ = Filters(["first_error"])(table)
    assert [v.masked_turns for v in outcomes] == [{2}, {1}, set()]


def test_turns_whose_info_has_a_value():
    infos = [{"own": False}, {"own": True}, {}]
    table = TurnTable([trajectory(0, 0, rewards=[0, 0, 1], infos=infos)])
    for value, expected in ((True, [0, 1, 0]), (False, [1, 0, 0]), (None, [0, 0, 1])):
        choices = {"key": "own", "value": value}
        assert kept("turn_info", table, **choices).tolist() == expected
    # 1 is not True.
    assert not kept("turn_info", table, key="own", value=1.0).any()
    outcomes, _ = Filters([{"name": "turn_info", "key": "own", "value": False}])(table)
    assert [v.masked_turns for v in outcomes] == [{1, 2}]
    with pytest.raises(MissingInfo, match="has no 'other'"):
        kept("turn_info", table, key="other")


def test_turns_that_match_a_rule():
    table = TurnTable([trajectory(0, i, rewards=[0, 0, 1]) for i in range(2)])
    for t in table.trajectories:
        t.observations = ["start", "ice down right", "ice up"]
        t.completions = ["go up", "go down", "go up"]
    choices = {"observation": r"ice \w+ \w+"}
    assert kept("turns_with", table, **choices).tolist() == [0, 1, 1] * 2
    assert kept("turns_with", table, **choices, last=False).tolist() == [0, 1, 0] * 2
    both = {**choices, "completion": "up", "last": False}
    assert not kept("turns_with", table, **both).any()
    outcomes, _ = Filters([{"name": "turns_with", **choices}])(table)
    assert [v.masked_turns for v in outcomes] == [{0}, {0}]
    with pytest.raises(ConfigError, match="is no regular expression"):
        Filters([{"name": "turns_with", "completion": "("}]).try_out()


# Scores ------------------------------------------------------------------------------


def test_the_best_scored_rollouts_of_each_task_stay():
    scores = [[0.0, 1.0], [2.0, 2.0], [-1.0, 0.5], [3.0, 0.0], [9.0, 9.0], [5.0, 5.0]]
    table = TurnTable(
        [
            *group(0, [1, 1, 1, 1], scores=scores[:4]),
            *group(1, [0, 0], scores=scores[4:]),
        ]
    )
    # Sums 1, 4, -0.5, 3 and 18, 10: returns decide nothing.
    assert kept("scorer", table).tolist() == [0, 1, 0, 0, 1, 0]
    assert kept("scorer", table, top=0.5).tolist() == [0, 1, 0, 1, 1, 0]
    assert kept("scorer", table, top=1.0).all()
    equal = TurnTable(group(0, [0, 1, 2], scores=[[1.0, 1.0]] * 3))
    assert kept("scorer", equal, top=0.34).tolist() == [1, 0, 0]


def test_turns_of_high_score_stay():
    table = TurnTable(group(0, [1, 1], scores=[[-0.1, 0.0], [2.0, -3.0]]))
    assert kept("scored_turns", table).tolist() == [0, 1, 1, 0]
    assert kept("scored_turns", table, least=-1.0).tolist() == [1, 1, 1, 0]


def test_without_a_scorer_nothing_is_kept_in_silence():
    table = TurnTable(group(0, [1, 1]))
    for t in table.trajectories:
        t.scores = None
    for name in ("scorer", "scored_turns"):
        with pytest.raises(MissingScores, match="Set scorer.loss"):
            kept(name, table)


# All of them -------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILTERS)
def test_order_changes_nothing(name):
    table = with_infos(random_table(tasks=4, rollouts=6))
    order = np.random.default_rng(2).permutation(len(table))
    needed = NEEDED.get(name, {})
    moved, stays = rearranged(table, order), kept(name, table, **needed)
    of_turns = len(stays) != len(table)
    parts = table.split(stays) if of_turns else [[s] for s in stays]
    expected = np.concatenate([parts[i] for i in order])
    assert kept(name, moved, **needed).tolist() == expected.tolist()


@pytest.mark.parametrize("name", FILTERS)
def test_nothing_lone_rollouts_and_masked_ones_are_no_trouble(name):
    needed = NEEDED.get(name, {})
    assert kept(name, TurnTable([]), **needed).shape == (0,)
    Filters([{"name": name, **needed}]).try_out()
    table = with_infos(random_table(rollouts=1))
    stays = kept(name, table, **needed)
    assert stays.dtype == bool
    for t in table.trajectories:
        t.is_trained = False
    again = kept(name, TurnTable(table.trajectories), **needed)
    assert np.array_equal(again, stays)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "variance", "by": "std"}, "by='std' must be one of"),
        ({"name": "variance", "value": 0}, "value=0 must be in"),
        ({"name": "variance", "by": "above", "value": -1}, "value=-1 must be >= 0"),
        ({"name": "roc", "keep": 0}, "keep=0 must be in"),
        ({"name": "roc", "least_per_class": -1}, "least_per_class=-1"),
        ({"name": "roc", "answer": "x"}, "has 0 groups"),
        ({"name": "priority", "alpha": 2}, "alpha=2 must be in"),
        ({"name": "success", "top": 0}, "top=0 must be in"),
        ({"name": "scorer", "top": 0}, "top=0 must be in"),
        ({"name": "success", "top": 0.5, "least": 0}, "one of them"),
        ({"name": "success", "per_task": True}, "needs top"),
        ({"name": "repetition", "n": 0}, "n=0 must be"),
        ({"name": "repetition", "most": 2}, "most=2 must be in"),
        ({"name": "unreadable", "most": -1}, "most=-1 must be in"),
    ],
)
def test_bad_settings_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        Filters([spec]).try_out()
