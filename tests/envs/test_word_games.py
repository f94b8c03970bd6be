"""Hangman, Wordle, and their words."""

import importlib.util
import json
import pathlib

import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.hangman import Hangman
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.envs.word_list import word_pool, words
from rllib_llm.envs.wordle import Wordle, word_marks
from rllib_llm.errors import ConfigError

ROOT = pathlib.Path(__file__).parents[2]


# Words ---------------------------------------------------------------------------


def test_words_are_plain_and_sorted():
    counts = {4: 1939, 5: 3568, 6: 5433, 7: 6858, 8: 6673}
    for length, count in counts.items():
        known = words(length)
        assert len(known) == len(set(known)) == count
        assert list(known) == sorted(known)
        assert all(len(w) == length and w.isascii() and w.islower() for w in known)
        assert all(w.isalpha() for w in known)
    assert {"crane", "world", "trees"} <= set(words(5))
    with pytest.raises(ConfigError, match="length=3"):
        words(3)


def test_smaller_pools_are_part_of_larger_ones():
    small, large = word_pool(5, 50), word_pool(5, 400)
    assert len(small) == 50 and len(large) == 400 and set(small) < set(large)
    assert word_pool(4, 1939) == words(4)
    with pytest.raises(ConfigError, match="pool=1940"):
        word_pool(4, 1940)


@pytest.mark.parametrize("length", range(4, 9))
def test_the_smallest_pool_has_words_of_both_splits(length):
    held_out = sum(in_split(word, "test") for word in word_pool(length, 20))
    assert 1 <= held_out <= 10


def test_the_script_keeps_plain_words_by_length():
    path = ROOT / "scripts" / "build_word_list.py"
    spec = importlib.util.spec_from_file_location("build_word_list", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    lines = ["Abel", "able", "acid", "bath", "crane", "don't", "of", "na\u00efve"]
    built = script.build([*lines, "mountains", "able"])
    assert built["4"] == ["able acid", "bath"] and built["5"] == ["crane"]
    assert built["8"] == [] and set(built) == set("45678")
    data = ROOT / "rllib_llm/envs/data/words.json"
    every = [word for n in range(4, 9) for word in words(n)]
    assert script.build(every) == json.loads(data.read_text())


@pytest.mark.parametrize("name", ["hangman-v0", "wordle-v0"])
def test_words_of_the_splits_are_all_there_and_disjoint(name):
    env, hidden = make_env(name, {"pool": 60}), {}
    for split in ("train", "test"):
        hidden[split] = set()
        for seed in range(600):
            env.reset(seed=seed, options={"split": split})
            hidden[split].add(env.secret)
    assert not hidden["train"] & hidden["test"]
    assert hidden["train"] | hidden["test"] == set(word_pool(5, 60))


# Hangman -------------------------------------------------------------------------


@pytest.fixture
def hangman():
    """A game in which the word is "eerie"."""
    env = Hangman({"lives": 3})
    env.reset(seed=0)
    env.secret = "eerie"
    return env


def test_letters_are_shown_and_lives_taken(hangman):
    assert hangman.step("letter e")[0] == "ee__e, lives 3"
    assert hangman.step("letter a")[0] == "ee__e, not a, lives 2"
    assert hangman.step("letter A")[0] == "ee__e, not a, lives 2"
    assert hangman.step("I think of letter x. letter r!")[0] == "eer_e, not a, lives 2"
    text, reward, terminated, _, info = hangman.step("letter i")
    assert (text, reward, terminated) == ("eerie: found!", 1.0, True)
    assert info["success"] is True


def test_losing_reveals_the_word(hangman):
    for letter in "xy":
        assert not hangman.step(f"letter {letter}")[2]
    text, reward, terminated, _, info = hangman.step("letter z")
    assert (text, reward, terminated) == ("The word was eerie.", 0.0, True)
    assert info["success"] is False


@pytest.mark.parametrize(
    "text", ["e", "letter", "letter ee", "letter 3", "letter \u017f"]
)
def test_other_texts_are_no_letters(hangman, text):
    assert hangman.parse(text) is None
    assert hangman.step(text)[4]["invalid_action"] and hangman.lives == 3


def test_letters_tried_are_not_listed(hangman):
    hangman.step("letter e")
    listed = hangman.admissible_actions()
    assert len(listed) == 25 and "letter e" not in listed


@pytest.mark.parametrize(("length", "least"), [(4, 42), (8, 58)])
def test_the_hangman_expert_finds_most_of_a_thousand_words(length, least):
    env = Hangman({"length": length, "pool": 1000})
    found = [play(env, seed, expert_policy).success for seed in range(60)]
    assert least <= sum(found) <= 60


# Wordle --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("crane", "crane", "GGGGG"),
        ("crane", "podgy", "-----"),
        ("crane", "nacre", "YYYYG"),
        ("eerie", "eagle", "G---G"),
        ("speed", "erase", "Y-YY-"),
        ("speed", "abide", "--Y-Y"),
        ("allee", "label", "YYYG-"),
        ("llama", "label", "GYY--"),
    ],
)
def test_marks(guess, secret, marks):
    assert word_marks(guess, secret) == marks


def test_guesses_must_be_words():
    env = Wordle()
    env.reset(seed=0)
    assert env.parse("guess crane, no: GUESS World") == "world"
    for text in ("guess zzzzz", "guess cranes", "guess cran", "crane", "guess"):
        assert env.parse(text) is None
    env.secret = "crane"
    assert env.step("guess trace")[0] == "trace: -GGYG"
    assert env.step("guess crane")[:3] == ("Correct!", 1.0, True)


def test_other_lengths_have_examples_that_are_words():
    for length in range(4, 9):
        env = Wordle({"length": length})
        prompt, _ = env.reset(seed=0)
        assert env.parse(prompt) is not None
        assert env.parse(env.format_hint) is not None


def test_the_wordle_expert_finds_a_word_of_many():
    env = Wordle({"pool": 1000, "max_turns": 8})
    assert all(play(env, seed, expert_policy).success for seed in range(30))
