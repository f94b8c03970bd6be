"""Several Learners in threads of one process, in place of torch.distributed."""

from __future__ import annotations

import threading

import torch

from rllib_llm import distributed
from rllib_llm.algorithms.learner.training_data import LLMTrainingData


class SideBySide:
    """Stands for torch.distributed with Learners in threads."""

    def __init__(self, size: int):
        self._size, self._sent = size, {}
        # One that waits for a message which the others never send fails here.
        self._barrier = threading.Barrier(size, timeout=60)

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_world_size(self) -> int:
        return self._size

    def get_rank(self) -> int:
        return int(threading.current_thread().name)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self._sent[threading.current_thread().name] = tensor.clone()
        self._barrier.wait()
        parts = [part for _, part in sorted(self._sent.items())]
        assert len({part.shape for part in parts}) == 1, "Messages do not match."
        total = torch.stack(parts).sum(dim=0)
        self._barrier.wait()
        tensor.copy_(total)


def update_side_by_side(learners, episodes, monkeypatch, **kwargs):
    """Update Learners with a shard each, as LearnerGroup would."""
    shards = [d for d, _ in LLMTrainingData(episodes=episodes).shard(len(learners))]

    def update(learner, data):
        learner.update(training_data=data, timesteps={}, **kwargs)

    call_side_by_side(learners, shards, update, monkeypatch)
    return [data.episodes for data in shards]


def call_side_by_side(learners, shards, call, monkeypatch):
    """Call a function with each Learner and its shard, all at once."""
    errors = []

    def run(learner, data):
        try:
            call(learner, data)
        except Exception as error:  # the main thread raises it
            errors.append(error)

    with monkeypatch.context() as patch:
        patch.setattr(distributed, "dist", SideBySide(len(learners)))
        threads = [
            threading.Thread(target=run, args=(learner, data), name=str(rank))
            for rank, (learner, data) in enumerate(zip(learners, shards, strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def flat(state, prefix=""):
    """Return the leaves of nested mappings and sequences, by path."""
    if isinstance(state, dict):
        pairs = state.items()
    elif isinstance(state, list | tuple):
        pairs = enumerate(state)
    else:
        return {prefix: state}
    leaves = {}
    for key, value in pairs:
        leaves.update(flat(value, f"{prefix}/{key}"))
    return leaves
