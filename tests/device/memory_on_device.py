"""Bytes that an update needs on an accelerator, beside those that the plan names."""

from __future__ import annotations

import gc
from unittest import mock

from learners import Case, placed_on, random_episodes
from team_helpers import update

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.learner import adamw
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.recipes.memory import count_weights

SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1024}
# As small beside these models as adamw.BLOCK is beside one of a billion parameters.
BLOCK = 2**15
MODELS = {
    "float32": ({}, {}),
    "bfloat16": ({"dtype": "bfloat16"}, {}),
    "float32, reference": ({}, {"ref_kl_coeff": 0.1}),
    "bfloat16, reference": ({"dtype": "bfloat16"}, {"ref_kl_coeff": 0.1}),
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
        count, _, plan = count_weights(config)
    planned = plan.weights + plan.gradients + plan.optimizer + plan.step
    found = {"built": built, "kept": kept, "peak": peak, "planned": planned}
    return {name: value / count for name, value in found.items()}
