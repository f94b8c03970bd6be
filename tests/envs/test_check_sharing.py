"""check_env on games of PettingZoo, on time, threads and random states."""

import itertools
import re

import pytest
from check_toys import (
    Agree,
    BuggyGive,
    BuggyStart,
    Disturbed,
    Give,
    MainThreadOnly,
    Say,
    Seeds,
    SeedsDisturbed,
    SeedsTamed,
    SlowReset,
)

from rllib_llm.envs import check_common, check_env, check_sharing
from rllib_llm.envs.check_episodes import PlayedEpisode, Subject, replay

FEW = range(3)


@pytest.mark.parametrize(
    ("env", "test", "why"),
    [
        (Agree, "parallel_api_test", "assert set(par_env.agents).issubset(set(infos"),
        (Give, "api_test", "has no attribute 'observation_spaces'"),
    ],
)
def test_stricter_rules_of_pettingzoo_are_warnings(env, test, why):
    report = check_env(env, seeds=FEW)
    assert report.ok, str(report)
    (warning,) = report.warnings
    assert f"PettingZoo's {test} fails: " in warning and why in warning
    assert "Training works without this property." in warning
    assert f"  warning: {warning}" in str(report)


def test_a_bug_in_the_games_code_is_shown_with_its_line():
    report = check_env(BuggyGive, seeds=FEW)
    (problem,) = report.problems
    assert "step('hello') raised KeyError: 'giver_0'" in problem
    assert 'in step: self.scores["giver_0"] += 1' in problem
    assert (
        "check_toys.py:" in problem
        and "Correct reset(), step() or observe()" in problem
    )
    for word in ("start()", "apply()", "parse()", "prompt_for()", "rng given"):
        assert word not in str(report)


def test_an_environment_that_cannot_be_built_is_faulty():
    (problem,) = check_env(BuggyStart).problems
    assert "Building it raised KeyError: 'words'" in problem
    assert 'in __init__: raise KeyError("words")' in problem


def test_resets_are_measured_and_judged(monkeypatch):
    report = check_env(SlowReset, seeds=FEW)
    assert report.ok and not report.warnings
    assert report.measurements["ms_per_reset"] >= 20.0
    assert report.measurements["first_reset_s"] >= 0.02
    monkeypatch.setattr(check_sharing, "SLOW_RESET_S", 0.01)
    monkeypatch.setattr(check_sharing, "SLOW_START_S", 0.01)
    first, every = check_env(SlowReset, seeds=FEW).warnings
    assert "first reset took" in first
    # A sleep of 20 ms takes longer on a busy machine.
    (seconds,) = re.findall(r"A reset takes ([\d.]+) s", every)
    assert float(seconds) >= 0.02
    monkeypatch.setattr(check_sharing, "STEP_TIMEOUT_S", 0.01)
    report = check_env(SlowReset, seeds=FEW)
    assert not report.ok and "rollouts(step_timeout_s=...)" in report.problems[0]


def test_environment_bound_to_the_main_thread_is_reported():
    (problem,) = check_env(MainThreadOnly, seeds=FEW).problems
    assert "In a thread, seed 0 raised ValueError: signal only works" in problem
    assert check_env(MainThreadOnly, seeds=FEW, env_processes=True).ok


def test_seeding_the_process_is_reported():
    report = check_env(Seeds, seeds=FEW)
    found = [p for p in report.problems if p.startswith("reset() changed the process")]
    assert len(found) == 1, str(report)
    assert "state of random and torch" in found[0]
    assert "IsolatedRandomState(seed).swapped_in()" in found[0]
    assert "rollouts(env_processes=True)" in found[0]
    assert check_env(Seeds, seeds=FEW, env_processes=True).ok
    assert check_env(SeedsTamed, seeds=FEW).ok and check_env(Say, seeds=FEW).ok


def test_draws_of_other_threads_are_not_the_environments(monkeypatch):
    subject = Subject("disturbed", build=Disturbed, seeds=[0])
    subject.random.append(PlayedEpisode(Disturbed(), 0, replay(["1"])).finish())
    monkeypatch.setattr(Disturbed, "disturbances", 1)
    assert not list(check_sharing.check_random_states(subject))
    assert Disturbed.disturbances == 0
    monkeypatch.setattr(Disturbed, "disturbances", 1000)
    (problem,) = check_sharing.check_random_states(subject)
    assert "reset() changed the process-wide state of random:" in problem


@pytest.mark.parametrize("disturbed", ["first play", "replay"])
def test_one_draw_of_another_thread_does_not_make_replays_unequal(
    monkeypatch, disturbed
):
    subject = Subject(
        "disturbed", build=SeedsDisturbed, seeds=[0, 1], env_processes=True
    )
    monkeypatch.setattr(Disturbed, "disturbances", disturbed == "first play")
    for seed in subject.seeds:
        play = PlayedEpisode(SeedsDisturbed(), seed, replay(["1"])).finish()
        subject.random.append(play)
    monkeypatch.setattr(Disturbed, "disturbances", disturbed == "replay")
    expected = [p.transcript for p in subject.random]
    difference, _ = check_common._played_again(subject, expected)
    assert "played again with the same actions gave other" in difference
    monkeypatch.setattr(Disturbed, "disturbances", disturbed == "replay")
    assert not list(check_common._check_determinism(subject))
    monkeypatch.setattr(SeedsDisturbed, "noise", itertools.count())
    assert list(check_common._check_determinism(subject))


def test_the_command_line_takes_processes(capsys):
    from rllib_llm.cli.implementation.check import check

    assert not check("check_toys:Seeds", [], None, None)
    assert check("check_toys:Seeds", [], None, None, env_processes=True)
    assert "changed the process-wide state" in capsys.readouterr().out
