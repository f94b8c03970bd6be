"""Models of an algorithm's policies: located, or built before training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm.algorithms.driver.init_from_checkpoint import initial_checkpoint_model
from rllib_llm.modules.loading import offered_model_folder
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.offline.prepare_ref_model import prepare_ref_model

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

Progress = Callable[[str, float], None]


def with_models(config: LLMConfig, on_progress: Progress | None = None) -> Any:
    """Return the config with every policy's model built or located."""
    for module_id in config.llm_module_ids:
        module_config = config.get_config_for_module(module_id)
        prepared = _prepared(module_config, module_id, on_progress)
        if not prepared:
            continue
        config = config.copy(copy_frozen=False)
        overrides = config.algorithm_config_overrides_per_module
        if module_id in overrides:
            overrides[module_id] |= prepared
        else:
            for name, folder in prepared.items():
                setattr(config, name, folder)
        config.resolve_policies()
    return config


def _prepared(
    config: LLMConfig, module_id: str, on_progress: Progress | None
) -> dict[str, str | None]:
    """Build what is missing of a policy's models; return the settings that name it."""
    prepared: dict[str, str | None] = {}
    model = config.resolved_model
    if not _is_ready(model):
        model = initial_checkpoint_model(config, module_id)
        model = model or _locate_model(config, module_id, on_progress)
        prepared["resolved_model"] = model
    if config.uses_reference and not _is_ready(config.resolved_ref_model):
        reference = prepare_ref_model(config, str(model), on_progress)
        if reference is not None:
            prepared["resolved_ref_model"] = reference
    return prepared


def _locate_model(
    config: LLMConfig, module_id: str, on_progress: Progress | None
) -> str:
    """Return the folder of the model to train, or its hub id.

    A full checkpoint that is being restored replaces the model it was trained from;
    LoRA needs the base model itself.
    """
    if config.lm_lora:
        return prepare_language_model(config, on_progress)
    folder = offered_model_folder(module_id)
    return folder or prepare_language_model(config, on_progress)


def _is_ready(model: str | None) -> bool:
    return model is not None and (Path(model) / "config.json").is_file()
