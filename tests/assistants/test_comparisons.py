"""Comparisons of rollouts in both orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from assistant_helpers import OWN, SCRIPT, YES_NO, asked_config, assistant, trajectories

from rllib_llm.assistants.comparisons import (
    compared_values,
    ordered_pairs,
    questions_about_pair,
)
from rllib_llm.components.registry import bind
from rllib_llm.data.turn_table import example_table
from rllib_llm.errors import ConfigError

PAIR = {**SCRIPT, "per": "pair"}
OF_PAIRS = {**OWN, "per": "pair", "template": "{task}|{first}|{second}"}


def group(count, agents=("agent_0",)):
    """Return the rollouts of two tasks."""
    return example_table(agents, count).trajectories


def test_every_two_rollouts_of_a_task_are_compared_in_both_orders():
    made = group(4)
    pairs = ordered_pairs(made, None)
    assert pairs[::2] == [(second, first) for first, second in pairs[1::2]]
    expected = {
        pair
        for task in (range(4), range(4, 8))
        for pair in itertools.permutations(task, 2)
    }
    assert len(pairs) == len(expected) and set(pairs) == expected


@pytest.mark.parametrize(
    ("count", "opponents", "each"),
    [(5, 1, 2), (5, 2, 4), (4, 2, 3), (2, 3, 1)],
)
def test_opponents_limit_the_comparisons_of_each(count, opponents, each):
    made = group(count)
    pairs = ordered_pairs(made, opponents)
    assert len(set(pairs)) == len(pairs) == 2 * count * each
    firsts = np.bincount([first for first, _ in pairs], minlength=len(made))
    assert firsts.tolist() == [each] * len(made)


def test_a_rollout_alone_is_not_compared():
    assert ordered_pairs(group(1), None) == []


def test_agents_are_compared_with_their_own_kind():
    made = group(2, ("ann", "ben"))
    for first, second in ordered_pairs(made, None):
        assert made[first].agent == made[second].agent
        assert made[first].task.group_id == made[second].task.group_id


def test_values_are_win_rates_by_a_slow_loop():
    rng = np.random.default_rng(0)
    pairs = ordered_pairs(group(4), None)
    answers = [rng.choice([0.0, 0.25, 1.0, None]) for _ in pairs]
    values, contradicted = compared_values(pairs, answers, 8)
    for index, value in enumerate(values):
        won = []
        for (first, second), answer in zip(pairs, answers, strict=True):
            if answer is not None and index in (first, second):
                won.append(answer if index == first else 1 - answer)
        assert value == pytest.approx(np.mean(won))
    both = [
        (a, b)
        for a, b in zip(answers[::2], answers[1::2], strict=True)
        if a is not None and b is not None
    ]
    against = [(a > 0.5 and b > 0.5) or (a < 0.5 and b < 0.5) for a, b in both]
    assert contradicted == pytest.approx(np.mean(against))
    assert 0 < contradicted < 1


def test_a_judge_that_prefers_the_first_has_no_effect():
    pairs = ordered_pairs(group(4), None)
    values, contradicted = compared_values(pairs, [1.0] * len(pairs), 8)
    assert (values, contradicted) == ([0.5] * 8, 1.0)
    assert compared_values([], [], 2) == ([None, None], 0.0)


def test_questions_show_both_conversations_in_their_order():
    first, second = trajectories()[:2]
    ((question,), (other,)) = (
        questions_about_pair(assistant(**OF_PAIRS), *sides)
        for sides in ((first, second), (second, first))
    )
    shown = "Environment: Well?\nAgent: So.\nEnvironment: And now?\nAgent: Thus {}."
    one, two = shown.format(0), shown.format(1)
    assert question.messages[-1]["content"] == f"Well?|{one}|{two}"
    assert other.messages[-1]["content"] == f"Well?|{two}|{one}"
    assert question.seed != other.seed
    assert question.is_good is None


def test_the_better_return_wins_and_ties_fall_by_chance():
    first, second = trajectories()[:2]
    judge = assistant(**{**PAIR, "samples": 200})
    answer = bind("answer", "outcome").call
    for sides, right in (((first, second), "no"), ((second, first), "yes")):
        assert {answer(q) for q in questions_about_pair(judge, *sides)} == {right}
    second.rewards = list(first.rewards)
    answers = [answer(q) for q in questions_about_pair(judge, first, second)]
    assert 60 < answers.count("yes") < 140


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**OF_PAIRS, "template": "{reply}"}, "placeholder {reply}"),
        ({**OF_PAIRS, "template": "{gold}"}, "only the environment knows"),
        ({**OWN, "template": "{first}"}, "placeholder {first}"),
        ({**OWN, "opponents": 2}, "no effect with per='trajectory'"),
        ({**OF_PAIRS, "opponents": 0}, "opponents"),
    ],
)
def test_bad_settings_of_pairs_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        assistant(**given)


def test_a_group_of_one_has_nothing_to_compare():
    config = asked_config({"judge": PAIR}, rollouts={"group_size": 1})
    with pytest.raises(ConfigError, match="compares rollouts of a task"):
        config.validate()


# Runs -------------------------------------------------------------------------------


def always_first(question):
    """Prefer what is read first."""
    return "yes"


@pytest.mark.ray
def test_win_rates_become_rewards(ray_session):
    biased = {"script": always_first, "parse": YES_NO, "per": "pair", "opponents": 1}
    algo = asked_config({"judge": PAIR, "biased": biased}).build_algo()
    made = algo.sample_groups(2).trajectories
    for trajectory in made:
        others = [t for t in made if t.task.group_id == trajectory.task.group_id]
        others.remove(trajectory)
        truth = trajectory.success
        # Ties are decided by chance, in each order anew.
        certain = [float(truth) for t in others if t.success != truth]
        ties = len(others) - len(certain)
        least, most = sum(certain), sum(certain) + ties
        assert least <= 3 * trajectory.answers["judge"][0] <= most
        assert trajectory.answers["biased"] == [0.5]
    results = algo.metrics.reduce()["assistants"]
    assert int(results["judge"]["num_answers"]) == 2 * 4 * 3
    assert int(results["biased"]["num_answers"]) == 2 * 4 * 2
    assert float(results["biased"]["contradicted_frac"]) == 1.0
    algo.stop()
