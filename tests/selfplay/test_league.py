"""League: opponents, snapshots, resuming."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.selfplay.league import League, prefer_even, prefer_hard
from rllib_llm.selfplay.payoffs import GameResult


def game(episode, opponent, won, learner="learner"):
    """Return a game of the learner, which is the first player in even episodes."""
    returns = {1: (1.0, -1.0), 0: (-1.0, 1.0), 0.5: (0.0, 0.0)}[won]
    players = (learner, opponent)
    if episode % 2:
        players, returns = players[::-1], returns[::-1]
    return GameResult(episode, players, returns)


def league_of(members, **settings):
    league = League(**settings)
    for iteration, name in enumerate(members):
        league.add(name, iteration)
    return league


def played_league(**settings):
    """Return a league with high, even and low win rates against m0, m1, m2."""
    league = league_of(["m0", "m1", "m2"], decay=1.0, **settings)
    wins = {"m0": 9, "m1": 5, "m2": 1}
    results = [
        game(10 * i + k, name, int(k < wins[name]))
        for i, name in enumerate(wins)
        for k in range(10)
    ]
    league.record(results)
    return league


def test_weights_equal_slow_loops():
    rates = np.linspace(0, 1, 11)
    for weigh, formula in (
        (prefer_hard, lambda p: (1 - p) * (1 - p)),
        (prefer_even, lambda p: p * (1 - p)),
    ):
        assert weigh(rates) == pytest.approx([formula(p) for p in rates], abs=1e-15)


@pytest.mark.parametrize(
    ("opponents", "weigh"),
    [
        ("hard", lambda p: (1 - p) ** 2),
        ("even", lambda p: p * (1 - p)),
        ("uniform", lambda p: 1.0),
        ("latest", None),
    ],
)
def test_probabilities(opponents, weigh):
    league = played_league(opponents=opponents, mirror_fraction=0.25)
    rates = [10 / 12, 6 / 12, 2 / 12]  # the prior is one win and one loss
    weights = [0, 0, 1] if weigh is None else [weigh(p) for p in rates]
    wanted = [0.75 * w / sum(weights) for w in weights]
    found = league.probabilities()
    assert list(found) == ["learner", "m0", "m1", "m2"]
    assert list(found.values()) == pytest.approx([0.25, *wanted])


def test_draws_follow_the_probabilities():
    league = played_league(mirror_fraction=0.3)
    draws = Counter(league.choose(task, 1) for task in range(4000))
    for name, probability in league.probabilities().items():
        assert draws[name] / 4000 == pytest.approx(probability, abs=0.03)


def test_opponents_depend_on_the_task_and_not_on_earlier_draws():
    a, b = played_league(seed=3), played_league(seed=3)
    forward = [a.choose(task, 1) for task in range(50)]
    backward = [b.choose(task, 1) for task in reversed(range(50))][::-1]
    assert forward == backward
    assert forward != [played_league(seed=4).choose(task, 1) for task in range(50)]
    assert forward != [a.choose(task, 2) for task in range(50)]


def test_assignment_has_the_learner_once_and_at_every_position():
    league = played_league(mirror_fraction=0.0)
    agents = ["player_0", "player_1", "player_2"]
    times = Counter()
    for task in range(300):
        assignment = league.assignment(task, agents)
        assert list(assignment) == agents
        (own,) = [a for a, name in assignment.items() if name == "learner"]
        times[own] += 1
        assert assignment == league.assignment(task, agents)
    assert all(70 < times[agent] < 130 for agent in agents)


def test_an_empty_league_mirrors_and_needs_a_snapshot():
    league = League()
    assert league.choose(0, 1) == "learner"
    assert league.should_snapshot()
    league.add("m0", 0)
    assert not league.should_snapshot()


def test_a_snapshot_needs_wins_against_every_member():
    league = league_of(["m0", "m1"], snapshot_min_games=10, snapshot_win_rate=0.7)
    league.record(game(i, "m0", 1) for i in range(20))
    assert not league.should_snapshot()  # m1 has not been beaten
    league.record(game(20 + i, "m1", 1) for i in range(20))
    assert league.should_snapshot()
    league.add("m2", 5)
    assert not league.should_snapshot()


def test_a_snapshot_needs_enough_games():
    league = league_of(["m0"], snapshot_min_games=30)
    league.record(game(i, "m0", 1) for i in range(29))
    assert not league.should_snapshot()
    # Mirror games carry no information about strength.
    league.record(
        GameResult(100 + i, ("learner", "learner"), (1, -1)) for i in range(9)
    )
    assert not league.should_snapshot()
    league.record([game(29, "m0", 1)])
    assert league.should_snapshot()


def test_max_games_forces_a_snapshot():
    league = league_of(["m0"], snapshot_min_games=5, snapshot_max_games=12)
    league.record(game(i, "m0", 0.5) for i in range(11))
    assert not league.should_snapshot()
    league.record([game(11, "m0", 0)])
    assert league.should_snapshot()


def test_order_of_delivery_does_not_matter():
    results = [game(i, f"m{i % 2}", [1, 0, 0.5][i % 3]) for i in range(30)]
    a, b = (league_of(["m0", "m1"], decay=0.9) for _ in range(2))
    a.record(results)
    b.record(results[::-1])
    assert a.state_dict() == b.state_dict()
    c = league_of(["m0", "m1"], decay=0.9)
    c.record([game(29 - i, f"m{i % 2}", [1, 0, 0.5][i % 3]) for i in range(30)])
    assert c.state_dict() != a.state_dict()


def test_the_easiest_member_but_the_newest_retires():
    league = played_league(max_members=3)
    assert league.add("m3", 9) == ["m0"]
    assert [member.name for member in league.members] == ["m1", "m2", "m3"]
    assert league.payoffs.games("learner", "m0") == 0
    before = league.state_dict()
    league.record([game(99, "m0", 1)])  # a late game of the retired member
    assert league.state_dict() == before


def test_the_newest_member_does_not_retire():
    league = league_of(["m0"], max_members=1)
    league.record(game(i, "m0", 0) for i in range(10))
    assert league.add("m1", 1) == ["m0"]


def test_used_names_are_refused():
    league = league_of(["m0"])
    for name in ("m0", "learner"):
        with pytest.raises(ConfigError, match=name):
            league.add(name, 1)
    league = played_league(max_members=3)
    league.add("m3", 9)  # retires m0
    with pytest.raises(ConfigError, match="m0"):
        league.add("m0", 10)


def test_games_of_unknown_players_are_refused():
    league = league_of(["snapshot_0"])
    with pytest.raises(ValueError, match="Episode 4: 'snapshot0'.*'snapshot_0'"):
        league.record([game(4, "snapshot0", 1)])


def test_a_resumed_league_equals_an_uninterrupted_one():
    results = [game(i, f"m{i % 3}", [1, 0, 0.5][i * 7 % 3]) for i in range(120)]
    whole, killed, resumed = (
        league_of(["m0", "m1", "m2"], snapshot_max_games=100) for _ in range(3)
    )
    for league in (whole, killed):  # one member has retired
        league._retired = ["old"]
    whole.record(results)
    killed.record(results[:47])
    resumed.load_state(json.loads(json.dumps(killed.state_dict())))
    resumed.record(results[47:])
    assert resumed.state_dict() == whole.state_dict()
    assert resumed.probabilities() == whole.probabilities()
    assert resumed.should_snapshot() == whole.should_snapshot() is True
    assert [resumed.choose(t, 0) for t in range(50)] == [
        whole.choose(t, 0) for t in range(50)
    ]


def test_a_checkpoint_of_other_settings_is_refused():
    with pytest.raises(CheckpointError, match="opponents='hard'.*'even'"):
        League(opponents="even").load_state(League().state_dict())


@pytest.mark.parametrize(
    "settings",
    [
        {"learner": ""},
        {"opponents": "strongest"},
        {"mirror_fraction": 1.5},
        {"mirror_fraction": "half"},
        {"snapshot_win_rate": 0.5},
        {"snapshot_min_games": 0},
        {"snapshot_max_games": 10},
        {"max_members": 0},
        {"decay": 0.0},
        {"seed": -1},
    ],
)
def test_bad_settings_are_refused(settings):
    name = next(iter(settings))
    with pytest.raises(ConfigError, match=f"{name}="):
        League(**settings)
