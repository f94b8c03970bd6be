"""The frozen model whose log-probabilities a policy is compared with."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from rllib_llm.errors import ModelError
from rllib_llm.modules import loading

if TYPE_CHECKING:
    from torch import nn


def frozen_reference(lm: nn.Module, config: dict[str, Any]) -> tuple[nn.Module, ...]:
    """Return the reference of a policy, or none if it needs no model of its own.

    Args:
        lm: The policy's language model, without adapters.
        config: The RLModule's ``model_config``.

    Raises:
        ModelError: If ``ref_model`` is missing, except while a policy is loaded from a
            checkpoint: such a policy can be sampled from.
    """
    if not config["reference"]:
        return ()
    model = config.get("ref_model")
    if model is None:
        # Under LoRA it is the base without its adapter.
        return () if config["lora"] else (frozen(copy.deepcopy(lm)),)
    try:
        loading.check_model_path(model)
    except ModelError:
        if loading.offered_model_folder() is None:
            raise
        return ()
    kwargs = config.get("model_kwargs", {})
    loaded = loading.load_causal_lm(
        model, config["dtype"], needs_weights=True, **kwargs
    )
    return (frozen(loaded.to(loading.placement())),)


def check_present(config: dict[str, Any]) -> None:
    """Refuse to score with the adapters off in the place of a missing ``ref_model``.

    Raises:
        ModelError: If there is a ``ref_model``.
    """
    if config.get("ref_model"):
        raise ModelError(
            f"ref_model {config['ref_model']!r} was not loaded with the checkpoint, "
            "because its folder is gone. Put it back to train further."
        )


def frozen(lm: nn.Module) -> nn.Module:
    """Return a model in evaluation mode, none of whose parameters is trained."""
    return lm.requires_grad_(False).eval()
