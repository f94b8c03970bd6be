"""Role baselines against the recursion, their state, and centring per player."""

import json

import numpy as np
import pytest

from rllib_llm.advantages.role_baselines import RoleBaselines, per_player_advantages
from rllib_llm.advantages.whitening import whiten

ATOL = 1e-9


def slow_rae(returns, games, roles, decay):
    baselines, advantages = {}, []
    for value, *key in zip(returns, games, roles):
        old = baselines.get(tuple(key), 0.0)
        advantages.append(value - old)
        baselines[tuple(key)] = decay * old + (1 - decay) * value
    return np.array(advantages), baselines


def make_players(seed=0, count=60):
    rng = np.random.default_rng(seed)
    games = rng.choice(["kuhn", "nim"], size=count)
    return rng.normal(size=count), games, rng.integers(2, size=count)


@pytest.mark.parametrize("decay", [0.0, 0.95])
def test_advantages_equal_the_recursion(decay):
    returns, games, roles = make_players()
    expected, baselines = slow_rae(returns, games, roles, decay)
    rae = RoleBaselines(decay)
    got = [
        rae.advantages(returns[i : i + 7], games[i : i + 7], roles[i : i + 7])
        for i in range(0, 60, 7)
    ]
    np.testing.assert_allclose(np.concatenate(got), expected, atol=ATOL)
    for key, value in baselines.items():
        assert rae.get(*key) == pytest.approx(value, abs=ATOL)


def test_the_baseline_is_read_before_it_is_updated():
    rae = RoleBaselines(decay=0.5)
    assert rae.advantages([1.0], ["nim"], [0]).tolist() == [1.0]
    assert rae.get("nim", 0) == 0.5
    assert rae.advantages([1.0], ["nim"], [0]).tolist() == [0.5]
    assert rae.get("nim", 1) == rae.get("kuhn", 0) == 0.0


def test_roles_and_games_do_not_mix():
    returns, games, roles = make_players()
    whole = RoleBaselines().advantages(returns, games, roles)
    for game in ("kuhn", "nim"):
        for role in (0, 1):
            rows = (games == game) & (roles == role)
            alone = RoleBaselines().advantages(returns[rows], games[rows], roles[rows])
            assert (alone == whole[rows]).all()


def test_baseline_of_a_losing_role_converges_to_its_return():
    """The second role always loses: its baseline converges to that return."""
    rae = RoleBaselines(decay=0.9)
    for _ in range(200):
        got = rae.advantages([1.0, -1.0], ["g", "g"], [0, 1])
    np.testing.assert_allclose(got, 0.0, atol=1e-8)


def test_a_resumed_run_goes_on_exactly():
    returns, games, roles = make_players()
    straight = RoleBaselines()
    straight.advantages(returns[:30], games[:30], roles[:30])
    state = json.loads(json.dumps(straight.state_dict()))
    resumed = RoleBaselines()
    resumed.load_state_dict(state)
    rest = (returns[30:], games[30:], roles[30:])
    assert (resumed.advantages(*rest) == straight.advantages(*rest)).all()
    assert resumed.state_dict() == straight.state_dict()
    with pytest.raises(ValueError, match="decay 0.95, this object 0.5"):
        RoleBaselines(0.5).load_state_dict(state)


def test_bad_returns_leave_the_baselines_alone():
    rae = RoleBaselines()
    rae.advantages([1.0], ["g"], [0])
    before = rae.state_dict()
    for returns, games, message in (
        ([2.0, np.nan], ["g", "g"], r"returns\[1\] is nan"),
        ([2.0, 1.0], ["g"], "Shapes differ"),
    ):
        with pytest.raises(ValueError, match=message):
            rae.advantages(returns, games, [0, 0])
    assert rae.state_dict() == before
    for decay in (1.0, -0.1, np.nan):
        with pytest.raises(ValueError, match="decay is"):
            RoleBaselines(decay)


def slow_marshal(rewards, episodes, players, games):
    """The three steps before standardising, message by message."""
    keys = list(zip(games, players))

    def mean(numbers, key):
        return np.mean([x for x, other in zip(numbers, keys) if other == key])

    centred = [r - mean(rewards, key) for r, key in zip(rewards, keys)]
    sums = [
        sum(
            centred[m]
            for m in range(k, len(rewards))
            if (episodes[m], players[m]) == (episodes[k], players[k])
        )
        for k in range(len(rewards))
    ]
    return np.array([s - mean(sums, key) for s, key in zip(sums, keys)])


def make_games(seed=0):
    rng = np.random.default_rng(seed)
    episodes = rng.permutation(np.repeat(np.arange(6), 5))
    players, games = rng.integers(2, size=30), np.array(["a", "b"])[episodes % 2]
    return rng.normal(size=30), episodes, players, games


@pytest.mark.parametrize("seed", range(3))
def test_per_player_advantages_equal_the_steps(seed):
    arguments = make_games(seed)
    got = per_player_advantages(*arguments, normalise=False)
    expected = slow_marshal(*arguments)
    np.testing.assert_allclose(got, expected, atol=ATOL)
    whitened = per_player_advantages(*arguments)
    np.testing.assert_allclose(whitened, whiten(expected, np.ones(30, bool)), atol=ATOL)


def test_per_player_advantages_ignore_other_games_and_offsets():
    rewards, episodes, players, games = make_games()
    got = per_player_advantages(rewards, episodes, players, games, normalise=False)
    rows = games == "a"
    alone = per_player_advantages(
        rewards[rows], episodes[rows], players[rows], games[rows], normalise=False
    )
    np.testing.assert_allclose(alone, got[rows], atol=ATOL)
    lucky = rewards + 3.0 * (players == 0)  # a first-mover edge
    shifted = per_player_advantages(lucky, episodes, players, games, normalise=False)
    np.testing.assert_allclose(shifted, got, atol=1e-8)


def test_equal_returns_count_once_each():
    """Three wins and one loss: the mean is 0.5, not that of the distinct +1 and -1."""
    got = per_player_advantages(
        [1.0, 1.0, 1.0, -1.0], [0, 1, 2, 3], [0] * 4, ["g"] * 4, normalise=False
    )
    np.testing.assert_allclose(got, [0.5, 0.5, 0.5, -1.5], atol=ATOL)


def test_per_player_edges():
    assert per_player_advantages([], [], [], []).shape == (0,)
    assert per_player_advantages([3.0], [0], [0], [0]).tolist() == [0.0]
    with pytest.raises(ValueError, match=r"rewards\[0\] is inf"):
        per_player_advantages([np.inf], [0], [0], [0])
    with pytest.raises(ValueError, match="Shapes differ"):
        per_player_advantages([1.0, 2.0], [0], [0], [0])
