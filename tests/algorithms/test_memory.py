"""Bytes that an update needs per parameter, counted and not sampled."""

from __future__ import annotations

import pytest
import torch
from learner_helpers import fake_episode, make_learner, policy, update
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.memory_plan import plan_memory
from rllib_llm.algorithms.learner import adamw
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError
from rllib_llm.offline.prepare_model import prepare_language_model

WIDE = {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512}


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that exist after each operation."""

    def __init__(self, tensors=()):
        super().__init__()
        self._live, self.peak = {}, 0
        for tensor in tensors:
            self._add(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for found in tree_iter(out):
            if isinstance(found, torch.Tensor):
                self._add(found)
        self.peak = max(self.peak, self.now())
        return out

    def _add(self, tensor):
        storage = tensor.untyped_storage()
        self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def now(self):
        """Return the bytes that exist."""
        gone = [key for key, (ref, _) in self._live.items() if ref.expired()]
        for key in gone:
            del self._live[key]
        return sum(size for _, size in self._live.values())


def config_of(dtype):
    config = GRPOConfig().environment("guess_number-v0")
    config.language_model(tiny=WIDE, dtype=dtype).training(grad_clip=1.0)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    return config


def episode():
    found = fake_episode(0, turns=1)
    episode_data(found).advantage = 1.0
    return found


# Bytes of a parameter with its gradient and state, and without its gradient.
HELD = {"float32": (4 + 4 + 8, 4 + 8), "bfloat16": (2 + 2 + 12, 2 + 12)}


@pytest.mark.parametrize("dtype", HELD)
def test_an_update_needs_little_more_than_what_it_keeps(dtype, monkeypatch):
    monkeypatch.setattr(adamw, "BLOCK", 2**14)  # as small beside this model
    config = config_of(dtype)
    learner = make_learner(config)
    parameters = list(policy(learner).parameters())
    count = sum(p.numel() for p in parameters)
    with LiveBytes(parameters) as memory:
        for _ in range(2):  # in the first one the optimiser's state is made
            update(learner, [episode()])
    during, after = HELD[dtype]
    assert during < memory.peak / count < during + 0.55
    assert after <= memory.now() / count < after + 0.1
    _, trained, planned = plan_memory(config)
    assert trained == count
    known = planned.of_training
    assert known < memory.peak < known + 0.5 * count  # and a few activations


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_fused", [False, True])
def test_temporaries_of_a_step_are_those_of_one_block(dtype, is_fused, monkeypatch):
    monkeypatch.setattr(adamw, "BLOCK", 1000)
    if not is_fused:  # as on other devices
        monkeypatch.setattr(adamw, "_may_be_fused", lambda *tensors: None)
    shapes = [(50, 70), (3,), (999,), (1000,), (2500, 1)]
    parameters = [torch.nn.Parameter(torch.ones(s, dtype=dtype)) for s in shapes]
    optimizer = adamw.MixedPrecisionAdamW(parameters, lr=1e-2)

    def step():
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        held = [*parameters, *(p.grad for p in parameters)]
        held += [v for s in optimizer.state.values() for v in s.values()]
        memory = LiveBytes(held)
        before = memory.now()
        with memory:
            optimizer.step()
        return memory.peak - before

    step()
    expected = adamw.step_bytes(parameters)
    assert expected == 1000 * (8 if dtype is torch.float32 else 12)
    if is_fused:  # a converted gradient alone
        expected = 0 if dtype is torch.float32 else 1000 * 4
    assert step() == pytest.approx(expected, rel=0.02, abs=20)


def test_a_loaded_state_is_converted_without_a_copy_of_the_model():
    parameters = [torch.nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))]
    optimizer = adamw.MixedPrecisionAdamW(parameters, lr=1e-2)
    parameters[0].grad = torch.ones_like(parameters[0])
    optimizer.step()
    state = optimizer.state_dict()
    with LiveBytes() as memory:
        optimizer.load_state_dict(state)
    assert memory.peak <= 3 * 4 * 1000 + 16  # the state itself: moments and master
    assert parameters[0].dtype == torch.bfloat16 and parameters[0].grad is not None


@pytest.mark.parametrize(("dtype", "per_parameter"), [("float32", 8), ("bfloat16", 12)])
def test_an_offloaded_optimiser_is_planned_in_host_memory(dtype, per_parameter):
    config = config_of(dtype)
    _, trained, before = plan_memory(config)
    config.learners(num_gpus_per_learner=1, optimizer_offload=True)
    config.validate()
    plan = plan_memory(config)[2]
    assert before.optimizer == plan.optimizer_host == per_parameter * trained
    assert plan.optimizer == before.optimizer_host == 0
    # A block of it is on the device during a step.
    assert plan.step == before.step + per_parameter * min(trained, adamw.BLOCK)
    assert before.of_training - plan.of_training == before.optimizer - (
        plan.step - before.step
    )


def test_offload_without_a_gpu_is_refused():
    config = GRPOConfig().environment("guess_number-v0")
    config.learners(optimizer_offload=True)
    with pytest.raises(ConfigError, match="num_gpus_per_learner"):
        config.validate()
