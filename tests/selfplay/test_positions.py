"""Exploitability by position, for policies that read the newest prompt only."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

pytest.importorskip("pyspiel")

import pyspiel

from rllib_llm.envs.adapters.open_spiel_text import GameText
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.selfplay import measure_exploitability
from rllib_llm.selfplay.exploitability import information_states
from rllib_llm.selfplay.positions import is_by_position, positions


def uniform(conversations, words):
    return [[1 / len(legal)] * len(legal) for legal in words]


def by_prompt(seed):
    """Return a random policy of the newest prompt, and its answers by prompt."""
    answered: dict[str, list[float]] = {}

    def policy(conversations, words):
        for chat, legal in zip(conversations, words, strict=True):
            (message,) = chat
            key = zlib.crc32(message["content"].encode())
            draw = np.random.default_rng([seed, key]).dirichlet
            answered[message["content"]] = draw(np.ones(len(legal))).tolist()
        return [answered[chat[0]["content"]] for chat in conversations]

    return policy, answered


def test_tic_tac_toe_is_solved_by_position():
    text = GameText("tic_tac_toe", style="short")
    found = measure_exploitability(text, uniform, remembers=False)
    assert found.information_states == found.queries == 4520
    # pyspiel.nash_conv(game, UniformRandomPolicy(game)), over 549,946 histories.
    assert found.nash_conv == pytest.approx(1.9196593915343911)
    wins, losses = 737 / 1260, 121 / 420  # with uniform play
    assert found.values[0] == pytest.approx(wins - losses)


def perfect(conversations, words):
    """Play tic-tac-toe by minimax from the prompt's board."""
    answers = []
    for chat, legal in zip(conversations, words, strict=True):
        _, *rows = chat[-1]["content"].splitlines()
        cells = tuple(" ".join(rows[:3]).split())
        scores = [minimax(after(cells, word)) for word in legal]
        answers.append(np.eye(len(legal))[int(np.argmin(scores))].tolist())
    return answers


def after(cells, word):
    side = "xo"[sum(c in "xo" for c in cells) % 2]
    return tuple(side if c == word else c for c in cells)


def minimax(cells, memo={}):  # noqa: B006
    """Return the value of a board for the player to move."""
    if cells not in memo:
        lines = (cells[0:3], cells[3:6], cells[6:9], cells[0:7:3], cells[1:8:3])
        lines += (cells[2:9:3], cells[0:9:4], cells[2:7:2])
        free = [c for c in cells if c not in "xo"]
        if any(set(line) in ({"x"}, {"o"}) for line in lines):
            memo[cells] = -1
        else:
            memo[cells] = max([-minimax(after(cells, w)) for w in free], default=0)
    return memo[cells]


def test_perfect_tic_tac_toe_has_exploitability_zero():
    text = GameText("tic_tac_toe", style="short")
    found = measure_exploitability(text, perfect, remembers=False)
    assert found.nash_conv == pytest.approx(0.0) and found.values == (0.0, 0.0)


@pytest.mark.parametrize("seed", [0, 1])
def test_positions_and_histories_agree(seed):
    """Compare with the same policy as a table over information states."""
    text = GameText("nim", {"pile_sizes": "1;2;2"}, style="short")
    policy, answered = by_prompt(seed)
    found = measure_exploitability(text, policy, batch_size=7, remembers=False)
    states = information_states(text)
    assert found.queries == len(answered) < len(states)
    table = {
        state: list(zip(actions, answered[query.texts[-1]], strict=True))
        for state, (query, actions) in states.items()
    }
    expected = pyspiel.nash_conv(text.game, pyspiel.TabularPolicy(table))
    assert found.nash_conv == pytest.approx(expected, abs=1e-12)
    assert found.exploitability == found.nash_conv / 2 and expected > 0.1


def test_hidden_cards_are_measured_by_information_state():
    text = GameText("kuhn_poker", style="short")
    policy, answered = by_prompt(0)
    assert not is_by_position(text.game)
    found = measure_exploitability(text, policy, remembers=False)
    assert found.information_states == len(answered) == 12
    same = measure_exploitability(
        text, lambda chats, words: policy([chat[-1:] for chat in chats], words)
    )
    assert found == same


def test_games_that_are_too_large_are_refused():
    text = GameText("connect_four", style="short")
    with pytest.raises(ConfigError, match="more than 500 positions"):
        measure_exploitability(text, uniform, max_histories=500, remembers=False)
    whole = GameText("tic_tac_toe")
    with pytest.raises(ConfigError, match=r"histories.*history='latest'"):
        measure_exploitability(whole, uniform, max_histories=1000)


def test_a_prompt_that_depends_on_the_history_is_refused():
    class Remembers(GameText):
        def prompt(self, state, player, *, first):
            return f"{state.history()} {super().prompt(state, player, first=first)}"

    with pytest.raises(EnvContractError, match="differ in their text"):
        positions(Remembers("nim", {"pile_sizes": "1;2;2"}, style="short"))
