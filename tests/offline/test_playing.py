"""Demonstrations played by several instances of an environment at a time."""

from __future__ import annotations

import collections
import threading
import time

import pytest

from rllib_llm.algorithms.config.validation import make_env
from rllib_llm.envs.child_process import EnvProcessError
from rllib_llm.errors import EnvContractError
from rllib_llm.offline.demonstrations import (
    demonstrations,
    demonstrations_of,
    transcript_texts,
)
from rllib_llm.offline.parallel_episodes import play_all
from rllib_llm.seeding import stable_seed

UNLUCKY = 10_000


class Waits:
    """An environment whose episode is a wait; knows its thread and its instances."""

    alive: set[int] = set()

    def __init__(self, seconds=0.0):
        self.seconds, self.thread = seconds, threading.get_ident()
        self.alive.add(id(self))

    def play(self, seed):
        assert threading.get_ident() == self.thread
        time.sleep(self.seconds)
        if seed == UNLUCKY:
            raise ValueError("unlucky")
        return seed, self.thread

    def close(self):
        assert threading.get_ident() == self.thread
        self.alive.discard(id(self))


def test_what_waits_overlaps_in_the_order_of_the_seeds():
    seeds, shares = [7, 3, 5, 1] * 5, []
    started = time.monotonic()
    played = play_all(
        lambda: Waits(0.4), seeds, Waits.play, most_envs=20, on_progress=shares.append
    )
    assert time.monotonic() - started < 0.4 * len(seeds) / 2
    assert [seed for seed, _ in played] == seeds
    assert 5 <= len({thread for _, thread in played}) <= 20
    assert shares == [i / 20 for i in range(1, 21)]
    assert not Waits.alive


def test_no_more_environments_than_asked_for():
    played = play_all(lambda: Waits(0.1), range(10), Waits.play, most_envs=2)
    assert len({thread for _, thread in played}) == 2


def test_what_does_not_wait_needs_one_environment(monkeypatch):
    monkeypatch.setattr(
        "rllib_llm.offline.parallel_episodes._PATIENCE_S", 30.0
    )  # a busy machine
    played = play_all(Waits, range(50), Waits.play, most_envs=20)
    assert len({thread for _, thread in played}) == 1


def test_the_first_failure_ends_it():
    began = time.monotonic()
    with pytest.raises(ValueError, match="unlucky"):
        play_all(lambda: Waits(0.01), [UNLUCKY, *range(5000)], Waits.play, most_envs=4)
    assert time.monotonic() - began < 10


class Fails(Waits):
    """Fails as often as its seed says, each time with the process of an environment."""

    attempts: collections.Counter[int] = collections.Counter()

    def play(self, seed):
        self.attempts[seed] += 1
        if self.attempts[seed] <= seed:
            raise EnvProcessError(f"killed at {seed}")
        return seed


@pytest.mark.parametrize("most_envs", [1, 3])
def test_episodes_whose_process_fails_are_repeated(most_envs, caplog):
    Fails.attempts.clear()
    seeds = [2, 0, 1, 0]
    played = play_all(Fails, seeds, Fails.play, most_envs=most_envs, max_retries=2)
    assert played == seeds and dict(Fails.attempts) == {2: 3, 0: 2, 1: 2}
    assert "Episode of seed 1 dropped: killed at 1" in caplog.text
    Fails.attempts.clear()
    with pytest.raises(EnvProcessError, match="killed at 3"):
        play_all(Fails, [0, 3], Fails.play, max_retries=2)
    assert Fails.attempts[3] == 3


def test_other_failures_are_not_repeated():
    with pytest.raises(ValueError, match="unlucky"):
        play_all(Waits, [UNLUCKY], Waits.play, max_retries=2)


def test_an_environment_cannot_end_the_process():
    def leave(env, seed):
        raise SystemExit(3)

    with pytest.raises(EnvContractError, match=r"sys\.exit\(3\).*Raise an exception"):
        play_all(Waits, [0], leave)


@pytest.mark.parametrize("name", ["frozen_lake-v0", "secret_sum-v0"])
def test_demonstrations_do_not_depend_on_how_many_play(name, monkeypatch):
    """Not even where every wait starts one more environment."""
    alone = demonstrations(lambda: make_env(name, {}), 12, seed=3, mistake_rate=0.4)
    monkeypatch.setattr("rllib_llm.offline.parallel_episodes._PATIENCE_S", 0.0)
    many = demonstrations(
        lambda: make_env(name, {}), 12, seed=3, mistake_rate=0.4, most_envs=6
    )
    assert many == alone and len(alone) >= 12
    assert len({demo.observations[0] for demo in alone}) > 1
    seeds = [stable_seed(3, "demonstration", i) for i in range(4, 12)]
    again = demonstrations_of(lambda: make_env(name, {}), seeds, 0.4)
    assert again == alone[-len(again) :]


def test_texts_for_a_tokenizer_tell_how_far_they_are():
    shares = []
    texts = transcript_texts(
        lambda: make_env("guess_number-v0", {}),
        seed=0,
        count=4,
        most_envs=2,
        on_progress=shares.append,
    )
    assert shares == [0.25, 0.5, 0.75, 1.0]
    assert any("number" in text for text in texts)
