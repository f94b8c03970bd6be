"""Begin with the policies of another run's checkpoint: one stage after another."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.modules.llm_rl_module import HF_FOLDER
from rllib_llm.modules.loading import lora_settings
from rllib_llm.modules.tiny import TINY_DEFAULTS

RL_MODULE = "learner_group/learner/rl_module"


def take_over(algo: Any, checkpoint: Path) -> None:
    """Give ``algo``, just built, the weights of a checkpoint's policies.

    Policies, critics and classic RLModules that both have take over their weights.
    Optimisers, counters, task cursors and memories of pieces begin anew, and the
    reference policy is what was taken over.

    Raises:
        CheckpointError: If there is no such checkpoint, or it is another model's.
    """
    modules = checkpoint / RL_MODULE
    if not modules.is_dir():
        raise CheckpointError(
            f"{checkpoint}, whose policies are handed over, is no checkpoint any more. "
            "Put it back, or start the run anew."
        )
    algo.restore_from_path(modules, component=RL_MODULE)
    if algo.config.uses_reference:
        algo.learner_group.foreach_learner(_refresh_references)


def _refresh_references(learner: Any) -> None:
    for module_id in learner.config.llm_module_ids:
        learner.module[module_id].unwrapped().refresh_reference()


def initial_checkpoint_model(config: Any, module_id: str) -> str | None:
    """Return the model folder or hub id that a policy takes over.

    Tokenizer and architecture are those of the checkpoint: the tiny model of another
    environment would have words of its own. None if there is no checkpoint.
    """
    if config.initial_checkpoint is None:
        return None
    modules = Path(config.initial_checkpoint) / RL_MODULE
    found = modules / module_id
    if not (found / HF_FOLDER).is_dir():  # a frozen slot that is filled later
        found = next((p.parent for p in sorted(modules.glob(f"*/{HF_FOLDER}"))), found)
    record = found / "class_and_ctor_args.pkl"
    if not record.is_file():
        return None
    _, keywords = pickle.loads(record.read_bytes())["ctor_args_and_kwargs"]
    model = str(keywords["model_config"]["model"])
    # What was prepared in a cache may be gone; but for LoRA its weights follow anyway.
    is_gone = Path(model).is_absolute() and not Path(model).is_dir()
    return str(found / HF_FOLDER) if is_gone and not config.lm_lora else model


def check_handover(earlier: Any, later: Any) -> None:
    """Check that the policies of one config can go on under another.

    Args:
        earlier: A validated config.
        later: The one that takes over.

    Raises:
        ConfigError: Naming the policy, the rule, and the remedy.
    """
    for module_id in later.trained_module_ids:
        if module_id not in earlier.llm_module_ids:
            known = ", ".join(earlier.llm_module_ids)
            raise ConfigError(
                f"it trains the policy {module_id!r}, but the stage before has {known} "
                "to hand over. Use the same policies in both."
            )
    for module_id in later.llm_module_ids:
        if module_id in earlier.llm_module_ids:
            before = earlier.get_config_for_module(module_id)
            _check_policy(before, later.get_config_for_module(module_id))


def _check_policy(before: Any, after: Any) -> None:
    both_have_heads = _has_head(before) and _has_head(after)
    old, new = _facts(before, both_have_heads), _facts(after, both_have_heads)
    for name, value in new.items():
        if value != old[name]:
            raise ConfigError(
                f"language_model.{name}={value!r}, but the stage before hands over a "
                f"model with {old[name]!r}. Set it once, outside of the stages."
            )
    if after.lm_lora and after.uses_reference:
        raise ConfigError(
            "it needs a reference policy (ref_kl_coeff, or a piece), which under LoRA "
            "is the base model, not what is handed over. Set ref_kl_coeff to 0, train "
            "all weights (lora: null), or export the stage before and start from that."
        )


def _has_head(config: Any) -> bool:
    return config.use_critic and not config.critic_view


def _facts(config: Any, with_head: bool) -> dict[str, Any]:
    facts = {
        "model": config.lm_model,
        "tiny": {**TINY_DEFAULTS, **config.lm_tiny},
        "lora": lora_settings(config.lm_lora),
    }
    if with_head:
        facts |= {
            "value_head": config.lm_value_head,
            "value_model": config.lm_value_model,
        }
    return facts
