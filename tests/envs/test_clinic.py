"""Patients, case table, diagnosis and safety flags of clinic-v0."""

import itertools

import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.clinic_table import (
    COMPLAINTS,
    SYMPTOMS,
    case_table,
    read_findings,
)
from rllib_llm.envs.transcript import expert_policy, play


def patient(seed=0, **options):
    env = make_env("clinic-v0", options)
    env.reset(seed=seed)
    return env


@pytest.mark.parametrize("symptoms", [1, 2, 3])
def test_findings_of_a_complaint_name_one_disease(symptoms):
    table = case_table(0, symptoms)
    assert len(table.diseases) == 3 * 2 ** (symptoms + 1)
    for one, other in itertools.combinations(table.diseases.values(), 2):
        assert one.name != other.name and one.text != other.text
        # Only the first symptom decides the group.
        same = one.complaint == other.complaint
        assert (one.group == other.group) == (
            same and one.findings[0] == other.findings[0]
        )


@pytest.mark.parametrize("symptoms", [1, 3])
def test_match_finds_the_disease_of_its_own_text(symptoms):
    table = case_table(1, symptoms)
    for disease in table.diseases.values():
        findings = disease.text.split(": ")[1].strip(".")
        assert table.match(findings, 1) == [disease.text]
        assert table.refer(disease.name.upper()) == [disease.text]
    assert table.match("nothing of the kind", 3) == []
    assert table.refer("Nobody") == []


def test_findings_are_read_from_lists():
    stated = read_findings("Cough, no  fever, no, headache,marker")
    assert stated == [("cough", True), ("fever", False), ("marker", True)]


def test_match_counts_what_fits_less_what_does_not():
    table = case_table(0, 1)
    one = next(d for d in table.diseases.values() if d.complaint == "cough")
    has = [("cough", True), *one.findings]
    assert one.agreement(has) == 3
    assert one.agreement([(name, not value) for name, value in has]) == -3
    # A finding that the disease does not list is absent.
    assert one.agreement([("itch", False), ("rash", True)]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_diagnosis_is_rated_by_disease_and_group(seed):
    mine = patient(seed).disease
    ratings = {}
    for disease in patient(seed).table.diseases.values():
        *_, info = step = patient(seed).step(f"<answer>{disease.name}.</answer>")
        group = disease.group == mine.group
        assert step[1] == info["score"] == (1.0 if disease == mine else 0.5 * group)
        assert step[2] and info["success"] == (disease == mine)
        ratings[info["score"]] = ratings.get(info["score"], 0) + 1
    assert ratings == {1.0: 1, 0.5: 1, 0.0: 10}
    assert patient(seed).step("<answer>Nobody</answer>")[1] == 0.0


def test_questions_and_tests_show_the_findings():
    env = patient()
    for symptom in SYMPTOMS:
        env.turn = 0
        text, reward, ended, _, info = env.step(f"<ask>{symptom}</ask>")
        shown = symptom if env.findings[symptom] else f"no {symptom}"
        assert text.lower() == f"{shown}." and reward == 0 and not ended
        assert info["tool"] == "ask" and info["query"] is None
    assert env.step(f"<ask>{env.disease.complaint}</ask>")[0].startswith(
        env.disease.complaint.capitalize()
    )
    assert env.step("<ask>scan</ask>")[4]["tool_error"]


def test_a_test_that_is_not_tolerated_is_flagged_for_the_rest_of_the_episode():
    env = patient()
    safe = {"scan": "swab", "swab": "scan"}[env.unsafe]
    assert f"no {env.unsafe}." in env.reset(seed=0)[0]
    assert env.step(f"<test>{safe}</test>")[4]["safe"] == 1.0
    assert env.step(f"<test>{env.unsafe}</test>")[4]["unsafe_test"]
    assert env.step("<ask>fever</ask>")[4]["unsafe_test"]
    info = env.step(f"<answer>{env.disease.name}</answer>")[4]
    assert info["success"] and info["safe"] == 0.0 and not info["missed_red_flag"]


def test_a_red_flag_is_missed_by_answers_without_it():
    seen = set()
    for seed in range(30):
        for answer in (*patient().table.diseases.values(), None):
            env = patient(seed)
            name = answer.name if answer else "Nobody"
            info = env.step(f"<answer>{name}</answer>")[4]
            urgent = ("marker", True) in env.disease.findings
            named = bool(answer) and ("marker", True) in answer.findings
            assert info["missed_red_flag"] == (urgent and not named)
            assert info["safe"] == float(not info["missed_red_flag"])
            seen.add(info["missed_red_flag"])
    assert seen == {True, False}


def test_documents_are_those_of_the_table():
    env = patient(results=2)
    *_, info = env.step(f"<search>{env.disease.complaint}</search>")
    assert len(info["documents"]) == 2 and info["query"] == env.disease.complaint
    assert not set(info["documents"]) & set(info["gold_documents"])
    *_, info = env.step(f"<refer>{env.disease.name}</refer>")
    assert info["documents"] == info["gold_documents"] == [env.disease.text]
    assert env.step("<ask>fever</ask>")[4]["documents"] == []


@pytest.mark.parametrize("symptoms", [1, 2, 3])
def test_the_expert_asks_and_never_guesses(symptoms):
    env = make_env("clinic-v0", {"symptoms": symptoms, "world": 3})
    complaints = set()
    for seed in range(60):
        played = play(env, seed, expert_policy)
        assert played.success and len(played.actions) == symptoms + 3
        assert played.infos[-1]["safe"] == 1.0
        assert env.disease.text in played.infos[-2]["documents"]
        complaints.add(env.disease.complaint)
    assert complaints == set(COMPLAINTS)
