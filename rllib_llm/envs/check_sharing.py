"""Checks of environments that share a process: time, threads, random states."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym

from rllib_llm.envs.check_episodes import PlayedEpisode, Subject, replay
from rllib_llm.envs.check_remedies import Advice, described
from rllib_llm.envs.random_states import global_states

STEP_TIMEOUT_S = 60.0
"""Default of ``rollouts(step_timeout_s=...)``."""
SLOW_RESET_S = 0.25
SLOW_START_S = 10.0
_THREADS = 4
_SEEDS = 4
_REPEATS = 3  # of plays that changed a random state
_MOST_S = 120.0  # for all threads
_IN_PROCESSES = (
    "Environments run in threads of one process. Draw from the generator that reset() "
    "seeds; if a library seeds or draws by itself, make its calls inside of "
    "rllib_llm.envs.IsolatedRandomState(seed).swapped_in(), or train and check with "
    "rollouts(env_processes=True)."
)


def check_resets(subject: Subject) -> Iterator[str]:
    """Check that construction and reset stay within the time limit of a call."""
    start = subject.first_reset_s
    if start > STEP_TIMEOUT_S:
        yield (
            f"Building the environment and its first reset took {start:.0f} s, but "
            f"every EnvRunner limits a call to step_timeout_s={STEP_TIMEOUT_S:g}. "
            "Raise rollouts(step_timeout_s=...), and initialise once per process what "
            "instances can share."
        )
    elif start > SLOW_START_S:
        yield Advice(
            f"Building the environment and its first reset took {start:.0f} s, for "
            "each of env_runners(num_envs_per_env_runner=...) instances. Initialise "
            "what they can share once per process, behind a lock."
        )
    resets = [p.transcript.reset_seconds for p in subject.plays if p.error is None]
    mean = sum(resets) / len(resets) if resets else 0.0
    if mean > SLOW_RESET_S:
        yield Advice(
            f"A reset takes {mean:.2g} s, and every episode starts with one: "
            f"{64 * mean:.0f} s for 64 sequential episodes. Keep what does not "
            "change between episodes, or raise "
            "env_runners(num_envs_per_env_runner=...)."
        )


def check_random_states(subject: Subject) -> Iterator[str]:
    """Check that reset and step leave the random states of the process unchanged.

    Threads of the process that have nothing to do with the environment draw as well
    (Ray's, for instance), so only a change that every one of several plays of the same
    episodes makes is the environment's.
    """
    if subject.env_processes:
        return
    changed = _changed_states(subject)
    for _ in range(_REPEATS):
        if not changed:
            return
        changed &= _changed_states(subject)
    for call in ("reset", "step"):
        names = sorted(name for called, name in changed if called == call)
        if names:
            yield (
                f"{call}() changed the process-wide state of {' and '.join(names)}"
                ": it seeds it or draws from it, which disturbs all other "
                "environments; rollouts of a group would get different tasks. "
                f"{_IN_PROCESSES}"
            )


def _changed_states(subject: Subject) -> set[tuple[str, str]]:
    """Return which calls change which random states, as (call, state) pairs."""
    env = _Watched(subject.build())
    for play in subject.random[:_SEEDS]:
        PlayedEpisode(
            env, play.transcript.seed, replay(play.transcript.actions)
        ).finish()
    env.close()
    return env.changed


def check_threads(subject: Subject) -> Iterator[str]:
    """Check that instances in threads play the same episodes as a single one."""
    if subject.env_processes:
        return
    wanted = [p for p in subject.random if p.error is None][:_SEEDS]
    if not wanted:
        return
    together = threading.Barrier(_THREADS)
    problems: list[str] = []

    def work() -> None:
        try:
            env = subject.build()
            for play in wanted:
                # All threads begin an episode at once, which makes races likely.
                together.wait(_MOST_S)
                problems.extend(_compared(env, play))
            env.close()
        except threading.BrokenBarrierError:
            pass  # another thread has reported its error
        except Exception as error:  # environments may raise anything
            problems.append(f"In a thread, building it raised {described(error)}.")
            # Otherwise the other threads would wait for this one.
            together.abort()

    # Daemons: an environment that hangs must not keep the process alive.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_MOST_S)
    if any(thread.is_alive() for thread in threads):
        problems.append(
            f"{_THREADS} instances in threads did not finish within {_MOST_S:.0f} s."
        )
    if problems:
        yield f"{problems[0]} {_IN_PROCESSES}"


def _compared(env: gym.Env, play: PlayedEpisode) -> Iterator[str]:
    """Play an episode again and yield the difference."""
    transcript = play.transcript
    again = PlayedEpisode(env, transcript.seed, replay(transcript.actions)).finish()
    if again.error is not None:
        yield f"In a thread, seed {transcript.seed} raised {described(again.error)}."
        return
    first, second = transcript.observations, again.transcript.observations
    if first[:1] != second[:1]:
        yield (
            f"With {_THREADS} instances in threads, seed {transcript.seed} started "
            f"with {second[0]!r} instead of {first[0]!r}."
        )
    elif first != second or transcript.rewards != again.transcript.rewards:
        yield (
            f"With {_THREADS} instances in threads, the episode of seed "
            f"{transcript.seed} differed from that of a single instance."
        )


class _Watched(gym.Wrapper):
    """Records which calls change which process-wide random states."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.changed: set[tuple[str, str]] = set()

    def reset(self, **keywords: Any) -> Any:
        return self._watch("reset", lambda: self.env.reset(**keywords))

    def step(self, action: object) -> Any:
        return self._watch("step", lambda: self.env.step(action))

    def _watch(self, name: str, call: Callable[[], Any]) -> Any:
        before = global_states()
        try:
            return call()
        finally:
            after = global_states()
            self.changed |= {(name, n) for n in before if before[n] != after[n]}
