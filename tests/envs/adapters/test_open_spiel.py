"""OpenSpiel's games as text."""

from __future__ import annotations

import copy
import functools
import pickle
import re
import time

import numpy as np
import pytest

pytest.importorskip("pyspiel")

from pettingzoo.test import api_test, seed_test

from rllib_llm.data.types import StopReason
from rllib_llm.envs import TEXT_ENVS, make_env
from rllib_llm.envs.adapters import open_spiel_text
from rllib_llm.envs.adapters.open_spiel_text import GameText, OpenSpielGame
from rllib_llm.errors import ConfigError
from rllib_llm.offline.parallel_episodes import play_all
from rllib_llm.selfplay.exploitability import information_states

NAMED = sorted(name for name in TEXT_ENVS if name.startswith("open_spiel/"))
OTHERS = ["tiny_hanabi", "hanabi", "negotiation", "backgammon", "go(board_size=5)"]


def play(env, seed, policy):
    """Return the texts that each agent read, and the rewards."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    read = {agent: [] for agent in env.possible_agents}
    total_returns = dict.fromkeys(env.possible_agents, 0.0)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        total_returns[agent] += reward
        over = terminated or truncated
        if not over:
            read[agent].append(observation["text"])
        env.step(None if over else policy(agent, rng))
    return read, total_returns


@pytest.mark.parametrize("name", NAMED)
def test_pettingzoo_tests_pass(name):
    api_test(make_env(name), num_cycles=50)
    seed_test(lambda: make_env(name, {"error_allowance": 3}))


@pytest.mark.parametrize("style", ["full", "short"])
@pytest.mark.parametrize("game", [*NAMED, *OTHERS])
def test_games_are_played_to_the_end_with_openspiels_returns(game, style):
    named = game in NAMED
    config = {"style": style, **({} if named else {"game": game})}
    env = make_env(game if named else "open_spiel-v0", config)
    for seed in range(5):
        read, total_returns = play(env, seed, env.random_action)
        assert list(total_returns.values()) == pytest.approx(env.state.returns())
        assert all(text for texts in read.values() for text in texts)
        if style == "full":
            assert any(
                "You are player 1 of" in t for texts in read.values() for t in texts
            )


def test_kuhn_poker_reads_as_documented():
    env = make_env("open_spiel/kuhn_poker-v0", {"style": "short"})
    env.reset(seed=3)
    cards = dict(zip("012", "JQK"))
    first, second = str(env.state).split()
    assert env.observe("player_0")["text"] == (
        f"card {cards[first]}, history: none. pass or bet?"
    )
    env.step("I pass.")
    assert env.observe("player_1")["text"] == (
        f"card {cards[second]}, history: pass. pass or bet?"
    )
    env.step("Bet!")
    assert env.observe("player_0")["text"] == (
        f"card {cards[first]}, history: pass bet. pass or bet?"
    )
    env.step("bet")
    assert env.state.is_terminal()


def test_tic_tac_toe_shows_free_cells_by_number():
    env = make_env("open_spiel/tic_tac_toe-v0", {"style": "short"})
    env.reset(seed=0)
    env.step("5")
    assert env.observe("player_1")["text"] == ("you are o\n1 2 3\n4 x 6\n7 8 9\nmove?")
    env.step("5")  # taken
    assert all(env.terminations.values())
    assert env.rewards == {"player_0": 0.5, "player_1": -1.5}


def test_rules_come_once_and_can_be_replaced():
    env = make_env("open_spiel/tic_tac_toe-v0")
    read, _ = play(env, 0, env.random_action)
    for texts in read.values():
        assert texts[0].startswith("Tic-tac-toe: three in a line win.")
        assert not any("three in a line" in text for text in texts[1:])
    for rules, start in (("Be quick.", "Be quick. You are"), ("", "You are player 1")):
        env = make_env("open_spiel/tic_tac_toe-v0", {"rules": rules})
        env.reset(seed=0)
        assert env.observe("player_0")["text"].startswith(start)


def test_an_invalid_answer_is_asked_again_where_allowed():
    env = make_env("open_spiel/tic_tac_toe-v0", {"error_allowance": 2})
    env.reset(seed=0)
    for wrong in ("ten", "I take 0"):
        env.step(wrong)
        assert env.observe("player_0")["text"].startswith("Not legal. Answer with 1, 2")
    env.step("9")
    assert env.agent_selection == "player_1"
    assert env.max_turns == 9 * 3


@pytest.mark.parametrize("style", ["full", "short"])
def test_kuhn_prompts_never_show_the_other_card(style):
    names = dict(zip(range(3), "JQK"))
    text = GameText("kuhn_poker", style=style)
    seen = {}

    def walk(state):
        if state.is_terminal():
            return
        if state.is_chance_node():
            for action in state.legal_actions():
                walk(state.child(action))
            return
        player = state.current_player()
        cards = [int(card) for card in str(state).split()[:2]]
        prompt = text.prompt(state, player, first=False)
        shown = re.findall(r"\b[JQK]\b", prompt)
        assert shown == [names[cards[player]]]
        # The same text whatever the other player holds.
        key = (player, cards[player], tuple(state.history()[2:]))
        assert seen.setdefault(key, prompt) == prompt
        for action in state.legal_actions():
            walk(state.child(action))

    walk(text.game.new_initial_state())
    assert len(seen) == 12


@pytest.mark.parametrize(
    "game", ["leduc_poker", "tiny_hanabi", "kuhn_poker(players=3)"]
)
def test_texts_are_a_function_of_the_information_state(game):
    # information_states() raises where the texts of two of its histories differ.
    assert len(information_states(GameText(game, style="short"))) > 4


def test_turn_based_form_of_simultaneous_games_hides_the_first_move():
    name = "turn_based_simultaneous_game(game=matrix_rps())"
    texts = set()
    for move in ("Rock", "Paper", "Scissors"):
        env = OpenSpielGame({"game": name})
        env.reset(seed=0)
        env.step(move)
        texts.add(env.observe("player_1")["text"])
    assert len(texts) == 1


@pytest.mark.parametrize(
    "config", [{"game": "leduc_poker"}, {"game": "negotiation"}, {"game": "backgammon"}]
)
def test_chance_follows_the_seed_alone(config):
    # negotiation draws for itself, from a seed among its parameters.
    def deals(env, seeds):
        found = []
        for seed in seeds:
            env.reset(seed=seed)
            found.append(str(env.state))
        return found

    busy = OpenSpielGame(config)
    play(busy, 99, busy.random_action)
    assert deals(OpenSpielGame(config), range(30)) == deals(busy, range(30))
    assert len(set(deals(busy, range(30)))) > 10


def test_chance_has_openspiels_probabilities():
    env = make_env("open_spiel/kuhn_poker-v0")
    counts = dict.fromkeys("012", 0)
    for seed in range(600):
        env.reset(seed=seed)
        counts[str(env.state).split()[0]] += 1
    assert all(abs(count - 200) < 50 for count in counts.values())


def test_a_copy_goes_on_alike():
    env = make_env("open_spiel/leduc_poker-v0")
    env.reset(seed=4)
    env.step("call")
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        twin.step("call")
        assert env.agent_selection == "player_1"
    env.step("call")
    assert str(twin.state) == str(env.state)
    assert twin.observe("player_0") == env.observe("player_0")


def test_tic_tac_toe_expert_never_loses():
    env = make_env("open_spiel/tic_tac_toe-v0")
    for seed in range(40):
        expert = f"player_{seed % 2}"

        def policy(agent, rng, expert=expert):
            choose = env.expert_action if agent == expert else env.random_action
            return choose(agent, rng)

        _, total_returns = play(env, seed, policy)
        assert total_returns[expert] >= 0
    _, total_returns = play(env, 0, env.expert_action)
    assert set(total_returns.values()) == {0.0}


def test_kuhn_expert_never_folds_a_king_nor_calls_with_a_jack():
    env = make_env("open_spiel/kuhn_poker-v0", {"style": "short"})
    rng = np.random.default_rng(0)
    answered = 0
    for seed in range(60):
        env.reset(seed=seed)
        env.step("bet")
        card = env.observe("player_1")["text"].split()[1]
        if card != "Q,":
            wanted = "bet" if card == "K," else "pass"
            assert env.expert_action("player_1", rng) == wanted
            answered += 1
    assert answered > 20


def test_an_opening_leaves_a_game_to_be_played():
    env = make_env("open_spiel/tic_tac_toe-v0", {"random_opening": 9})
    plain = make_env("open_spiel/tic_tac_toe-v0")
    lengths, agents = set(), set()
    for seed in range(60):
        env.reset(seed=seed)
        first = env.state.history()
        env.reset(seed=seed)
        assert env.state.history() == first  # the seed decides
        assert not env.state.is_terminal()
        lengths.add(len(first))
        agents.add(env.agent_selection)
        plain.reset(seed=seed)
        assert plain.state.history() == []
    assert lengths == set(range(9))
    assert agents == {"player_0", "player_1"}


def test_openings_meet_chance():
    env = make_env("open_spiel/kuhn_poker-v0", {"random_opening": 1})
    lengths = set()
    for seed in range(20):
        env.reset(seed=seed)
        lengths.add(len(env.state.history()))
        assert not env.state.is_chance_node()
    assert lengths == {2, 3}  # two cards, and perhaps a move


def test_experts_are_missing_where_none_is_known():
    env = make_env("open_spiel/liars_dice-v0")
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match="liars_dice"):
        env.expert_action("player_0", np.random.default_rng(0))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"game": "kuhn_pokr"}, "kuhn_poker"),
        (
            {"game": "matrix_rps"},
            r"turn_based_simultaneous_game\(game=matrix_rps\(\)\)",
        ),
        ({"game_options": {"decks": 2}}, "decks"),
        ({"style": "long"}, "style"),
        ({"game": "tic_tac_toe", "random_opening": 10}, "from 0 to 9"),
        ({"gam": "go"}, "game"),
    ],
)
def test_bad_options_are_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        OpenSpielGame(config)


@pytest.mark.parametrize(
    ("config", "own", "others"),
    [
        ({"game": "tic_tac_toe"}, -1.5, 0.5),
        ({"game": "leduc_poker"}, -19.5, 6.5),
        ({"game": "tiny_hanabi"}, 0.0, 0.0),  # a common reward of 0 to 10
        ({"game": "leduc_poker", "invalid_action_reward": -1.0}, -1.0, 6.5),
        ({"game": "leduc_poker", "invalid_opponent_reward": 0.0}, -19.5, 0.0),
    ],
)
def test_forfeits_cost_more_than_any_loss(config, own, others):
    env = OpenSpielGame(config)
    env.reset(seed=0)
    env.step("???")
    assert env.rewards == {"player_0": own, "player_1": others}


def test_truncation_keeps_the_game_open():
    env = make_env("open_spiel/connect_four-v0", {"max_turns": 3})
    read, total_returns = play(env, 0, env.random_action)
    assert sum(map(len, read.values())) == 3
    assert set(total_returns.values()) == {0.0}
    assert not env.state.is_terminal()


def test_more_players_than_two():
    env = OpenSpielGame({"game_options": {"players": 3}})
    assert env.possible_agents == ["player_0", "player_1", "player_2"]
    _, total_returns = play(env, 1, env.random_action)
    assert sum(total_returns.values()) == pytest.approx(0)
    env.reset(seed=0)
    env.step("fold?")
    assert env.rewards == {"player_0": -3.0, "player_1": 2.0, "player_2": 2.0}
    assert env.infos["player_2"]["stop_reason"] is StopReason.PARSE_ERROR


def test_threads_that_ask_for_one_expert_solve_the_game_once(monkeypatch):
    """Two hundred demonstrations of three players' Kuhn poker took 42 s, not 1."""
    solved = []
    inner = open_spiel_text._solve.__wrapped__

    def solve(name):
        solved.append(name)
        time.sleep(0.1)  # the other threads get here meanwhile
        return inner(name)

    monkeypatch.setattr(open_spiel_text, "_solve", functools.lru_cache(solve))

    def play_one(env, seed):
        env.reset(seed=seed)
        return env.unwrapped.expert_action(
            env.agent_selection, np.random.default_rng(seed)
        )

    def make():
        return make_env("open_spiel/kuhn_poker-v0", {"style": "short"})

    words = play_all(make, range(20), play_one, most_envs=4)
    assert set(words) <= {"pass", "bet"}
    assert solved == ["kuhn_poker()"]
