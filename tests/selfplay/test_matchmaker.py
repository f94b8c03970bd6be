"""Matchmaker: slots, assignments, results, checkpoints."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("openskill")

from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.selfplay import Matchmaker

AGENTS = ("player_0", "player_1")


def matchmaker(slots=2, **settings):
    names = [f"opponent_{i}" for i in range(slots)]
    settings = {"snapshot_max_games": 64, "opponents": "uniform", **settings}
    return Matchmaker("default_policy", names, AGENTS, {"dealer": "bank"}, **settings)


def play(book, tasks, wins=0.5):
    """Record games of which the learner wins a share."""
    results = []
    for task in tasks:
        assignment = book.assignment(task)
        home = next(a for a in AGENTS if assignment[a] == "default_policy")
        sign = 1.0 if task % 10 < 10 * wins else -1.0
        returns = {a: sign if a == home else -sign for a in AGENTS}
        results.append(book.result(task, assignment, returns))
    book.record(results)


def test_members_take_free_slots_and_then_those_of_retired_members():
    book = matchmaker(slots=2)
    assert book.wants_snapshot()
    assert book.add_snapshot(0) == "opponent_0"
    assert not book.wants_snapshot()
    assert book.add_snapshot(5) == "opponent_1"
    assert book.members() == {"opponent_0": "snapshot_0", "opponent_1": "snapshot_1"}
    play(book, range(40), wins=1.0)
    easiest = "snapshot_0"  # the newest does not retire
    slot = {name: slot for slot, name in book.members().items()}[easiest]
    book.add_snapshot(9)
    assert len(book.members()) == 2 and easiest not in book.members().values()
    assert slot in book.members()


def test_only_frozen_slots_and_the_learner_are_assigned():
    book = matchmaker(mirror_fraction=0.3)
    assert {book.assignment(t)["player_0"] for t in range(20)} == {"default_policy"}
    book.add_snapshot(0)
    for task in range(200):
        assignment = book.assignment(task)
        assert assignment["dealer"] == "bank"
        assigned = [assignment[a] for a in AGENTS]
        assert "default_policy" in assigned
        assert set(assigned) <= {"default_policy", "opponent_0"}
        assert assignment == book.assignment(task)
    homes = [book.assignment(t)["player_0"] == "opponent_0" for t in range(400)]
    away = [book.assignment(t)["player_1"] == "opponent_0" for t in range(400)]
    assert abs(sum(homes) - sum(away)) < 60  # both agents about equally often


def test_results_belong_to_members_and_not_to_slots():
    book = matchmaker(slots=1, mirror_fraction=0.0)
    book.add_snapshot(0)
    play(book, range(50), wins=1.0)
    before = book.ratings.rating("snapshot_0")
    assert book.league.payoffs.win_rate("learner", "snapshot_0") > 0.9
    assert book.add_snapshot(7) == "opponent_0"
    assert book.league.payoffs.games("learner", "snapshot_1") == 0
    assert book.ratings.rating("snapshot_0") == before
    assert book.ratings.rating("snapshot_1") == book.ratings.rating("learner")
    assert book.metrics()["member_iteration", "opponent_0"] == 7


def test_missing_returns_count_as_zero():
    book = matchmaker()
    book.add_snapshot(0)
    result = book.result(
        3, {"player_0": "opponent_0", "player_1": "default_policy"}, {}
    )
    assert result.players == ("snapshot_0", "learner")
    assert result.returns == (0.0, 0.0)


def test_a_league_without_slots_only_mirrors():
    book = matchmaker(slots=0)
    assert not book.wants_snapshot()
    assert set(book.assignment(4).values()) == {"bank", "default_policy"}
    play(book, range(20))
    assert book.metrics() == {("pool_size",): 0, ("rating", "learner"): 25.0}


def test_a_restored_matchmaker_equals_the_original():
    whole, cut = matchmaker(), matchmaker()
    for book in (whole, cut):
        book.add_snapshot(0)
        play(book, range(100), wins=0.7)
        book.add_snapshot(3)
        play(book, range(100, 150))
    resumed = matchmaker()
    resumed.load_state(json.loads(json.dumps(cut.state_dict())))
    for book in (whole, resumed):
        play(book, range(150, 220), wins=0.8)
        book.add_snapshot(8)
        play(book, range(220, 250), wins=0.2)
    assert resumed.state_dict() == whole.state_dict()
    assert resumed.metrics() == whole.metrics()
    assert [resumed.assignment(t) for t in range(99)] == [
        whole.assignment(t) for t in range(99)
    ]


def test_other_settings_are_refused():
    with pytest.raises(CheckpointError, match="max_members"):
        matchmaker(slots=3).load_state(matchmaker(slots=2).state_dict())
    with pytest.raises(ConfigError, match="mirror_fraction"):
        matchmaker(mirror_fraction=2)
