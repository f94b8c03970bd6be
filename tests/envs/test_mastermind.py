"""Mastermind: marks against plain counting, codes, and the expert."""

import itertools

import numpy as np
import pytest

from rllib_llm.envs.mastermind import (
    Mastermind,
    all_codes,
    code_marks,
    most_telling,
    still_possible,
)
from rllib_llm.envs.transcript import expert_policy, play


def _marks(guess, secret):
    """Cross out pairs: first those in place, then the others, one by one."""
    guess, secret = list(guess), list(secret)
    placed = [i for i in range(len(guess)) if guess[i] == secret[i]]
    for i in reversed(placed):
        del guess[i], secret[i]
    misplaced = 0
    for digit in guess:
        if digit in secret:
            secret.remove(digit)
            misplaced += 1
    return len(placed), misplaced


def test_marks_of_all_pairs():
    for pair in itertools.product(all_codes(3, 4), repeat=2):
        assert code_marks(*pair) == _marks(*pair)


def test_marks_in_observations():
    env = Mastermind({"length": 4, "symbols": 6})
    env.reset(seed=0)
    env.secret = "1223"
    assert env.step("guess 2213")[0] == "2213: 2 placed, 2 misplaced"
    assert env.step("guess 1114")[0] == "1114: 1 placed, 0 misplaced"
    text, reward, terminated, _, info = env.step("guess 1223")
    assert (text, reward, terminated, info["success"]) == ("Correct!", 1.0, True, True)


@pytest.mark.parametrize("config", [{}, {"length": 2, "symbols": 8}])
def test_both_splits_draw_every_code(config):
    env = Mastermind(config)
    for split in ("train", "test"):
        hidden = set()
        for seed in range(600):
            env.reset(seed=seed, options={"split": split})
            hidden.add(env.secret)
        assert hidden == set(all_codes(env.length, env.symbols))


def test_the_expert_finds_every_code_in_four_turns():
    env = Mastermind()
    for code in all_codes(3, 4):
        env.reset(seed=0)
        env.secret = code
        rng, success, turns = np.random.default_rng(0), None, 0
        while not success:
            success, turns = env.step(env.expert_action(rng))[4]["success"], turns + 1
        assert turns <= 4


def test_larger_codes_are_found_in_time():
    env = Mastermind({"length": 4, "symbols": 6, "max_turns": 7})
    assert all(play(env, seed, expert_policy).success for seed in range(30))


def test_expert_guesses_have_the_highest_entropy():
    secrets = ("a", "b", "c", "d")
    answers = {"a": "xyyy", "b": "xxyy", "c": "uvwx", "d": "xyxx"}

    def marks(guess, secret):
        return answers[guess][secrets.index(secret)]

    assert most_telling(secrets, marks) == "c"
    assert still_possible(secrets, [("b", "x"), ("a", "y")], marks) == ("b",)
    assert most_telling(("d",), marks) == "d"


def test_expert_computation_is_bounded():
    calls = []

    def marks(guess, secret):
        calls.append(guess)
        return guess == secret

    secrets = all_codes(5, 6)
    assert most_telling(secrets, marks) in secrets
    assert len(set(calls)) == 13 and len(calls) == 13 * len(secrets)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("guess 123", "123"),
        ("Perhaps guess 111? No, GUESS 432.", "432"),
        ("guess 125", None),
        ("guess 12", None),
        ("guess 1234", None),
        ("guess 1 2 3", None),
        ("123", None),
        ("guess \u0661\u0662\u0663", None),
    ],
)
def test_the_last_guess_counts(text, code):
    env = Mastermind()
    env.reset(seed=0)
    assert env.parse(text) == code
