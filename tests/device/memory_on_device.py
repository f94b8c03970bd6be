"""Bytes that an update needs on an accelerator, beside those that the plan names."""

from __future__ import annotations

import copy
import gc
from unittest import mock

import torch
from learner_helpers import TINY, policy
from learners import Case, placed_on, random_episodes
from team_helpers import Run, single_config, update

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.memory_plan import plan_memory
from rllib_llm.algorithms.learner import adamw
from rllib_llm.engines.kv_budget import DEVICE_SHARE
from rllib_llm.errors import ConfigError
from rllib_llm.offline.prepare_model import prepare_language_model

SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1024}
# As small beside these models as adamw.BLOCK is beside one of a billion parameters.
BLOCK = 2**15
OFFLOAD = ", offload"
MODELS = {
    "float32": ({}, {}),
    "bfloat16": ({"dtype": "bfloat16"}, {}),
    "float32, reference": ({}, {"ref_kl_coeff": 0.1}),
    "bfloat16, reference": ({"dtype": "bfloat16"}, {"ref_kl_coeff": 0.1}),
    "float32" + OFFLOAD: ({}, {}),
    "bfloat16" + OFFLOAD: ({"dtype": "bfloat16"}, {}),
    "bfloat16, LoRA r16": ({"dtype": "bfloat16", "lora": {"rank": 16}}, {}),
}


def bytes_per_parameter(accelerator, name: str) -> dict[str, float]:
    """Return bytes per parameter: built, kept between updates, at the peak, planned.

    The peak is that of the second update, with activations of one short episode.
    """
    model, training = MODELS[name]
    config = GRPOConfig().environment("guess_number-v0")
    config.language_model(tiny=SIZES, **model)
    config.training(micro_batch_tokens=64, grad_clip=1.0, **training)
    if name.endswith(OFFLOAD):
        config.learners(num_gpus_per_learner=1, optimizer_offload=True)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    case = Case(config, random_episodes(1))
    gc.collect()
    before = accelerator.live_bytes
    with mock.patch.object(adamw, "BLOCK", BLOCK), placed_on(accelerator.device):
        learner = case.learner(accelerator.device)
        built = accelerator.live_bytes - before
        update(learner, case.episodes)
        accelerator.reset_peak()
        update(learner, case.episodes)
        peak = accelerator.peak_bytes - before
        kept = accelerator.live_bytes - before
        count, _, plan = plan_memory(config)
    planned = plan.of_training
    found = {"built": built, "kept": kept, "peak": peak, "planned": planned}
    return {name: value / count for name, value in found.items()}


def cache_beside_learner(accelerator) -> dict[str, int | str]:
    """Return slots and peak of a runner and a Learner that fill a small device.

    The device has room for the plan of training, and for 10 of 32 conversations beside
    it; a second one is smaller than the plan.
    """
    config = single_config(slots=32, rollouts={"episodes_per_iteration": 32})
    config.language_model(tiny=SIZES, model="tiny")
    # Without the copies of small models' weights, of at most 64 MiB.
    config.generation(max_context_tokens=256, engine_forward="plain")
    config.training(micro_batch_tokens=64)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    plan = plan_memory(config)[2]
    row = plan.kv_cache // 32
    gc.collect()
    capacity, before = accelerator.capacity, accelerator.live_bytes
    accelerator.capacity = before + plan.of_training + int(10.5 * row / DEVICE_SHARE)
    try:
        with placed_on(accelerator.device):
            run = Run(config)
            run.update(run.sample(8))
            accelerator.reset_peak()
            run.update(run.sample(8))
            found = {"slots": run.runner.engine.max_slots}
            found |= {"peak": accelerator.peak_bytes - before}
            found |= {"capacity": accelerator.capacity - before}
            accelerator.capacity = before + plan.of_training - 1
            try:
                config.build_generation_engines(run.runner.modules, beside_learner=True)
            except ConfigError as error:
                found |= {"error": str(error)}
    finally:
        accelerator.capacity = capacity
    return found


def offloaded_and_not(accelerator, dtype: str) -> dict[str, bool]:
    """Return whether weights and states are equal with and without offload.

    Two updates each, then a third one of Learners that exchanged their states.
    """
    learners = []
    for offload in (False, True):
        config = GRPOConfig().environment("guess_number-v0")
        config.language_model(tiny=TINY, dtype=dtype)
        config.learners(num_gpus_per_learner=1, optimizer_offload=offload)
        config.validate()
        config.resolved_model = prepare_language_model(config)
        case = Case(config, random_episodes(4))
        # Blocks smaller than a parameter, and parameters smaller than a block.
        with mock.patch.object(adamw, "BLOCK", 1000):
            learners.append(case.learner(accelerator.device))
            for _ in range(2):
                update(learners[-1], case.episodes)
    found = {"weights": same_weights(*learners)}
    found["host"] = {v.device.type for v in kept_by(learners[1])} == {"cpu"}
    found["device"] = accelerator.device.type in {
        v.device.type for v in kept_by(learners[0])
    }
    states = [copy.deepcopy(learner.get_state()) for learner in learners]
    for learner, state in zip(learners, reversed(states), strict=True):
        learner.set_state(state)
        update(learner, random_episodes(4))
    found["after exchange"] = same_weights(*learners)
    found["host after exchange"] = {v.device.type for v in kept_by(learners[1])} == {
        "cpu"
    }
    return found


def kept_by(learner) -> list[torch.Tensor]:
    """Return moments and masters of all optimisers."""
    states = [s for o in learner._optimizer_parameters for s in o.state.values()]
    return [value for s in states for name, value in s.items() if name != "step"]


def same_weights(first, second) -> bool:
    """Return whether two Learners have equal weights, to the bit."""
    pairs = zip(policy(first).parameters(), policy(second).parameters(), strict=True)
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in pairs)


def host_bytes_of_loading(accelerator) -> dict[str, float]:
    """Return host bytes of building and saving, relative to the policy's weights."""
    config = GRPOConfig().environment("guess_number-v0")
    config.language_model(tiny=SIZES).training(ref_kl_coeff=0.1)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    case = Case(config, [])
    gc.collect()
    before = accelerator.host_live_bytes
    accelerator.reset_peak()
    learner = case.learner(accelerator.device)
    gc.collect()
    weights = sum(p.nbytes for p in policy(learner).parameters())
    found = {"built": accelerator.host_peak_bytes - before}
    found["after"] = accelerator.host_live_bytes - before
    accelerator.reset_peak()
    state = policy(learner).get_state(inference_only=True)
    found["saved"] = accelerator.host_peak_bytes - before - found["after"]
    del state
    return {name: value / weights for name, value in found.items()}
