"""Taxi, CliffWalking and Blackjack, held against Gymnasium's engines."""

import pathlib
import pickle
import random

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv

from rllib_llm.envs import check_env, make_env
from rllib_llm.envs.blackjack import Blackjack, dealer_ends, hand_values, optimal_return
from rllib_llm.envs.cliff_walking import ORDER, CliffWalking
from rllib_llm.envs.taxi import ACTIONS, Taxi
from rllib_llm.envs.toy_text import action_values
from rllib_llm.envs.transcript import expert_policy, play, random_policy
from rllib_llm.errors import ConfigError

NAMES = ("blackjack-v0", "cliff_walking-v0", "taxi-v0")
GOLDEN = pathlib.Path(__file__).parent / "golden"
RNG = np.random.default_rng(0)


# All of them ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config"),
    [
        *((name, {}) for name in NAMES),
        ("blackjack-v0", {"natural": True}),
        ("cliff_walking-v0", {"slippery": True, "anywhere": True, "max_turns": 100}),
        ("taxi-v0", {"rainy": True, "fickle": True, "max_turns": 60}),
    ],
)
def test_check_env_finds_nothing(name, config):
    report = check_env(name, config)
    assert report.ok, str(report)
    assert report.measurements["ms_per_turn"] < 50


@pytest.mark.parametrize("name", NAMES)
def test_golden_transcripts(name):
    """Prompts and rewards are part of an environment's version."""
    env = make_env(name)
    plays = [play(env, 0, expert_policy), play(env, 1, random_policy)]
    assert "\n\n".join(map(str, plays)) + "\n" == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_fresh_instances_pickle_and_start_alike(name):
    copy = pickle.loads(pickle.dumps(make_env(name)))
    assert copy.reset(seed=3) == make_env(name).reset(seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_all_listed_actions_are_read(name):
    env = make_env(name)
    info = env.reset(seed=0)[1]
    assert [env.parse(a) for a in info["admissible_actions"]].count(None) == 0
    assert env.expert_action(RNG) in info["admissible_actions"]
    assert env.random_action(RNG) in info["admissible_actions"]


@pytest.mark.parametrize("name", NAMES)
def test_random_text_is_answered_within_bounds(name):
    env, source = make_env(name), random.Random(name)
    words = [
        "go",
        "left",
        "pick",
        "up",
        "drop off",
        "hit",
        "stick",
        "\n",
        " ",
        "\u017f",
    ]
    for episode in range(40):
        env.reset(seed=episode)
        done = False
        while not done:
            letters = map(chr, source.choices(range(0x300), k=10))
            parts = [*letters, *source.choices(words, k=4)]
            source.shuffle(parts)
            text, reward, terminated, truncated, info = env.step("".join(parts))
            assert text and -100 <= reward <= 20
            assert isinstance(info["invalid_action"], bool)
            done = terminated or truncated
        assert info["success"] in (True, False)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("blackjack-v0", {"natural": 1}),
        ("blackjack-v0", {"sab": None}),
        ("cliff_walking-v0", {"slippery": 1}),
        ("cliff_walking-v0", {"anywhere": "yes"}),
        ("taxi-v0", {"farthest": 7}),
        ("taxi-v0", {"rainy": 0}),
        ("taxi-v0", {"fickle": 2}),
    ],
)
def test_impossible_options_are_refused(name, config):
    with pytest.raises(ConfigError, match=next(iter(config))):
        make_env(name, config).reset(seed=0)


# Value iteration -----------------------------------------------------------------


def test_values_of_a_walk_are_those_written_by_hand():
    """From 0 a safe step of -3, or one of -1 that fails half of the time."""
    end = [(1.0, 1, -3.0, True)]
    table = {0: {0: end, 1: [(0.5, 0, -1.0, False), (0.5, 1, -1.0, True)]}}
    table[1] = {0: [(1.0, 1, 0.0, True)], 1: [(1.0, 1, 0.0, True)]}
    np.testing.assert_allclose(action_values(table), [[-3, -2], [0, 0]], atol=1e-9)


def test_values_without_an_end_are_refused():
    with pytest.raises(ValueError, match="a way to an end"):
        action_values({0: {0: [(1.0, 0, -1.0, False)]}})


@pytest.mark.parametrize(
    "engine",
    [TaxiEnv(), TaxiEnv(is_rainy=True), CliffWalkingEnv(), CliffWalkingEnv(None, True)],
)
def test_values_satisfy_bellmans_equation(engine):
    table = {s: dict(row) for s, row in engine.P.items()}
    if isinstance(engine, CliffWalkingEnv):
        table[47] = {a: [(1.0, 47, 0.0, True)] for a in range(4)}
    values = action_values(table)
    for state in range(0, len(table), 7):
        for action, cases in table[state].items():
            right = sum(
                p * (r + (0.0 if done else values[s].max())) for p, s, r, done in cases
            )
            assert values[state, action] == pytest.approx(right, abs=1e-8)


# Taxi ----------------------------------------------------------------------------


def test_the_taxi_expert_is_optimal_and_delivers_from_all_starts():
    env, starts = Taxi(), {}
    for split in ("train", "test"):
        env.reset(seed=0, options={"split": split})
        starts[split] = set(env._starts(18))
        assert env._taxi.s in starts[split]
    assert not starts["train"] & starts["test"]
    assert len(starts["train"] | starts["test"]) == 300
    assert 40 <= len(starts["test"]) <= 80
    for seed in range(200):
        options = {"split": ("train", "test")[seed % 2]}
        env.reset(seed=seed, options=options)
        best = env.optimal_value()
        transcript = play(env, seed, expert_policy, options=options)
        assert transcript.success and sum(transcript.rewards) == pytest.approx(best)
        assert 20 - (len(transcript.actions) - 1) == pytest.approx(best)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_nearest_taxi_starts_are_near(split):
    env = Taxi({"farthest": 8})
    for seed in range(30):
        transcript = play(env, seed, expert_policy, options={"split": split})
        assert 6 <= len(transcript.actions) <= 8


def test_the_taxi_expert_delivers_in_rain_and_to_the_fickle():
    env = Taxi({"rainy": True, "fickle": True, "max_turns": 80})
    assert all(play(env, seed, expert_policy).success for seed in range(60))


def test_the_taxi_does_what_gymnasiums_does():
    env, other = Taxi(), gym.make("Taxi-v3").unwrapped
    env.reset(seed=5)
    other.reset(seed=0)
    other.s = env._taxi.s
    for _ in range(20):
        action = env.random_action(RNG)
        reward = env.step(action)[1]
        assert reward == other.step(ACTIONS.index(action))[1]
        assert env._taxi.s == other.s
    text, reward, *_ = env.step("go down. No: PICK  up!")
    assert reward in (-1, -10) and text.startswith("row ")


def test_the_taxis_walls_are_where_the_map_shows_them():
    env = Taxi()
    lines = env.reset(seed=0)[0].split("\n")[:5]
    assert [len(line) for line in lines] == [9] * 5
    for row in range(5):
        for column in range(4):
            env._taxi.s = env._taxi.encode(row, column, 0, 1)
            env._taxi.step(ACTIONS.index("go right"))
            stays = env._taxi.s == env._taxi.encode(row, column, 0, 1)
            assert stays == (lines[row][2 * column + 1] == "|")
    stops = {(r, c): lines[r][2 * c] for r, c in env._taxi.locs}
    assert "".join(stops.values()) == "RGYB"


# CliffWalking --------------------------------------------------------------------


def test_the_cliff_expert_takes_the_shortest_way():
    env = CliffWalking()
    for seed in range(4):
        transcript = play(env, seed, expert_policy)
        assert transcript.success and sum(transcript.rewards) == -13
    env.reset(seed=0)
    assert env.optimal_value() == pytest.approx(-13)
    assert env.step("go right")[:3] == ("You fell. row 4 column 1", -100.0, False)
    assert env.step("go up")[:3] == ("row 3 column 1", -1.0, False)


def test_starts_anywhere_are_split_and_solved():
    env, starts = CliffWalking({"anywhere": True}), {}
    for split in ("train", "test"):
        starts[split] = set()
        for seed in range(400):
            env.reset(seed=seed, options={"split": split})
            starts[split].add(int(env._walk.s))
            if seed < 100:
                transcript = play(env, seed, expert_policy, options={"split": split})
                env.reset(seed=seed, options={"split": split})
                assert sum(transcript.rewards) == pytest.approx(env.optimal_value())
    assert not starts["train"] & starts["test"]
    assert starts["train"] | starts["test"] == set(range(37))


def test_moves_are_named_after_where_they_lead():
    env = CliffWalking()
    env.reset(seed=0)
    offsets = dict(zip(ORDER, (-12, 1, 12, -1), strict=True))
    for move, offset in offsets.items():
        env._walk.s = 17
        env.step(f"go {move}")
        assert env._walk.s == 17 + offset


def test_slippery_returns_are_those_of_value_iteration():
    env = CliffWalking({"slippery": True, "max_turns": 1000})
    env.reset(seed=0)
    best = env.optimal_value()
    returns = [sum(play(env, seed, expert_policy).rewards) for seed in range(200)]
    assert abs(np.mean(returns) - best) < 3 * np.std(returns) / np.sqrt(200)


# Blackjack -----------------------------------------------------------------------


def test_the_dealers_ends_are_a_distribution():
    for card in range(1, 11):
        ends = dealer_ends((11, True) if card == 1 else (card, False))
        assert sum(ends.values()) == pytest.approx(1)
        assert set(ends) == {0, 17, 18, 19, 20, 21}
    assert dealer_ends((16, False))[0] == pytest.approx(8 / 13)


@pytest.mark.parametrize(
    ("hand", "dealer", "hits"),
    [
        ((12, False), 4, False),
        ((12, False), 3, True),
        ((13, False), 2, False),
        ((16, False), 6, False),
        ((16, False), 7, True),
        ((17, False), 1, False),
        ((17, True), 6, True),
        ((18, True), 8, False),
        ((18, True), 9, True),
        ((19, True), 10, False),
        ((11, False), 5, True),
    ],
)
def test_the_policy_is_the_one_in_sutton_and_bartos_figure(hand, dealer, hits):
    """Figure 5.2 of Reinforcement Learning: An Introduction (2nd edition, 2018)."""
    stick, hit = hand_values(hand, dealer)
    assert (hit > stick) == hits


def test_the_blackjack_expert_earns_the_optimal_return():
    env = Blackjack()
    plays = [play(env, seed, expert_policy) for seed in range(1500)]
    returns = [sum(p.rewards) for p in plays]
    assert abs(np.mean(returns) - optimal_return()) < 3 * np.std(returns) / 1500**0.5
    assert optimal_return() == pytest.approx(-0.0466, abs=1e-4)
    assert all(p.success == (sum(p.rewards) > 0) for p in plays)


def test_naturals_pay_more_where_asked():
    granted = {True: set(), False: set()}
    for natural in granted:
        env = Blackjack({"natural": natural})
        for seed in range(300):
            if "21" in env.reset(seed=seed)[0].split("\n")[1]:
                granted[natural].add(env.step("stick")[1])
    assert 1.5 in granted[True] and 1.5 not in granted[False] and 1.0 in granted[False]


def test_blackjack_observations():
    env = Blackjack()
    env.reset(seed=0)
    env._table.player, env._table.dealer = [1, 5], [1, 9]
    assert env._observation() == "You hold 16 with an ace as 11, dealer shows an ace."
    assert env.step("hit or STICK")[0] == "You 16, dealer 20. You lose."
    env.reset(seed=0)
    env._table.player = [10, 10, 1]
    assert env.step("hit")[0].endswith(". You lose.")
    assert env.parse("I whit you") is None
