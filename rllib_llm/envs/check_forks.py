"""Check that episodes can go on from their places (``rllib-llm check --fork``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.envs.check_episodes import (
    PlayedEpisode,
    Subject,
    raised_by,
    random_or_filler,
)
from rllib_llm.envs.check_remedies import Advice
from rllib_llm.envs.go_to import go_to, snapshot_of
from rllib_llm.envs.transcript import Transcript

_FORKS = 3  # per episode


def check_forks(subject: Subject) -> Iterator[str]:
    """Fork episodes at random turns, and compare how they go on.

    Each episode is played again, copied before random turns, and continued from the
    copies: in an instance that has played nothing, and in one that has just played
    another episode.
    """
    plays = [play for play in subject.random if play.error is None]
    fresh, used = subject.build(), subject.build()
    has_snapshot = True
    for number, play in enumerate(plays):
        rng = np.random.default_rng([number, 2])
        for turn in _random_turns(play, rng):
            state = _state_before(subject.build(), play.transcript, turn)
            has_snapshot &= state is not None
            # Leaves the state of another episode behind.
            PlayedEpisode(used, play.transcript.seed + 1, random_or_filler, 2).finish()
            for env in (fresh, used):
                difference = _continued(env, play.transcript, turn, state)
                if difference is not None:
                    how = "by snapshot" if state is not None else "by its texts"
                    yield (
                        f"Seed {play.transcript.seed}, forked {how} before turn "
                        f"{turn}: {difference}. Episodes cannot be forked. Keep the "
                        "whole state in attributes of the environment, and override "
                        "snapshot() and restore() where a copy of them is not enough."
                    )
                    return
    if not has_snapshot:
        yield Advice(
            "The environment has no snapshot() that can be used (wrapped environments "
            "have none), so each fork plays the turns before it again. Implement "
            "snapshot() and restore() if steps are slow."
        )


def _random_turns(play: PlayedEpisode, rng: np.random.Generator) -> list[int]:
    """Return some turns of an episode, in order."""
    turns = len(play.transcript.actions)
    chosen = rng.choice(turns, size=min(_FORKS, turns), replace=False)
    return sorted(int(turn) for turn in chosen)


def _state_before(env: gym.Env, transcript: Transcript, turn: int) -> bytes | None:
    """Return the snapshot before a turn, of an environment that played up to it."""
    env.reset(seed=transcript.seed)
    for action in transcript.actions[:turn]:
        env.step(action)
    state = snapshot_of(env)
    env.close()
    return state


def _continued(
    env: gym.Env, transcript: Transcript, turn: int, state: bytes | None
) -> str | None:
    """Return how an episode that is continued from a turn differs, or None."""
    steps: list[Any] = []

    def play() -> None:
        go_to(
            env,
            seed=transcript.seed,
            options={},
            actions=transcript.actions[:turn],
            observations=transcript.observations[: turn + 1],
            state=state,
        )
        steps.extend(env.step(action) for action in transcript.actions[turn:])

    error = raised_by(play)
    if error is not None:
        return f"{type(error).__name__}: {error}"
    for number, (text, reward, terminated, truncated, _) in enumerate(steps, turn):
        wanted = transcript.observations[number + 1], transcript.rewards[number]
        for what, now, then in zip(
            ("observation", "reward"), (text, reward), wanted, strict=True
        ):
            if now != then:
                return f"the {what} of turn {number} is {now!r}, but was {then!r}"
        is_last = number + 1 == len(transcript.actions)
        ended = is_last and (transcript.terminated or transcript.truncated)
        if bool(terminated or truncated) != bool(ended):
            return f"turn {number} ends the episode: {not ended}, but it did: {ended}"
    return None
