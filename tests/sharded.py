"""Sharded Learners in processes of their own, and what they agree on."""

from __future__ import annotations

import torch
import torch.distributed as dist
from team_helpers import make_team_learner, wake_critic

from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.data.micro_batches import idle_rows
from rllib_llm.distributed import is_shard, local


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor, in a process that holds a part of it."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if is_shard(tensor) else tensor).clone()


def sharded_config(config, **kwargs):
    """Return a copy of a config with two Learners that shard."""
    config = config.copy(copy_frozen=False)
    config.learners(num_learners=2, sharding="fsdp2", sharding_kwargs=kwargs)
    config.validate_learners()
    return config


def shard_of(episodes):
    """Return the episodes of this process, as LearnerGroup.update() divides them."""
    if not dist.is_initialized():
        return LLMTrainingData(episodes=episodes)
    shards = LLMTrainingData(episodes=episodes).shard(dist.get_world_size())
    return [data for data, _ in shards][dist.get_rank()]


def update(learner, episodes, **kwargs):
    data = shard_of(episodes)
    return learner.update(training_data=data, timesteps={}, **kwargs)


def parameters(learner):
    """Return all parameters, by ModuleID and name."""
    return {
        f"{module_id}/{name}": whole(parameter)
        for module_id in learner.module.keys()
        for name, parameter in learner.module[module_id].unwrapped().named_parameters()
    }


def keep_gradients(learner):
    """Return a dictionary that gets the gradients of each step, which is taken."""
    taken, apply = {}, learner.apply_gradients
    names = {
        p: f"{module_id}/{name}"
        for module_id in learner.module.keys()
        for name, p in learner.module[module_id].unwrapped().named_parameters()
    }

    def keep(gradients):
        taken.update({names[p]: whole(g) for p, g in gradients.items()})
        return apply(gradients)

    learner.apply_gradients = keep
    return taken


def make(config):
    """Return a Learner whose critics' values differ from zero."""
    learner = make_team_learner(config)
    for module_id in learner.module.keys():
        if hasattr(learner.module[module_id].unwrapped(), "value_head"):
            wake_critic(learner, module_id)
    return learner


def step(config, episodes, steps=1, **kwargs):
    """Return gradients of the last step, parameters after it, and held elements."""
    learner = make(config)
    taken = keep_gradients(learner)
    for _ in range(steps):
        update(learner, episodes, **kwargs)
    return taken, parameters(learner), held(learner)


def restored(config, episodes):
    """Return parameters and gradients after a state was set behind a pass."""
    learner = make(config)
    state = learner.get_state()
    state = broadcast(state)
    update(learner, episodes)
    for module_id in learner.module.keys():  # leaves gathered layers behind
        with torch.no_grad():
            learner.module[module_id].unwrapped()._forward(idle_rows("cpu"))
    state["weights_seq_no"] = 9
    learner.set_state(state)
    taken = keep_gradients(learner)
    update(learner, episodes)
    return taken, parameters(learner), held(learner)


def broadcast(value):
    """Return the value of the first rank."""
    if not dist.is_initialized():
        return value
    boxed = [value]
    dist.broadcast_object_list(boxed, src=0)
    return boxed[0]


def held(learner):
    """Return the number of elements of parameters and of moments held here."""
    weights = [
        p
        for module_id in learner.module.keys()
        for p in learner.module[module_id].unwrapped().parameters()
    ]
    moments = [
        value
        for optimizer in learner._optimizer_parameters
        for state in optimizer.state.values()
        for name, value in state.items()
        if name == "exp_avg"
    ]
    return tuple(sum(local(t).numel() for t in ts) for ts in (weights, moments))
