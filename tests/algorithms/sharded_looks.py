"""Looks at sharded Learners, for the table of settings."""

from __future__ import annotations

import contextlib
import tempfile

import torch
import torch.distributed as dist
from setting_looks import config_of
from team_helpers import make_team_learner

from rllib_llm.data.micro_batches import idle_rows
from rllib_llm.distributed import is_shard


@contextlib.contextmanager
def group_of_one():
    """Make this process a group of Learners by itself."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def built(see):
    """Return a look at a module, and a Learner, of a group of one."""

    def look(algo, env=None, learners=None, **sections):
        settings = {"num_learners": 2, **learners}
        with group_of_one():
            config = config_of(algo, env, learners=settings, **sections)
            learner = make_team_learner(config)
            return see(learner, learner.module["default_policy"].unwrapped())

    return look


def holds_shards(learner, module):
    return [is_shard(parameter) for parameter in module.parameters()]


def gathered_dtype(learner, module):
    return module.forward_train(idle_rows("cpu"))["embeddings"].dtype


def time_limit(learner, module):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return backend.options._timeout
