"""Initialisation of policies from another run's checkpoint, for stages."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.modules.checkpointed_module import HF_FOLDER
from rllib_llm.modules.lora import lora_settings
from rllib_llm.modules.scorer import SCORER_MODULE
from rllib_llm.modules.tiny import BUILT_MODELS, TinySizes, defaults_of
from rllib_llm.modules.turn_critic import TurnCriticRLModule

if TYPE_CHECKING:
    from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
    from rllib_llm.types import LLMAlgorithm, LLMConfig

RL_MODULE = "learner_group/learner/rl_module"


def initialise_from(algo: LLMAlgorithm, checkpoint: Path) -> None:
    """Load the weights of a checkpoint's policies into ``algo``, which was just built.

    Policies, critics and non-LLM RLModules that both have are loaded. Optimisers,
    counters, task cursor and components start anew, and the reference policy is the
    loaded one.

    Raises:
        CheckpointError: If there is no such checkpoint, or its model differs.
    """
    modules = checkpoint / RL_MODULE
    if not modules.is_dir():
        raise CheckpointError(
            f"{checkpoint}, from which policies are initialised, is not a checkpoint "
            "any more. Put it back, or start the run anew."
        )
    # The component alone: optimisers, counters and the task cursor start anew.
    algo.restore_from_path(modules, component=RL_MODULE)
    is_like_policy = algo.config.uses_scorer and algo.config.action_labels is None
    if is_like_policy and not (modules / SCORER_MODULE).is_dir():
        policy_id = algo.config.trained_module_ids[0]
        algo.learner_group.foreach_learner(_begin_scorer, policy_id=policy_id)
    # They were copied from the model that was built, before these weights.
    algo.learner_group.foreach_learner(_refresh_copies)


def _begin_scorer(learner: LLMLearnerMixin, policy_id: str) -> None:
    """Give the scorer the policy's weights, with which it begins."""
    policy, scorer = (learner.module[m].unwrapped() for m in (policy_id, SCORER_MODULE))
    scorer.lm.load_state_dict(policy.lm.state_dict())
    if isinstance(scorer, TurnCriticRLModule):
        scorer.update_targets(tau=1.0)


def _refresh_copies(learner: LLMLearnerMixin) -> None:
    """Let reference and mask policy begin with the policy's weights."""
    for module_id in learner.config.llm_module_ids:
        module = learner.module[module_id].unwrapped()
        module.refresh_reference()
        module.refresh_mask_policy()


def initial_checkpoint_model(config: LLMConfig, module_id: str) -> str | None:
    """Return the model folder or hub id with which a policy is initialised.

    Tokenizer and architecture are the checkpoint's: a tiny model built for another
    environment would have another vocabulary. None if there is no checkpoint.
    """
    if config.initial_checkpoint is None:
        return None
    modules = Path(config.initial_checkpoint) / RL_MODULE
    folder = modules / module_id
    if not (folder / HF_FOLDER).is_dir():  # a frozen policy that is loaded later
        folder = next(
            (p.parent for p in sorted(modules.glob(f"*/{HF_FOLDER}"))), folder
        )
    # RLlib's Checkpointable stores the constructor's arguments in this file.
    record = folder / "class_and_ctor_args.pkl"
    if not record.is_file():
        return None
    _, keywords = pickle.loads(record.read_bytes())["ctor_args_and_kwargs"]
    model = str(keywords["model_config"]["model"])
    # A model in the cache may be deleted; except under LoRA its weights follow anyway.
    is_gone = Path(model).is_absolute() and not Path(model).is_dir()
    return str(folder / HF_FOLDER) if is_gone and not config.lm_lora else model


def check_initialisable(earlier: LLMConfig, later: LLMConfig) -> None:
    """Check that one config can be initialised from the policies of another.

    Args:
        earlier: A validated config.
        later: The config that is initialised.

    Raises:
        ConfigError: With the policy, the rule, and the remedy.
    """
    for module_id in later.trained_module_ids:
        if module_id not in earlier.llm_module_ids:
            names = ", ".join(earlier.llm_module_ids)
            raise ConfigError(
                f"it trains the policy {module_id!r}, but the stage before has only "
                f"{names}. Use the same policies in both."
            )
    for module_id in later.llm_module_ids:
        if module_id in earlier.llm_module_ids:
            before = earlier.get_config_for_module(module_id)
            _check_policy(before, later.get_config_for_module(module_id))


def _check_policy(before: LLMConfig, after: LLMConfig) -> None:
    both_have_heads = _has_head(before) and _has_head(after)
    old, new = (
        _model_settings(before, both_have_heads),
        _model_settings(after, both_have_heads),
    )
    for name, value in new.items():
        if value != old[name]:
            raise ConfigError(
                f"language_model.{name}={value!r}, but the model of the stage before "
                f"has {old[name]!r}. Set it once, outside of the stages."
            )
    if after.lm_lora and after.uses_reference and after.ref_model is None:
        raise ConfigError(
            "it needs a reference policy (ref_kl_coeff, or a component), which under "
            "LoRA is the base model, not the stage before. Set ref_kl_coeff to 0, or "
            "train all weights (lora: null), or export the stage before and start "
            "from that."
        )


def _has_head(config: LLMConfig) -> bool:
    return config.use_critic and not config.critic_view


def _tiny_defaults(model: str) -> TinySizes:
    return defaults_of(model if model in BUILT_MODELS else "tiny")


def _model_settings(config: LLMConfig, with_head: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "model": config.lm_model,
        "tiny": {**_tiny_defaults(config.lm_model), **config.lm_tiny},
        "lora": lora_settings(config.lm_lora),
    }
    if config.lm_lora:  # a checkpoint holds the parts that are trained beside adapters
        settings["freeze"] = config.resolved_freeze()
    if with_head:
        settings |= {
            "value_head": config.lm_value_head,
            "value_model": config.lm_value_model,
        }
    return settings
