"""Removal of dropout and other randomness from models in training mode.

With dropout the Learner would score a different distribution from the sampled one, so
that even the first step's probability ratios would differ from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from rllib_llm.errors import ModelError

# Substrings of the attributes for functional dropout, dropped layers and router noise:
# ``attention_dropout``, ``resid_pdrop``, ``layerdrop``, ``hidden_dropout_prob``,
# ``router_jitter_noise``, and so on.
_RANDOM_NAMES = ("drop", "jitter")
_PROBE_TOKENS = 8
# Maximum difference of logits that rounding explains, as a share of the largest logit.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}  # else 2e-2


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability and every router noise of ``model`` to 0.

    Layers read these values from their own attributes or from the config, so both are
    changed.
    """
    owners: list[Any] = [*model.modules(), *_configs(model)]
    for owner in owners:
        if isinstance(owner, nn.Dropout):
            owner.p = 0.0
        for name, value in list(vars(owner).items()):
            if isinstance(value, float) and any(n in name for n in _RANDOM_NAMES):
                setattr(owner, name, 0.0)


def _configs(model: nn.Module) -> Iterator[Any]:
    """Yield every config that a module of ``model`` reads, including nested ones."""
    todo = [m.config for m in model.modules() if hasattr(m, "config")]
    seen: set[int] = set()
    while todo:
        config = todo.pop()
        if id(config) in seen or not hasattr(config, "sub_configs"):
            continue
        seen.add(id(config))
        yield config
        todo += [getattr(config, name, None) for name in config.sub_configs]


@torch.no_grad()
def check_training_mode(model: nn.Module) -> None:
    """Check that a model computes the same in training as in evaluation mode.

    The Learner's forward passes run in training mode, sampling in evaluation mode.

    Raises:
        ModelError: If two forward passes in training mode differ from each other, or
            from one in evaluation mode.
    """
    parameter = next(model.parameters())
    if parameter.device.type == "meta":
        return
    vocab = model.config.get_text_config().vocab_size
    ids = torch.arange(_PROBE_TOKENS, device=parameter.device)[None] % vocab
    was_training = {m: m.training for m in model.modules()}
    devices = [parameter.device] if parameter.is_cuda else []
    try:
        with torch.random.fork_rng(devices):
            expected = model.eval()(input_ids=ids, use_cache=False).logits
            model.train()
            trained = [model(input_ids=ids, use_cache=False).logits for _ in range(2)]
    finally:
        for module, training in was_training.items():
            module.training = training
    scale = 1e-3 + float(expected.double().abs().max())
    tolerance = _TOLERANCE.get(parameter.dtype, 2e-2) * scale
    gap = max(float((t.double() - expected.double()).abs().max()) for t in trained)
    if gap > tolerance:
        kind = model.config.get_text_config().model_type
        raise ModelError(
            f"The logits of models of type {kind!r} in training mode differ from those "
            f"in evaluation mode by {gap:.2g} (tolerance {tolerance:.2g}), although "
            "all dropout is off: the Learner would score a different distribution from "
            "the sampled one. Use another architecture."
        )
