"""Play episodes with several instances of an environment at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rllib_llm.errors import EnvContractError

# Without an episode for so long, one more instance of the environment is started:
# those that compute are played by one or two, those that wait overlap.
_PATIENCE_S = 0.05

PlayEpisode = Callable[[Any, int], Any]
Done = Callable[[float], None]


def play_all(
    make_env: Callable[[], Any],
    seeds: Sequence[int],
    play: PlayEpisode,
    *,
    most_envs: int = 1,
    on_progress: Done | None = None,
) -> list[Any]:
    """Play one episode per seed, in threads.

    Each thread builds, plays and closes an environment of its own, as the threads of
    an EnvRunner do. Results depend on the seeds alone, not on how many there are.

    Args:
        make_env: Builds an environment.
        seeds: Of the episodes.
        play: Plays the episode of a seed and returns what is to be known of it.
        most_envs: Environments that may exist at a time, >= 1.
        on_progress: Called with the finished share after each episode.

    Returns:
        What ``play`` returned, in the order of the seeds.

    Raises:
        Exception: What an environment or ``play`` raised first.
        EnvContractError: If an environment asked to end the process.
    """
    tasks: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    for task in enumerate(seeds):
        tasks.put(task)
    replies: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    stop = threading.Event()
    arguments = (make_env, play, tasks, replies, stop)
    threads: list[threading.Thread] = []

    def start_one() -> None:
        # A daemon: an environment that hangs does not keep the process alive.
        threads.append(threading.Thread(target=_work, args=arguments, daemon=True))
        threads[-1].start()

    results: dict[int, Any] = {}
    start_one()
    try:
        while len(results) < len(seeds):
            try:
                index, result = replies.get(timeout=_PATIENCE_S)
            except queue.Empty:
                if len(threads) < most_envs and not tasks.empty():
                    start_one()
                continue
            if index < 0:
                raise result
            results[index] = result
            if on_progress is not None:
                on_progress(len(results) / len(seeds))
    finally:
        stop.set()
    for thread in threads:
        thread.join()
    return [results[index] for index in range(len(seeds))]


def _work(
    make_env: Callable[[], Any],
    play: PlayEpisode,
    tasks: queue.SimpleQueue[tuple[int, int]],
    replies: queue.SimpleQueue[tuple[int, Any]],
    stop: threading.Event,
) -> None:
    """Play tasks until there are none; an exception is a reply of index -1."""
    env = None
    try:
        while not stop.is_set():
            try:
                index, seed = tasks.get_nowait()
            except queue.Empty:
                break
            if env is None:
                env = make_env()
            replies.put((index, play(env, seed)))
        if env is not None:
            env.close()
    except Exception as error:
        replies.put((-1, error))
    except SystemExit as error:
        replies.put((-1, _exit_refused(error)))


def _exit_refused(error: SystemExit) -> EnvContractError:
    refused = EnvContractError(
        f"The environment called sys.exit({error.code!r}) while it was played for "
        "demonstrations. Raise an exception that says what is wrong, or end the "
        "episode, instead."
    )
    refused.__cause__ = error
    return refused
