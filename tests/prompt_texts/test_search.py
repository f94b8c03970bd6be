"""Library and population: operations, draws, trials; the pool that writes."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest
from component_helpers import trajectory

from rllib_llm.assistants.pool import contrast, pool
from rllib_llm.assistants.questions import Question
from rllib_llm.components.registry import bind
from rllib_llm.data.text_operations import TextOperation, read_operations
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task
from rllib_llm.envs.ground_rules import GROUNDS, MOVES, rule_text
from rllib_llm.errors import ConfigError

POOL = [rule_text(ground, move) for ground in GROUNDS for move in MOVES]


def walked(task, move, reward, *, rollout=0, ground="ice"):
    one = trajectory(task=task, rollout=rollout, rewards=(reward,))
    one.observations, one.completions = [f"On {ground}"], [rule_text(ground, move)]
    one.success = reward > 0.5
    return one


def question(*trajectories, texts=(), seed=0):
    return Question((), (), 0, seed, texts=texts, trajectories=trajectories)


def text_of(source):
    return [added.text for added in source.texts_for("On ice")]


# The pool -----------------------------------------------------------------------------


def test_contrast_counts_words_by_hand():
    right, left = walked(0, "right", 1), walked(0, "left", 0, rollout=1)
    # "on" and "ice" are observed, "right" is in a solved reply, "left" in a failed one.
    assert contrast("On ice right.", [right, left]) == 3
    assert contrast("On ice left.", [right, left]) == 1
    assert contrast("On ice up.", [right, left]) == 2
    assert contrast("On sand right.", [right, left]) == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_pool_writes_the_rule_that_solved_rollouts_show(seed):
    asked = question(walked(0, "right", 1), walked(0, "left", 0), seed=seed)
    assert pool(asked, candidates=POOL, form="ADD: {text}") == "ADD: On ice right."


def test_after_a_failure_the_pool_writes_another_move_of_that_ground():
    written = {
        pool(question(walked(0, "up", 0), seed=s), candidates=POOL) for s in range(40)
    }
    assert written == {f"On ice {m}." for m in ("left", "right", "down")}


def test_no_text_is_written_twice_and_a_used_up_pool_writes_none():
    given: list[str] = []
    for seed in range(len(POOL) + 1):
        asked = question(walked(0, "up", 0), texts=tuple(given), seed=seed)
        given.append(pool(asked, candidates=POOL, choose="random"))
    assert sorted(given[:-1]) == sorted(POOL) and given[-1] == ""


def test_the_pool_refuses_questions_about_values():
    with pytest.raises(ConfigError, match=r"parse\.text"):
        pool(question(), candidates=POOL)


# Operations ---------------------------------------------------------------------------


def test_operations_are_read_line_by_line():
    answer = (
        "I think:\n- ADD: go right\nupdate 2: go up\nDELETE 1\nKEEP\nDELETE 9\nADD:"
    )
    assert read_operations(answer, 2) == [
        TextOperation("add", 0, "go right"),
        TextOperation("update", 2, "go up"),
        TextOperation("delete", 1),
    ]


# Library ------------------------------------------------------------------------------


def library(**settings):
    return bind("prompt_text", {"name": "library", "of": "writer", **settings}).call


def test_the_library_asks_about_tasks_that_were_solved_sometimes():
    table = TurnTable([
        walked(2, "right", 1), walked(2, "left", 0, rollout=1),
        walked(0, "right", 1), walked(0, "right", 1, rollout=1),
        walked(1, "left", 0), walked(1, "left", 0, rollout=1),
    ])  # fmt: skip
    (asked,) = library(texts=["a"]).asked(table)
    assert [t.task.group_id for t in asked.trajectories] == [2, 2]
    assert asked.texts == ("a",)


def test_operations_refer_to_the_list_that_was_shown():
    of = library(texts=["a", "b", "c"])
    numbers = of.observe(TurnTable([]), ["DELETE 1\nADD: d", None, "UPDATE 2: e"])
    assert of.texts == ["e", "c", "d"]
    assert [numbers[f"num_{k}"] for k in ("added", "updated", "deleted")] == [1, 1, 1]
    # Deleted by one answer, updated by the next; added twice.
    of.observe(TurnTable([]), ["DELETE 1\nADD: f", "UPDATE 1: g\nADD: f"])
    assert of.texts == ["c", "d", "f"]


def test_the_oldest_text_goes_beyond_the_size():
    of = library(size=2)
    of.observe(TurnTable([]), ["ADD: a", "ADD: b", "ADD: c"])
    assert of.texts == ["b", "c"]
    assert text_of(of.assign(Task(0, 0, 0), 0).prompt_text) == ["b", "c"]
    assert text_of(of.shared()) == ["b", "c"]


def test_a_library_continues_from_its_state():
    of, other = library(texts=["a"]), library(texts=["b"])
    of.observe(TurnTable([]), ["ADD: c"])
    other.set_state(of.get_state())
    for each in (of, other):
        each.observe(TurnTable([]), ["ADD: d"])
    assert other.get_state() == of.get_state()


# Population ---------------------------------------------------------------------------


def population(**settings):
    return bind("prompt_text", {"name": "population", "of": "w", **settings}).call


def returned(of, returns, answers=()):
    """Let groups 0, 1, ... read instructions and return these values."""
    tasks = [of.assign(Task(g, 0, g), 0) for g in range(len(returns))]
    table = TurnTable([walked(g, "up", value) for g, value in enumerate(returns)])
    return tasks, of.observe(table, answers)


def test_values_are_running_means_and_decide_the_draws():
    of = population(texts=["a", "b"], temperature=0.5, decay=0.25)
    of.members[0].value, of.members[1].value = 1.0, 0.5
    expected = 1 / (1 + math.exp(-1.0))
    np.testing.assert_allclose(of.probabilities(), [expected, 1 - expected])
    counts = collections.Counter(
        text_of(of.assign(Task(g, 0, g), 0).prompt_text)[0] for g in range(2000)
    )
    assert counts["a"] / 2000 == pytest.approx(expected, abs=0.04)
    of = population(texts=["a"], decay=0.25)
    returned(of, [0.0, 1.0])
    returned(of, [1.0, 1.0])
    assert of.members[0].value == pytest.approx(0.25 * 0.5 + 0.75 * 1.0)


def test_a_proposal_is_tried_then_admitted_or_dropped():
    of = population(texts=[""], trial_groups=2, size=2)
    _, numbers = returned(of, [0.5, 0.5], ["On ice right."])
    assert numbers["num_tried"] == 0 and len(of.proposed) == 1
    tasks, numbers = returned(of, [1.0, 1.0, 0.5], ["On ice up."])
    read = [text_of(task.prompt_text) for task in tasks]
    assert read == [["On ice right."], ["On ice right."], []]
    assert (numbers["num_tried"], numbers["num_admitted"]) == (1, 1)
    assert of.best.text == "On ice right." and text_of(of.shared()) == ["On ice right."]
    _, numbers = returned(of, [0.1, 0.1, 1.0])
    assert (numbers["num_tried"], numbers["num_admitted"]) == (1, 0)
    assert [m.text for m in of.members] == ["", "On ice right."] and not of.proposed


def test_the_worst_instruction_goes_beyond_the_size():
    of = population(texts=["a", "b"], size=2, trial_groups=1)
    of.members[0].value, of.members[1].value = 0.3, 0.4
    of._propose(["c"])
    returned(of, [1.0])
    assert [m.text for m in of.members] == ["b", "c"]


def test_proposals_are_asked_from_failures_and_are_new():
    of = population(texts=["a"], proposals=2, failures=2)
    table = TurnTable([walked(g, "up", float(g == 1)) for g in range(6)])
    asked = of.asked(table)
    assert [[t.task.group_id for t in a.trajectories] for a in asked] == [
        [0, 3],
        [2, 4],
    ]
    of.observe(table, ["a", "new"])
    assert [p.text for p in of.proposed] == ["new"]
    assert of.asked(table)[0].texts == ("a", "new")


def test_a_population_continues_from_its_state():
    of, other = population(), population()
    returned(of, [0.2, 0.4], ["b"])
    other.set_state(of.get_state())
    for each in (of, other):
        returned(each, [0.3, 0.1, 1.0], ["c"])
    assert other.get_state() == of.get_state()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("library", {"size": 1, "texts": ["a", "b"]}, "size=1"),
        ("library", {"size": 0}, "size=0"),
        ("population", {"texts": []}, "0 texts"),
        ("population", {"temperature": 0.0}, "temperature=0.0"),
        ("population", {"trial_groups": 0}, "trial_groups=0"),
    ],
)
def test_bad_settings_are_refused(name, settings, message):
    with pytest.raises(ConfigError, match=message):
        bind("prompt_text", {"name": name, "of": "w", **settings})
