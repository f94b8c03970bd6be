"""Assignment of engines to policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllib_llm.algorithms.config.derived import DerivedSettings


def build_engines(
    config: DerivedSettings, modules: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the engine that samples for each policy.

    Args:
        config: The run's config.
        modules: The policies' LLMRLModules, by ModuleID.
    """
    engines: dict[str, Any] = {}
    for group in _together(config, modules):
        module_config = config.get_config_for_module(group[0])
        # Memory for keys and values, in proportion to the policies.
        share = len(group) / len(modules)
        if len(group) > 1:
            engine = torch_engine(
                module_config, [modules[m] for m in group], share=share
            )
        elif len(modules) > 1:
            engine = module_config.build_generation_engine(
                modules[group[0]], share=share
            )
        else:
            engine = module_config.build_generation_engine(modules[group[0]])
        engines |= dict.fromkeys(group, engine)
    return engines


def _together(config: DerivedSettings, modules: Mapping[str, Any]) -> list[list[str]]:
    """Return the policies that can share an engine, group by group."""
    if config.generation_engine != "torch" or config.engine_forward != "auto":
        return [[module_id] for module_id in modules]
    from rllib_llm.engines.fused_layout import why_not_together

    groups: list[list[str]] = []
    # Each policy joins the first engine whose base model it shares.
    for module_id, module in modules.items():
        for group in groups:
            first = modules[group[0]]
            are_adapted = first.model_config["lora"] and module.model_config["lora"]
            if are_adapted and why_not_together([first.lm, module.lm]) is None:
                group.append(module_id)
                break
        else:
            groups.append([module_id])
    return groups


def torch_engine(config: DerivedSettings, modules: list[Any], *, share: float) -> Any:
    """Return an embedded engine for policies that differ in their adapters only.

    Args:
        config: Config of the first policy.
        modules: The policies' LLMRLModules, at least one.
        share: Share of the memory for keys and values.
    """
    from rllib_llm.engines.kv_budget import kv_budget_bytes
    from rllib_llm.engines.torch_engine import TorchEngine

    model, *others = (module.lm for module in modules)
    device = next(model.parameters()).device
    return TorchEngine(
        model,
        max_slots=config.num_envs_per_env_runner * len(modules),
        max_context_tokens=config.resolved_context_tokens(),
        tokenizer=config.chat_renderer().tokenizer,
        kv_budget_bytes=int(share * kv_budget_bytes(config.kv_cache_gib, device)),
        forward=config.engine_forward,
        others=others,
        vocabulary=modules[0].vocabulary,
    )
