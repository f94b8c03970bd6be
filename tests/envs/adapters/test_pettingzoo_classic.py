"""PettingZoo's classic games; skipped where their dependencies are missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

pytest.importorskip("pygame")
pytest.importorskip("rlcard")

from pettingzoo.test import api_test, seed_test

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters.pettingzoo_classic import PettingZooGame
from rllib_llm.errors import ConfigError

GAMES = ["tictactoe", "connect_four", "rps", "leduc_holdem", "texas_holdem"]


def play(env, seed):
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    returns = dict.fromkeys(env.possible_agents, 0.0)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, info = env.last()
        returns[agent] += reward
        over = terminated or truncated
        env.step(None if over else env.random_action(agent, rng))
    return returns, info


@pytest.mark.parametrize("game", GAMES)
def test_pettingzoo_tests_pass(game):
    api_test(PettingZooGame({"game": game}), num_cycles=30)
    seed_test(lambda: PettingZooGame({"game": game, "error_allowance": 2}))


@pytest.mark.parametrize("game", GAMES)
def test_returns_are_those_of_the_game(game):
    for seed in range(10):
        env = PettingZooGame({"game": game})
        taken = []
        step = env.game.step
        env.game.step = lambda a, step=step, taken=taken: (taken.append(a), step(a))
        returns, _ = play(env, seed)

        # The same actions in PettingZoo's own environment and books.
        twin = PettingZooGame({"game": game}).game
        twin.reset(seed=int(np.random.default_rng(seed).integers(2**31)))
        wanted = dict.fromkeys(twin.possible_agents, 0.0)
        actions = iter(taken)
        for agent in twin.agent_iter():
            _, reward, terminated, truncated, _ = twin.last()
            wanted[agent] += reward
            twin.step(None if terminated or truncated else next(actions))
        assert returns == wanted


def test_boards_are_seen_from_the_own_side():
    env = make_env("pettingzoo_classic-v0")
    env.reset(seed=0)
    env.step("take 8")
    text = env.observe("player_2")["text"]
    assert "you are x\n1 2 3\n4 5 6\n7 o 9\n" in text
    env.step("1")
    assert "you are x\no 2 3\n4 5 6\n7 x 9\n" in env.observe("player_1")["text"]


def test_illegal_cells_are_invalid():
    env = make_env("pettingzoo_classic-v0", {"error_allowance": 1})
    env.reset(seed=0)
    env.step("5")
    env.step("5")
    assert env.observe("player_2")["text"] == (
        "Not legal. Answer with 1, 2, 3, 4, 6, 7, 8 or 9."
    )
    env.step("5")
    assert env.rewards == {"player_1": 0.5, "player_2": -1.5}


def test_connect_four_drops_to_the_bottom():
    env = PettingZooGame({"game": "connect_four", "rules": ""})
    env.reset(seed=0)
    env.step("column 3")
    rows = env.observe("player_1")["text"].splitlines()
    assert rows[:2] == ["you are x", "1 2 3 4 5 6 7"]
    assert rows[7] == ". . o . . . ."


def test_rock_paper_scissors_hides_the_move_and_truncates():
    env = PettingZooGame({"game": "rps", "game_options": {"max_cycles": 2}})
    texts = set()
    for move in ("rock", "paper", "scissors"):
        env.reset(seed=0)
        env.step(move)
        texts.add(env.observe("player_1")["text"])
    assert len(texts) == 1
    env.reset(seed=0)
    for move in ("rock", "paper", "rock", "rock"):
        env.step(move)
    assert all(env.truncations.values())
    assert env.infos["player_0"]["stop_reason"] == "max_turns"
    assert "last move: rock" in env.observe("player_0")["text"]


def test_leduc_shows_the_own_card_only():
    for seed in range(20):
        env = PettingZooGame({"game": "leduc_holdem"})
        env.reset(seed=seed)
        hands = [player.hand.rank for player in env.game.unwrapped.env.game.players]
        agent = env.agent_selection
        own = hands[env.possible_agents.index(agent)]
        assert f"card {own}, board none, chips " in env.observe(agent)["text"]
        rng = np.random.default_rng(seed)
        while not any(env.terminations.values()):
            text = env.observe(env.agent_selection)["text"]
            public = env.game.unwrapped.env.game.public_card
            assert f"board {public.rank if public else 'none'}," in text
            env.step(env.random_action(env.agent_selection, rng))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"game": "tictacto"}, "tictactoe"),
        ({"game_options": {"colour": 1}}, "colour"),
        ({"game": "chess"}, "7104"),
    ],
)
def test_bad_options_are_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        PettingZooGame(config)


def test_modules_stay_unloaded_until_made():
    assert "pettingzoo.classic.go.go" not in sys.modules
