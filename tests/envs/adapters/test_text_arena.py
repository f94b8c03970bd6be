"""TextArena's games; skipped where textarena is not installed."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("textarena")

from pettingzoo.test import api_test, seed_test

from rllib_llm.envs import make_env
from rllib_llm.envs.adapters import text_arena
from rllib_llm.envs.adapters.text_arena import TextArenaGame
from rllib_llm.errors import ConfigError, EnvContractError

KUHN = {"game": "KuhnPoker-v0", "error_allowance": 3}
MOVES = ["[check]", "[bet]", "[fold]", "[call]"]


def play(env, answers, seed=0):
    """Return all observations and returns."""
    env.reset(seed=seed)
    log = []
    answers = iter(answers)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        over = terminated or truncated
        log.append((agent, observation["text"], reward, info))
        env.step(None if over else next(answers))
    return log


@pytest.mark.parametrize("game", ["TicTacToe-v0", "KuhnPoker-v0", "Nim-v0"])
def test_pettingzoo_tests_pass(game):
    api_test(TextArenaGame({"game": game}), num_cycles=30)
    seed_test(lambda: TextArenaGame({"game": game, "error_allowance": 2}))


def test_a_win_in_tic_tac_toe():
    log = play(make_env("text_arena-v0"), "03142")
    assert [reward for _, _, reward, _ in log[-2:]] == [1.0, -1.0]
    assert log[-1][3]["metrics"] == {
        "player_0_won": 1.0,
        "player_1_won": 0.0,
        "draw": 0.0,
    }


def test_prompts_hold_only_what_is_new():
    log = play(make_env("text_arena-v0"), "03142")
    texts = [text for agent, text, _, _ in log[:-2] if agent == "player_0"]
    assert [text.count("Your goal is to win") for text in texts] == [1, 0, 0]
    assert all(text.count("Current Board") == 1 for text in texts)
    assert "Player 1: [3]" in texts[1]
    assert not any("Player 0: [" in text for text in texts)  # its own words


def test_episodes_do_not_leak_into_each_other():
    env = TextArenaGame(KUHN)
    first = play(env, MOVES * 30, seed=1)
    play(env, MOVES[::-1] * 30, seed=2)
    assert play(env, MOVES * 30, seed=1) == first
    assert play(TextArenaGame(KUHN), MOVES * 30, seed=1) == first


def test_global_random_states_are_left_alone():
    random.seed(7)
    np.random.seed(7)
    wanted = random.random(), np.random.random()
    random.seed(7)
    np.random.seed(7)
    play(TextArenaGame(KUHN), MOVES * 30, seed=3)
    assert (random.random(), np.random.random()) == wanted


def test_interleaved_games_do_not_disturb_each_other():
    alone = [play(TextArenaGame(KUHN), MOVES * 30, seed=s) for s in (1, 2)]
    envs = [TextArenaGame(KUHN) for _ in alone]
    logs = [[], []]
    answers = [iter(MOVES * 30) for _ in alone]
    for seed, env in enumerate(envs, start=1):
        env.reset(seed=seed)
    while any(env.agents for env in envs):
        random.seed(0)  # what a careless neighbour does
        for env, log, moves in zip(envs, logs, answers):
            if env.agents:
                agent = env.agent_selection
                observation, reward, terminated, truncated, info = env.last()
                log.append((agent, observation["text"], reward, info))
                env.step(None if terminated or truncated else next(moves))
    assert logs == alone


def test_hidden_cards_stay_hidden():
    for seed in range(10):
        env = TextArenaGame(KUHN)
        env.reset(seed=seed)
        agent = env.agent_selection
        cards = env._game.state.game_state["player_cards"]
        names = {0: "J", 1: "Q", 2: "K"}
        position = int(agent[-1])
        own, other = cards[position], cards[1 - position]
        text = env.observe(agent)["text"]
        assert f"Your card is: '{names[own]}'" in text
        assert f"Your card is: '{names[other]}'" not in text


def test_invalid_moves_follow_our_allowance():
    env = TextArenaGame({"error_allowance": 2})
    env.reset(seed=0)
    for _ in range(2):
        env.step("nowhere")
        assert env.infos["player_0"]["invalid_action"] is True
        assert "invalid move" in env.observe("player_0")["text"]
    env.step("nowhere")
    assert env.rewards == {"player_0": -1.5, "player_1": 0.5}
    assert env.infos["player_1"]["stop_reason"] == "parse_error"


def test_text_that_the_game_cannot_parse_is_invalid():
    env = TextArenaGame({"error_allowance": 1})
    env.reset(seed=0)
    env.step("[" + "9" * 5000 + "]")  # more digits than Python converts
    assert env.infos["player_0"]["invalid_action"] is True
    assert env.observe("player_0")["text"] == "Not a valid move."
    env.step("[4]")
    assert env.agent_selection == "player_1"


def test_endless_games_are_truncated():
    env = TextArenaGame(
        {"game": "PublicGoodsGame-v0", "max_turns": 7, "error_allowance": 100}
    )
    log = play(env, ["?"] * 7)
    assert log[-1][3]["stop_reason"] == "max_turns"
    assert log[-1][2] == 0.0


def test_games_that_swap_their_arguments_are_read():
    env = TextArenaGame({"game": "Countdown-v0", "num_players": 1})
    log = play(env, ["[0 1 +]"] * 6)
    assert "TARGET" in log[1][1]
    assert 0 < log[-1][2] <= 1


def test_swapped_rewards_are_read_and_others_refused():
    assert text_arena._number("Invalid.", {"reason": 0.25}) == 0.25
    assert text_arena._number("1", {}) == 1.0
    with pytest.raises(EnvContractError, match="lost"):
        text_arena._number("lost", {"reason": "bad luck"})


def test_rules_can_be_replaced():
    env = TextArenaGame({"rules": "Three in a row win."})
    env.reset(seed=0)
    text = env.observe("player_0")["text"]
    assert text.startswith("Three in a row win.\nCurrent Board")
    assert "Your goal" not in text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"game": "TicTacTo-v0"}, "TicTacToe-v0"),
        ({"num_players": 3}, "num_players=3"),
        ({"num_players": 0}, "num_players"),
        ({"game_options": {"colour": 1}}, "colour"),
        ({"game": "UsedCarNegotiation-v0"}, "UsedCarNegotiation-v0"),
    ],
)
def test_games_that_cannot_be_played_are_refused_when_made(config, words):
    with pytest.raises(ConfigError, match=words):
        TextArenaGame(config)
