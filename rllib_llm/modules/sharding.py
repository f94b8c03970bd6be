"""Sharding of language-model RLModules over Learners with torch's FSDP2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from torch import nn

from rllib_llm.errors import ModelError
from rllib_llm.modules.loading import DTYPES
from rllib_llm.modules.lora import is_adapter
from rllib_llm.pictures.features import has_vision

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from rllib_llm.modules.checkpointed_module import CheckpointedModule
    from rllib_llm.modules.llm_rl_module import LLMRLModule

# Methods of the RLModule that gather its parameters, as forward() of a plain module.
_PASSES = (
    "forward_train",
    "_forward",
    "_values",
    "reference_logps",
    "reference_choice_logps",
    "action_logps",
)


class ShardingSettings(TypedDict, total=False):
    """Keys of ``sharding_kwargs``; defaults are in ``SHARDING_DEFAULTS``."""

    reshard_after_forward: bool
    offload: bool
    param_dtype: Literal["bfloat16"] | None
    checkpoint_format: Literal["full", "sharded"]


SHARDING_DEFAULTS: ShardingSettings = {
    "reshard_after_forward": True,
    "offload": False,
    "param_dtype": None,
    "checkpoint_format": "full",
}


def shard(module: LLMRLModule, mesh: DeviceMesh, settings: ShardingSettings) -> None:
    """Shard a module in place: each layer of decoder and vision tower, then the rest.

    The reference and a critic's own trunk are sharded as well. LoRA adapters and the
    value head stay whole on every Learner: they are small, and in float32 whatever the
    data type of the rest, while FSDP2 needs one data type in a group.

    Args:
        module: A module in host memory or on the mesh's device.
        mesh: All Learners.
        settings: All of ``SHARDING_DEFAULTS``.
    """
    from torch.distributed.fsdp import register_fsdp_forward_method

    options = _options(mesh, settings)
    whole = {n: p for n, p in module.named_parameters() if stays_whole(n)}
    for parameter in whole.values():  # those that fully_shard() does not move
        parameter.data = parameter.data.to(mesh.device_type)
    options["ignored_params"] = set(whole.values())
    trunks: list[nn.Module] = []
    if (head := getattr(module, "value_head", None)) is not None and head.trunk:
        trunks.append(head.trunk)
    for trunk in trunks:
        _shard_layers(trunk, options)
        # Passes call the parts of a trunk that reads pictures, and not its forward():
        # what is in none of its layers is gathered with the RLModule.
        if not has_vision(trunk):
            _fully_shard(trunk, options)
    for reference in module._reference:
        _shard_layers(reference, options)
        _fully_shard(reference, options)
        # A root of its own, whose pass is not its forward() either.
        reference.score = module._score
        register_fsdp_forward_method(reference, "score")
        module._score_reference = reference.score
    _shard_layers(module.lm, options)
    # The RLModule and not the language model: it calls trunk and output layer apart,
    # and tied embeddings must be in one group.
    _fully_shard(module, options)
    for name in _PASSES:
        register_fsdp_forward_method(module, name)
    # The whole tensors that policies share; shards of them are each policy's own.
    module._base_tensors = None


def is_sharded(module: nn.Module) -> bool:
    """Return whether :func:`shard` has sharded a module."""
    return hasattr(module, "reshard")


def reshard(module: CheckpointedModule) -> None:
    """Drop gathered parameters, which do not follow changes of the shards."""
    if not is_sharded(module):
        return
    for root in (module, *module._reference):
        for part in filter(is_sharded, root.modules()):
            part.reshard()


@contextlib.contextmanager
def plain_class(module: nn.Module) -> Iterator[None]:
    """Give a module its own class in the block, under which it is pickled by name.

    FSDP2 replaces it by a subclass that belongs to no Python module.
    """
    sharded = type(module)
    if is_sharded(module):
        module.__class__ = sharded.__bases__[-1]
    try:
        yield
    finally:
        module.__class__ = sharded


def _options(mesh: DeviceMesh, settings: ShardingSettings) -> dict[str, Any]:
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    options: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": settings["reshard_after_forward"],
    }
    name = settings["param_dtype"]
    if name is not None:
        # Inputs keep their types: casting them would round advantages and returns.
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=DTYPES[name],
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
    if settings["offload"]:
        pin = mesh.device_type != "cpu"
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=pin)
    return options


def stays_whole(name: str) -> bool:
    """Return whether every Learner holds all of a parameter of an LLMRLModule."""
    of_head = name.startswith("value_head.") and not name.startswith(
        "value_head.trunk."
    )
    return is_adapter(name) or of_head


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that are gathered one by one.

    Raises:
        ModelError: If transformers marks none in this model.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError(
            f"sharding='fsdp2' shards decoder layers, of which {type(model).__name__} "
            "has none that transformers marks. Set learners.sharding to None."
        )
    return layers


def _shard_layers(model: nn.Module, options: dict[str, Any]) -> None:
    for layer in decoder_layers(model):
        _fully_shard(layer, options)


def _fully_shard(module: nn.Module, options: dict[str, Any]) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, **options)
    # This package's losses are parts of one sum, with one denominator; FSDP2 would
    # divide by the number of Learners. gloo has no sum with a factor.
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
