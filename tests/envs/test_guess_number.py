"""Guess the number; also the yardstick for how short a game can be."""

import inspect

import numpy as np
import pytest

from rllib_llm.envs.guess_number import GuessNumber
from rllib_llm.envs.transcript import expert_policy, play


def test_a_new_game_fits_in_sixty_lines():
    assert len(inspect.getsource(GuessNumber).splitlines()) <= 60


def test_bisection_finds_every_number():
    env = GuessNumber()
    found = set()
    for seed in range(300):
        transcript = play(env, seed, expert_policy)
        assert transcript.success
        found.add(env.secret)
    assert found == set(range(1, 32))


def test_one_number_more_is_not_always_found_in_time():
    env = GuessNumber({"upper": 32})
    wins = [play(env, seed, expert_policy).success for seed in range(300)]
    assert 0.9 < np.mean(wins) < 1.0


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("guess 7", 7),
        ("Guess 7.", 7),
        ("guess 3, no, GUESS 12", 12),
        ("7", None),
        ("guess -7", None),
        ("guess seven", None),
        ("guess 1234567", None),
        ("guess \u0667", None),
        ("misguess 7", None),
    ],
)
def test_the_last_guess_counts(text, guess):
    assert GuessNumber().parse(text) == guess


def test_guesses_outside_of_the_range_are_answered():
    env = GuessNumber()
    env.reset(seed=0)
    assert env.step("guess 0")[0] == "0 is too low."
    assert env.step("guess 999")[0] == "999 is too high."
    assert (env.low, env.high) == (1, 31)
