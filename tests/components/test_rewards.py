"""Reward components against slow loops and examples worked by hand."""

import asyncio
import math
from collections import Counter

import numpy as np
import pytest
from component_helpers import trajectory

from rllib_llm.components.registry import COMPONENTS, bind
from rllib_llm.data.turn_table import MissingInfo
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.combine import Rewards, per_turn
from rllib_llm.rewards.text_features import normalise, word_f1

GOLD = ["gold one is here", "gold two is there"]
NOISE = "noise of nothing"


def searcher(documents, answer="Paris", golds=("Paris",), errors=None, **fields):
    """A trajectory that searches in each turn but the last, and then answers."""
    turns = len(documents) + 1
    errors = errors or [False] * len(documents)
    infos = [
        {"tool": "search", "tool_error": bad, "documents": found, "query": f"query {i}"}
        for i, (found, bad) in enumerate(zip(documents, errors, strict=True))
    ] + [{"tool": None, "tool_error": False, "documents": [], "query": None}]
    environment_info = {
        "gold_answers": list(golds),
        "gold_documents": GOLD,
        "gold_queries": ["query 0", "other thing"],
    }
    completions = ["<search>x</search>"] * len(documents)
    return trajectory(
        rewards=[0.0] * turns,
        infos=[{**environment_info, **info} for info in infos],
        completions=[*completions, f"so <answer> {answer} </answer>"],
        success=answer in golds,
        **fields,
    )


def reward_of(name, of, /, **settings):
    """Return a component's rewards, one number per turn."""
    chosen = bind("reward", {"name": name, **settings})
    value = chosen.call(of)
    if asyncio.iscoroutine(value):
        value = asyncio.run(value)
    return per_turn(chosen, value, len(of)).tolist()


# Answers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "clean"),
    [("The  Cat, a dog!", "cat dog"), ("An answer.", "answer"), ("theatre", "theatre")],
)
def test_texts_are_normalised_as_squad_does(text, clean):
    assert normalise(text) == clean


def test_f1_counts_common_words():
    # 2 of 3 given and 2 of 2 wanted words: 2 * 2/3 * 1 / (2/3 + 1).
    assert word_f1("red big house", "the big house") == pytest.approx(0.8)
    assert word_f1("b b", "b") == pytest.approx(2 / 3)
    assert word_f1("", "b") == word_f1("x", "b") == 0.0


@pytest.mark.parametrize(
    ("name", "answer", "value"),
    [
        ("exact_match", "the PARIS.", 1.0),
        ("exact_match", "Paris, France", 0.0),
        ("cover_match", "Paris, France", 1.0),
        ("cover_match", "Parisian", 0.0),
        ("f1", "Paris France", 2 / 3),
        ("f1", "Rome", 0.0),
    ],
)
def test_the_best_right_answer_counts_in_the_last_turn(name, answer, value):
    of = searcher([[NOISE]], answer, golds=("Berlin", "Paris"))
    assert reward_of(name, of) == [0.0, pytest.approx(value)]


def test_the_answer_may_be_found_otherwise_or_missing():
    of = searcher([], "x")
    of.completions = ["Answer: 4\nAnswer: Paris"]
    assert reward_of("exact_match", of, missing=-1.0) == [-1.0]
    assert reward_of("exact_match", of, answer=r"Answer: (\w+)") == [1.0]
    of.infos = [{}]
    with pytest.raises(MissingInfo, match="gold_answers.*more_info"):
        reward_of("f1", of)


@pytest.mark.parametrize(
    ("answer", "value"),
    [("$1,000", 1.0), ("1000.0005", 1.0), ("1001", -1.0), ("nan", -1.0), ("a", -1.0)],
)
def test_numbers_are_close_enough(answer, value):
    of = searcher([], answer, golds=("1000",))
    assert reward_of("accuracy", of, wrong=-1.0) == [value]


def test_outcome_is_any_number_of_the_environment():
    of = searcher([[NOISE]])
    of.metrics = {"tests": 0.75}
    of.infos[-1]["same_state"] = True
    assert reward_of("outcome", of, key="tests") == [0.0, 0.75]
    assert reward_of("outcome", of, key="same_state") == [0.0, 1.0]
    with pytest.raises(MissingInfo, match="'lost'"):
        reward_of("outcome", of, key="lost")
    with pytest.raises(MissingInfo, match="needs a number"):
        reward_of("outcome", of, key="gold_documents")


# Tools and retrieval -----------------------------------------------------------------


def test_tools_are_charged_what_they_cost():
    infos = [{"tool_cost": 0.5}, {"tool_cost": 0.0}, {}]
    of = trajectory(rewards=[0.0] * 3, infos=infos)
    assert reward_of("tool_cost", of) == [-0.5, 0.0, 0.0]
    with pytest.raises(MissingInfo, match="tool_cost"):
        reward_of("tool_cost", trajectory(rewards=[0.0], infos=[{}]))


def test_tool_calls_are_rewarded_up_to_a_cap():
    of = searcher([[NOISE]] * 4, errors=[False, True, False, False])
    assert reward_of("tool_use", of, per_call=0.5) == [0.5, 0.0, 0.5, 0.5, 0.0]
    capped = reward_of("tool_use", of, per_call=0.5, cap=0.75)
    assert capped == [0.5, 0.0, 0.25, 0.0, 0.0]
    assert sum(reward_of("tool_use", of, per_call=-0.5, cap=0.75)) == -0.75
    assert sum(reward_of("tool_use", of, per_error=-0.2, per_call=0.0)) == -0.2
    assert sum(reward_of("tool_use", of, tools=["python"])) == 0.0
    of.success = False
    assert sum(reward_of("tool_use", of, only_solved=True)) == 0.0


def test_evidence_sums_to_the_recall():
    of = searcher([[NOISE, GOLD[0]], [GOLD[0]], [GOLD[1], GOLD[0]]])
    assert reward_of("evidence", of) == [0.5, 0.0, 0.5, 0.0]
    of = searcher([[NOISE], ["It is in Paris."], ["Paris"]])
    assert reward_of("evidence", of, of="answer") == [0.0, 1.0, 0.0, 0.0]


def tf_idf(texts):
    """Each text's TF-IDF weights with unit norm, word by word."""
    counts = [Counter(normalise(text).split()) for text in texts]
    vectors = []
    for count in counts:
        weights = {}
        for word, tf in count.items():
            df = sum(word in other for other in counts)
            weights[word] = tf * (math.log((1 + len(texts)) / (1 + df)) + 1)
        norm = math.hypot(*weights.values())
        vectors.append({word: w / norm for word, w in weights.items()})
    return vectors


def cosine(a, b):
    return sum(weight * b.get(word, 0.0) for word, weight in a.items())


def slow_gain(documents, scale, redundancy):
    """StepSearch's sum, written out."""
    every = sorted({*GOLD, *(d for ds in documents for d in ds)})
    vectors = dict(zip(every, tf_idf(every), strict=True))
    rewards = []
    for t, found in enumerate(documents):
        before = [d for ds in documents[:t] for d in ds]
        gain = 0.0
        for gold in GOLD:
            old = max([cosine(vectors[gold], vectors[d]) for d in before], default=0.0)
            new = max([cosine(vectors[gold], vectors[d]) for d in found], default=0.0)
            gain += max(0.0, new - old) / len(GOLD)
        again = sum(d in before for d in found) / len(found) if found else 0.0
        rewards.append(scale * (gain - redundancy * again))
    return [*rewards, 0.0]


def test_information_gain_equals_the_slow_sum():
    documents = [["gold is one", NOISE], [GOLD[0]], [GOLD[0], GOLD[1]], []]
    of = searcher(documents)
    for scale, redundancy in ((1.0, 1.0), (0.6, 0.0), (1.6, 2.0)):
        given = reward_of("information_gain", of, scale=scale, redundancy=redundancy)
        expected = slow_gain(documents, scale, redundancy)
        np.testing.assert_allclose(given, expected, atol=1e-12)
    gains = reward_of("information_gain", of, redundancy=0.0)
    assert sum(gains) == pytest.approx(1.0) and min(gains) >= 0  # all gold found
    assert reward_of("information_gain", searcher([[GOLD[0]]] * 2))[1] == -1.0


def test_search_keys_take_the_best_query_of_each():
    of = searcher([[NOISE]] * 2)
    # "query 0" is met exactly, nothing has a word of "other thing".
    assert reward_of("search_keys", of) == [0.0, 0.0, 0.5]


# Form --------------------------------------------------------------------------------


def test_well_formed_needs_actions_an_answer_and_a_pattern():
    of = searcher([[NOISE]])
    assert reward_of("well_formed", of) == [0.0, 1.0]
    assert reward_of("well_formed", of, every="<think>") == [0.0, 0.0]
    assert reward_of("well_formed", of, every="<(search|answer)>") == [0.0, 1.0]
    of.completions[-1] = "Paris"
    assert reward_of("well_formed", of) == [0.0, 0.0]
    assert reward_of("well_formed", of, answer=None) == [0.0, 1.0]
    of.invalid[0] = True
    assert reward_of("well_formed", of, answer=None) == [0.0, 0.0]


def test_rules_judge_turns():
    of = searcher([[NOISE]])
    rules = {"<search>": 3.0, "x": 1.0, "<answer>": 1.0}
    assert reward_of("rubric", of, rules=rules) == pytest.approx([0.4, 0.1])
    assert reward_of("rubric", of, rules=rules, turns="tool") == pytest.approx(
        [0.8, 0.0]
    )
    summed = reward_of("rubric", of, rules=rules, aggregate="sum")
    assert summed == pytest.approx([0.8, 0.2])
    of = searcher([[NOISE], [NOISE], [NOISE]])
    tool = reward_of("rubric", of, rules=rules, turns="tool")
    assert tool == pytest.approx([0.8 / 3] * 3 + [0.0])


@pytest.mark.parametrize(
    ("tokens", "value"), [(12, 0.0), (13, -0.125), (16, -0.5), (20, -1.0), (99, -1.0)]
)
def test_soft_overlong_punishment(tokens, value):
    # Nothing up to 20 - 8, then linearly; the environment's words do not count.
    of = searcher([[NOISE * 50]], num_tokens=[tokens - 2, 2])
    got = reward_of("overlong", of, longest=20, buffer=8, penalty=2.0)
    assert got == [0.0, pytest.approx(2 * value)]


def test_repetition_is_the_share_of_repeated_ngrams():
    of = searcher([])
    of.completions = ["a b a b a b"]  # 5 pairs, 2 of them different
    assert reward_of("repetition", of, n=2) == [pytest.approx(-0.6)]
    assert reward_of("repetition", of, n=7) == [0.0]


# Rewards of rewards ------------------------------------------------------------------


def research(of):
    """ReSearch: F1 where there is some, 0.1 for form alone, else 0."""
    levels = [{"when": "f1", "reward": "f1"}, {"when": "well_formed", "reward": 0.1}]
    return reward_of("gate", of, levels=levels)


def test_the_first_level_decides():
    assert research(searcher([[NOISE]], "Paris France")) == [0.0, pytest.approx(2 / 3)]
    assert research(searcher([[NOISE]], "Rome")) == [0.0, 0.1]
    bad = searcher([[NOISE]], "Rome")
    bad.invalid[0] = True
    assert research(bad) == [0.0, 0.0]


def test_gates_nest_reward_turns_and_skip_closed_levels():
    def never(trajectory):
        raise AssertionError("not reached")

    async def half(trajectory):
        return 0.5

    levels = [
        {"when": [half, half], "above": 1.0, "reward": 9.0},
        {"when": half, "reward": [{"name": "evidence", "weight": 2.0}, half]},
        {"when": never, "reward": 0.0},
    ]
    of = searcher([[GOLD[0]]])
    assert reward_of("gate", of, levels=levels) == [1.0, 0.5]
    levels = [{"when": {"name": "gate", "levels": levels}, "above": 5, "reward": 1}]
    assert reward_of("gate", of, levels=levels, otherwise=-2) == [0.0, -2.0]


@pytest.mark.parametrize(
    ("recall", "value"), [(0.0, -3.5), (0.05, 0.1), (0.5, 4.0), (0.69, 4.0), (1.0, 5.0)]
)
def test_tiers_are_deep_retrievals(recall, value):
    assert reward_of("tiers", searcher([]), of=lambda t: recall) == [value]


# All of them -------------------------------------------------------------------------

BAD = [
    ({"name": "f1", "answer": "("}, "no regular expression"),
    ({"name": "f1", "answer": "x"}, "has 0 groups and needs 1"),
    ({"name": "accuracy", "tolerance": -1}, "tolerance=-1 must be >= 0"),
    ("outcome", "needs 'key'"),
    ({"name": "tool_use", "cap": 0}, "cap=0 must be > 0"),
    ({"name": "tool_use", "tools": "search"}, "must be a list of strings"),
    ({"name": "evidence", "of": "titles"}, "must be 'documents' or 'answer'"),
    ({"name": "information_gain", "redundancy": -1}, "redundancy=-1 must be >= 0"),
    ({"name": "rubric", "rules": {"x": 0}}, "weights > 0"),
    ({"name": "rubric", "rules": {"x": 1}, "turns": "some"}, "'all' or 'tool'"),
    ({"name": "rubric", "rules": {"x": 1}, "aggregate": "max"}, "'mean', 'sum'"),
    ({"name": "overlong", "longest": 5, "buffer": 6}, "buffer=6 must be in"),
    ({"name": "overlong", "longest": 5, "buffer": 1, "penalty": -1}, "must be >= 0"),
    ({"name": "repetition", "n": 0}, "n=0 must be a number of words"),
    ({"name": "gate", "levels": []}, "must be a list"),
    ({"name": "gate", "levels": [{"when": "f1"}]}, "must have when, reward"),
    ({"name": "gate", "levels": [{"when": "exct_match", "reward": 1}]}, "Did you mean"),
    ({"name": "gate", "levels": [{"when": 1.0, "reward": 1}]}, "when=1.0 must name"),
    ({"name": "tiers", "levels": [0.5]}, "must be a list of numbers"),
]


@pytest.mark.parametrize(("spec", "message"), BAD)
def test_bad_settings_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        Rewards([spec]).try_out()


NEEDED = {
    "outcome": {"key": "score"},
    "overlong": {"longest": 5, "buffer": 2},
    "rubric": {"rules": {"x": 1.0}},
    "gate": {"levels": [{"when": "well_formed", "reward": "f1"}]},
}


# Without `scored`, which needs a model (tests/rewards/test_scored.py), `asked`, which
# needs an assistant (tests/assistants), and `gain`, which needs other rollouts.
@pytest.mark.parametrize(
    "name", sorted(set(COMPONENTS["reward"]) - {"scored", "asked", "gain"})
)
def test_no_turns_have_no_reward_and_good_settings_pass(name):
    settings = NEEDED.get(name, {})
    Rewards([{"name": name, **settings}]).try_out()
    empty = trajectory(rewards=(), infos=[], metrics={"score": 1.0})
    assert reward_of(name, empty, **settings) == []
