"""Learners in processes of their own with gloo, without Ray."""

from __future__ import annotations

import datetime
import os
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

TIMEOUT_S = 60


class ProcessGroup:
    """Processes of one torch.distributed group that call functions one after another.

    They stay alive, since importing torch and RLlib takes seconds.

    Args:
        size: Number of processes.
    """

    def __init__(self, size: int):
        context = multiprocessing.get_context("spawn")
        folder = tempfile.mkdtemp(prefix="process_group_")
        self._calls = [context.Queue() for _ in range(size)]
        self._answers = [context.Queue() for _ in range(size)]
        self._processes = [
            context.Process(
                target=_serve,
                args=(rank, size, folder, self._calls[rank], self._answers[rank]),
                daemon=True,
            )
            for rank in range(size)
        ]
        for process in self._processes:
            process.start()

    def __call__(self, function, *args, **kwargs):
        """Return ``function(*args, **kwargs)`` of every rank."""
        for calls in self._calls:
            calls.put((function, args, kwargs))
        results = [answers.get(timeout=4 * TIMEOUT_S) for answers in self._answers]
        errors = [result for result, failed in results if failed]
        assert not errors, "\n".join(errors)
        return [result for result, _ in results]

    def close(self):
        for calls in self._calls:
            calls.put(None)
        for process in self._processes:
            process.join(10)
            process.kill()


def _serve(rank, size, folder, calls, answers):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{Path(folder, 'store')}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    while (call := calls.get()) is not None:
        function, args, kwargs = call
        try:
            answers.put((function(*args, **kwargs), False))
        except Exception:
            answers.put((f"rank {rank}: {traceback.format_exc()}", True))
    dist.destroy_process_group()
