"""Settings of assistants, questions, and values of answers."""

from __future__ import annotations

import numpy as np
import pytest
from assistant_helpers import API, OWN, SCRIPT, YES_NO, assistant, trajectories
from chat_server import ChatServer

from rllib_llm.assistants.answers import reduced, value_of
from rllib_llm.assistants.local_sources import api_answers, api_model
from rllib_llm.assistants.questions import questions_about
from rllib_llm.assistants.settings import PRIVILEGED_FIELDS, read_assistant
from rllib_llm.components.registry import bind
from rllib_llm.data.turn_table import MissingAnswers, TurnTable
from rllib_llm.errors import ConfigError

NUMBER = {"number": "Score: (-?[0-9.]+)", "low": 1, "high": 5}


def without(given, *keys):
    return {k: v for k, v in given.items() if k not in keys}


# Values of answers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", 1.0),
        ("No.", 0.0),
        ("It could be a no.\nYES!\n\n", 1.0),
        ("yes or no", None),
        ("nobody", None),
        ("yes_no", None),
        ("", None),
        (" \n", None),
        (None, None),
    ],
)
def test_a_word_is_the_only_one_in_the_last_line(text, value):
    assert value_of(text, assistant(**SCRIPT).parse) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Score: 1", 0.0),
        ("Score: 2 of 5. No: Score: 5", 1.0),
        ("Score: 2", 0.25),
        ("Score: 0", None),
        ("Score: 5.5", None),
        ("Score: ...", None),
        ("5", None),
        ("Score: -1", None),
        (None, None),
    ],
)
def test_a_number_is_the_last_one_and_within_its_range(text, value):
    assert value_of(text, assistant(**{**SCRIPT, "parse": NUMBER}).parse) == value


def test_only_readable_answers_count():
    answers = [1.0, None, 0.0, 0.0, None, None, 0.2, 0.4, 0.9]
    by = {**OWN, "samples": 3, "temperature": 1.0}
    mean = reduced(answers, assistant(**by))
    assert mean == [0.5, 0.0, pytest.approx(0.5)]
    assert reduced(answers, assistant(**by, reduce="median"))[2] == 0.4
    of_none = [None] * 3
    assert reduced(of_none, assistant(**by)) == [0.25]
    assert reduced(of_none, assistant(**without(by, "unreadable"))) == [None]
    assert reduced(of_none, assistant(**{**by, "unreadable": "drop"})) == [None]


# Questions --------------------------------------------------------------------------


def texts(trajectory, **given):
    return [q.messages[-1]["content"] for q in asked(trajectory, **given)]


def asked(trajectory, **given):
    return questions_about(assistant(**{**OWN, **given}), trajectory)


def test_a_question_is_about_the_whole_or_about_each_turn():
    trajectory = trajectories()[1]
    fields = "{task}|{observation}|{reply}|{turn}|{transcript}"
    whole = "Well?|And now?|Thus 1.|2|" + (
        "Environment: Well?\nAgent: So.\nEnvironment: And now?\nAgent: Thus 1."
    )
    first = "Well?|Well?|So.|1|Environment: Well?\nAgent: So."
    assert texts(trajectory, template=fields) == [whole]
    assert texts(trajectory, template=fields, per="turn") == [first, whole]


def test_texts_of_the_agent_are_not_read_as_templates():
    trajectory = trajectories()[0]
    trajectory.completions[-1] = "{gold} {"
    assert texts(trajectory, template="{reply}") == ["{gold} {"]


def test_a_privileged_assistant_reads_the_outcome():
    trajectory = trajectories()[1]
    template = "|".join(f"{{{field}}}" for field in PRIVILEGED_FIELDS)
    (text,) = texts(trajectory, template=template, privileged=True)
    assert text == "So.|yes|0.5"
    assert asked(trajectory, privileged=True)[0].is_good is True
    assert asked(trajectory)[0].is_good is None
    # The first turn retrieves the needed document, the second has a reward.
    trajectory.infos[1] = {**trajectory.infos[1], "documents": []}
    trajectory.completions.append("Done.")
    trajectory.observations.append("?")
    trajectory.rewards.append(0.0)
    trajectory.infos.append(trajectory.infos[0])
    of_turns = asked(trajectory, privileged=True, per="turn")
    assert [q.is_good for q in of_turns] == [True, True, False]
    for info in trajectory.infos:
        info.pop("gold_documents", None)
    of_turns = asked(trajectory, privileged=True, per="turn")
    assert [q.is_good for q in of_turns] == [False, True, False]


def test_a_turn_is_good_if_the_environment_calls_it_right():
    trajectory = trajectories()[0]
    trajectory.rewards = [0.0, 0.0]
    for right in ([1.0, 0.0], [0.0, 1.0]):
        trajectory.infos = [{"right_step": value} for value in right]
        of_turns = asked(trajectory, privileged=True, per="turn")
        assert [q.is_good for q in of_turns] == [value > 0 for value in right]
    (whole,) = asked(trajectory, privileged=True)
    assert whole.is_good == trajectory.is_solved


def test_questions_have_a_system_message_and_seeds_of_their_own():
    trajectory, other = trajectories()[:2]
    (question,) = asked(trajectory, system="You are a judge.")
    assert question.messages[0] == {"role": "system", "content": "You are a judge."}
    sampled = {"samples": 2, "temperature": 1.0, "per": "turn"}
    seeds = [q.seed for t in (trajectory, other) for q in asked(t, **sampled)]
    assert len(set(seeds)) == len(seeds) == 8
    assert seeds[:4] == [q.seed for q in asked(trajectory, **sampled)]


# Scripts ----------------------------------------------------------------------------


def outcome(question, **settings):
    return bind("answer", {"name": "outcome", **settings}).call(question)


def many(trajectory, count=2000):
    questions = []
    for seed in range(count):
        trajectory.task = type(trajectory.task)(group_id=0, rollout=0, seed=seed)
        questions += asked(trajectory, privileged=True)
    return questions


def test_the_scripted_judge_has_its_accuracy():
    for trajectory, right in zip(trajectories()[:2], ("no", "yes"), strict=True):
        questions = many(trajectory)
        assert all(outcome(q) == right for q in questions)
        answers = [outcome(q, accuracy=0.7) == right for q in questions]
        assert np.mean(answers) == pytest.approx(0.7, abs=0.04)
        assert all(outcome(q, accuracy=0.0) != right for q in questions)


def test_errors_by_text_are_the_same_for_the_same_texts():
    trajectory = trajectories()[1]
    by_text = {"accuracy": 0.5, "errors": "by_text"}
    assert len({outcome(q, **by_text) for q in many(trajectory, 50)}) == 1
    answers = set()
    for number in range(20):
        trajectory.completions[0] = f"Text {number}."
        answers.add(outcome(asked(trajectory, privileged=True)[0], **by_text))
    assert answers == {"yes", "no"}


def test_only_privileged_assistants_know_the_outcome():
    with pytest.raises(ConfigError, match="privileged"):
        outcome(asked(trajectories()[0])[0])


# APIs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}, (3, 7)),
        ({"completion_tokens": 3}, (3, 0)),
        (None, (0, 0)),
    ],
)
def test_tokens_are_those_that_an_api_reports(usage, counts):
    pytest.importorskip("openai")
    server = ChatServer(lambda body: (200, "yes"), usage)
    of = assistant(**{**API, "api": {"url": server.url, "model": "m"}})
    questions = [q for each in trajectories()[:2] for q in questions_about(of, each)]
    answers = api_answers(api_model(of), questions)
    server.close()
    assert len(server.requests) == len(answers) == 2
    for answer in answers:
        assert (answer.sampled_tokens, answer.prompt_tokens) == counts
        assert answer.text == "yes"


# The reward and the filter ----------------------------------------------------------


def test_the_reward_is_in_the_last_turn_or_in_each():
    trajectory = trajectories()[0]
    reward = bind("reward", {"name": "asked", "of": "judge"}).call
    with pytest.raises(MissingAnswers, match="judge"):
        reward(trajectory)
    trajectory.answers["judge"] = [0.5]
    assert reward(trajectory) == 0.5
    trajectory.answers["judge"] = [0.5, 0.25]
    assert reward(trajectory) == [0.5, 0.25]


def test_the_filter_keeps_turns_of_high_value():
    first, second = trajectories()[:2]
    first.answers["judge"], second.answers["judge"] = [0.5, 0.4], [0.9]
    table = TurnTable([first, second])

    def kept(**settings):
        spec = {"name": "asked", "of": "judge", **settings}
        return bind("filter", spec).call(table).tolist()

    assert kept() == [True, False, True, True]
    assert kept(least=0.45) == kept()
    assert kept(least=0.6) == [False, False, True, True]


# Refused settings -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (without(OWN, "policy"), "no source"),
        ({**OWN, **SCRIPT}, "exactly one"),
        ({**OWN, "model": "folder"}, "exactly one"),
        ({**OWN, "polcy": "x"}, "Did you mean 'policy'"),
        (without(OWN, "parse"), "how an answer is read"),
        ({**OWN, "parse": {}}, "how an answer is read"),
        ({**OWN, "parse": {**YES_NO, "number": "(x)"}}, "how an answer is read"),
        ({**OWN, "parse": {**YES_NO, "low": 1}}, "no effect beside words"),
        ({**OWN, "parse": {"words": {"yes": 1.0}}}, "words"),
        ({**OWN, "parse": {"words": {"yes": 1.0, " Yes": 0.0}}}, "different"),
        ({**OWN, "parse": {"number": "(x)"}}, "low < high"),
        ({**OWN, "parse": {**NUMBER, "low": 5}}, "low < high"),
        ({**OWN, "parse": {**NUMBER, "number": "("}}, "not a regular expression"),
        ({**OWN, "parse": {**NUMBER, "number": "x"}}, "has 0 groups"),
        ({**OWN, "parse": {**NUMBER, "number": "(a)(b)"}}, "has 2 groups"),
        ({**API, "weights": "initial"}, "no effect without policy"),
        ({**API, "api": {"url": "http://x/v1"}}, "needs url and model"),
        ({**API, "api": {**API["api"], "key": "x"}}, "key"),
        ({**SCRIPT, "temperature": 1.0}, "samples no tokens"),
        ({**SCRIPT, "max_new_tokens": 3}, "samples no tokens"),
        ({**SCRIPT, "script": {"name": "outcome", "accuracy": 1.5}}, "accuracy"),
        ({**SCRIPT, "script": "outcomes"}, "outcome"),
        ({**OWN, "samples": 2}, "temperature 0"),
        ({**OWN, "samples": 0}, "samples"),
        ({**OWN, "reduce": "mean"}, "no effect with one answer"),
        (without(OWN, "template"), "has no template"),
        ({**OWN, "template": "Right?"}, "has no placeholder"),
        ({**OWN, "template": "{replay}"}, "Did you mean 'reply'"),
        ({**OWN, "template": "{reply.x}"}, "placeholder"),
        ({**OWN, "template": "{}"}, "placeholder"),
        ({**OWN, "template": "{reply"}, "brace"),
        ({**OWN, "template": "{gold}"}, "only the environment knows"),
        ({**OWN, "unreadable": "zero"}, "unreadable"),
        ({**OWN, "unreadable": float("nan")}, "unreadable"),
        ({**OWN, "per": "word"}, "per"),
        ({**OWN, "temperature": -1.0}, "temperature"),
    ],
)
def test_bad_settings_are_refused(given, words):
    with pytest.raises(ConfigError, match=words) as error:
        read_assistant("judge", given)
    assert "judge" in str(error.value) or "outcome" in str(error.value)
