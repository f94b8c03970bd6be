"""Assignment of engines to policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from rllib_llm.algorithms.driver.memory_plan import plan_memory

if TYPE_CHECKING:
    from rllib_llm.algorithms.config.derived import DerivedSettings
    from rllib_llm.types import LLMConfig


def build_engines(
    config: DerivedSettings, modules: Mapping[str, Any], *, beside_learner: bool = False
) -> dict[str, Any]:
    """Return the engine that samples for each policy.

    Args:
        config: The run's config.
        modules: The policies' LLMRLModules, by ModuleID.
        beside_learner: Whether this process will train on the same device.
    """
    engines: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    if beside_learner and _is_sized_by_device(config, modules):
        # The Learner is built after the engine, and its optimiser's state in the first
        # update: the free memory of now says nothing about them.
        _, _, plan = plan_memory(cast("LLMConfig", config))
        memory["planned_bytes"] = plan.of_training
    for group in _together(config, modules):
        module_config = config.get_config_for_module(group[0])
        # Memory for keys and values, in proportion to the policies.
        share = len(group) / len(modules)
        if len(group) > 1:
            engine = torch_engine(
                module_config, [modules[m] for m in group], share=share, **memory
            )
        elif len(modules) > 1:
            engine = module_config.build_generation_engine(
                modules[group[0]], share=share, **memory
            )
        else:
            engine = module_config.build_generation_engine(modules[group[0]], **memory)
        engines |= dict.fromkeys(group, engine)
    return engines


def _is_sized_by_device(config: DerivedSettings, modules: Mapping[str, Any]) -> bool:
    """Return whether the cache's budget follows from an accelerator's memory."""
    if config.generation_engine != "torch" or config.kv_cache_gib is not None:
        return False
    return any(
        next(m.parameters()).device.type not in ("cpu", "mps") for m in modules.values()
    )


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


def torch_engine(
    config: DerivedSettings,
    modules: list[Any],
    *,
    share: float,
    planned_bytes: int | None = None,
) -> Any:
    """Return an embedded engine for policies that differ in their adapters only.

    Args:
        config: Config of the first policy.
        modules: The policies' LLMRLModules, at least one.
        share: Share of the memory for keys and values.
        planned_bytes: Bytes that the process will need beside them on the device; None:
            those that it has now.
    """
    from rllib_llm.engines.kv_budget import kv_budget_bytes
    from rllib_llm.engines.torch_engine import TorchEngine

    model, *others = (module.lm for module in modules)
    device = next(model.parameters()).device
    budget = kv_budget_bytes(config.kv_cache_gib, device, planned_bytes)
    mask: dict[str, Any] = {}
    if config.mask_top_p is not None and not config.in_evaluation:
        mask = {"mask_policy": modules[0].mask_policy, "mask_top_p": config.mask_top_p}
    return TorchEngine(
        model,
        max_slots=config.num_envs_per_env_runner * len(modules),
        max_context_tokens=config.resolved_context_tokens(),
        tokenizer=config.chat_renderer().tokenizer,
        kv_budget_bytes=int(share * budget),
        forward=config.engine_forward,
        num_speculative_tokens=config.num_speculative_tokens,
        others=others,
        vocabulary=modules[0].vocabulary,
        pictures=config.chat_renderer().pictures,
        **mask,
    )
