"""Concurrent episodes in threads, one environment per thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rllib_llm.envs.child_process import EnvProcessError
from rllib_llm.errors import EnvContractError

logger = logging.getLogger(__name__)

# If no episode finishes for this long, one more thread is started. CPU-bound
# environments thus use one or two threads, while environments that wait overlap.
_PATIENCE_S = 0.05

PlayEpisode = Callable[[Any, int], Any]
Done = Callable[[float], None]
_Tasks = queue.SimpleQueue[tuple[int, int, int]]  # index, seed, retries left


def play_all(
    make_env: Callable[[], Any],
    seeds: Sequence[int],
    play: PlayEpisode,
    *,
    most_envs: int = 1,
    max_retries: int = 0,
    on_progress: Done | None = None,
) -> list[Any]:
    """Play one episode per seed, in threads.

    Each thread builds, plays and closes its own environment, like the threads of an
    EnvRunner. Results depend on the seeds and not on the number of threads.

    Args:
        make_env: Builds an environment.
        seeds: Seeds of the episodes.
        play: Plays the episode of a seed and returns its result.
        most_envs: Maximum number of concurrent environments, >= 1.
        max_retries: Number of times that an episode is repeated, at the end, if the
            environment's process fails: a browser, a remote actor.
        on_progress: Called with the finished fraction after each episode.

    Returns:
        The results of ``play``, in the order of the seeds.

    Raises:
        Exception: The first exception of an environment or of ``play``.
        EnvContractError: If an environment called sys.exit().
    """
    tasks: _Tasks = queue.SimpleQueue()
    for index, seed in enumerate(seeds):
        tasks.put((index, seed, max_retries))
    replies: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    stop = threading.Event()
    arguments = (make_env, play, tasks, replies, stop)
    threads: list[threading.Thread] = []

    def start_one() -> None:
        # A daemon thread: an environment that hangs must not keep the process alive.
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
    tasks: _Tasks,
    replies: queue.SimpleQueue[tuple[int, Any]],
    stop: threading.Event,
) -> None:
    """Play tasks until none are left; send an exception as a reply of index -1."""
    env = None
    try:
        while not stop.is_set():
            try:
                index, seed, retries = tasks.get_nowait()
            except queue.Empty:
                break
            if env is None:
                env = make_env()
            try:
                result = play(env, seed)
            except EnvProcessError as error:
                if not retries:
                    raise
                logger.warning("Episode of seed %s dropped: %s", seed, error)
                tasks.put((index, seed, retries - 1))
                continue
            replies.put((index, result))
        if env is not None:
            env.close()
    except Exception as error:  # any type: the caller raises it
        replies.put((-1, error))
    except SystemExit as error:
        replies.put((-1, _exit_refused(error)))


def _exit_refused(error: SystemExit) -> EnvContractError:
    refused = EnvContractError(
        f"The environment called sys.exit({error.code!r}) during demonstrations; an "
        "environment must not end the process. Raise an exception or end the episode "
        "instead."
    )
    refused.__cause__ = error
    return refused
