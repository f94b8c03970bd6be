"""Checks of a configuration; each error gives value, rule and remedy."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm.algorithms.config.check_action_head import validate_action_heads
from rllib_llm.algorithms.config.check_assistants import validate_assistants
from rllib_llm.algorithms.config.check_baselines import validate_baselines
from rllib_llm.algorithms.config.check_calls import check_attributes
from rllib_llm.algorithms.config.check_candidates import validate_candidates
from rllib_llm.algorithms.config.check_env_runner import validate_env_runner
from rllib_llm.algorithms.config.check_forks import validate_forks
from rllib_llm.algorithms.config.check_loss_mask import validate_loss_mask
from rllib_llm.algorithms.config.check_non_llm import validate_non_llm
from rllib_llm.algorithms.config.check_nucleus_mask import check_nucleus_mask
from rllib_llm.algorithms.config.check_pictures import validate_pictures
from rllib_llm.algorithms.config.check_policies import validate_policies
from rllib_llm.algorithms.config.check_prompt_texts import validate_prompt_texts
from rllib_llm.algorithms.config.check_reference import check_reference
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.algorithms.driver.build_vllm_engines import validate_engine
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.envs.make import make_env as make_registered_env
from rllib_llm.envs.make import make_playable
from rllib_llm.envs.mixture import check_mixture
from rllib_llm.envs.mixture_members import ENVIRONMENTS, MIXTURE, read_members
from rllib_llm.envs.registry import TEXT_ENVS
from rllib_llm.errors import ConfigError, MissingExtraError, did_you_mean
from rllib_llm.modules.architectures import check_folder
from rllib_llm.modules.gguf_models import check_gguf, is_gguf
from rllib_llm.modules.loading import find_model, require_weights
from rllib_llm.modules.lora import lora_settings
from rllib_llm.modules.tiny import BUILT_MODELS, check_sizes, defaults_of

if TYPE_CHECKING:
    from rllib_llm.envs.make import EnvSpec
    from rllib_llm.types import LLMConfig


def validate(config: LLMConfig) -> None:
    """Check every setting of the package.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    for module_id in config.llm_module_ids:
        validate_pictures(config.get_config_for_module(module_id))
    _validate_embedded_engine(config)
    _validate_groups(config)
    _validate_mismatch(config)
    _validate_learner(config)
    validate_env_runner(config)
    validate_forks(config)
    validate_candidates(config)
    _validate_connector_states(config)
    _validate_weight_sync(config)
    validate_action_heads(config)
    validate_engine(config)
    validate_policies(config)
    validate_non_llm(config)
    # On example data: a wrong setting must fail now, not after the first sampling.
    DriverComponents(config).try_out()
    validate_assistants(config)
    validate_prompt_texts(config)
    validate_baselines(config)
    for module_id in config.llm_module_ids:
        module_config = config.get_config_for_module(module_id)
        check_attributes(module_config)
        validate_loss_mask(module_config)
        _validate_sampling(module_config)
        check_nucleus_mask(module_config)
        check_reference(module_config)
        _validate_components(module_config)
        validate_model(module_config)


def validate_model(config: LLMConfig) -> None:
    """Check the language model of a run, or of one of its policies."""
    lora = lora_settings(config.lm_lora)
    # Assigned only if it differs: a frozen config refuses assignments.
    if lora != config.lm_lora:
        config.lm_lora = lora
    if config.lm_lora and importlib.util.find_spec("peft") is None:
        raise MissingExtraError.for_extra("peft", "lora")
    _validate_critic(config)
    _validate_precision(config)
    _validate_tiny(config)
    if config.lm_model not in BUILT_MODELS:
        model = find_model(config.lm_model, weights_follow=not config.lm_lora)
        # A full checkpoint brings its weights with it.
        if model == config.lm_model:  # otherwise a checkpoint being restored
            require_weights(model)
        if is_gguf(model):
            check_gguf(model)
        elif Path(model).expanduser().is_dir():
            check_folder(model, config.lm_lora)


def _validate_tiny(config: LLMConfig) -> None:
    name = config.lm_model if config.lm_model in BUILT_MODELS else "tiny"
    check_sizes(config.lm_tiny, defaults_of(name))
    sizes = {**defaults_of(name), **config.lm_tiny}
    width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    shared = sizes["num_key_value_heads"]
    if width % (2 * heads):
        raise ConfigError(
            f"language_model.tiny.hidden_size={width} must be a multiple of twice "
            f"num_attention_heads={heads}: rotary positions take pairs of each head."
        )
    if heads % shared:
        raise ConfigError(
            f"language_model.tiny.num_key_value_heads={shared} must divide "
            f"num_attention_heads={heads}."
        )
    for key in ("image_mean", "image_std"):
        if key in sizes and len(sizes[key]) != 3:
            raise ConfigError(
                f"language_model.tiny.{key}={sizes[key]} must have three numbers, for "
                "red, green and blue, e.g. [1.0, 1.0, 1.0]."
            )


def _validate_precision(config: LLMConfig) -> None:
    if config.lm_autocast and config.lm_dtype != "float32":
        raise ConfigError(
            f"autocast={config.lm_autocast!r} computes in bfloat16 with float32 "
            f"parameters, but dtype={config.lm_dtype!r}. Use dtype='float32', or leave "
            "autocast out."
        )
    if config.torch_compile_learner:
        raise ConfigError(
            "torch_compile_learner=True would have no effect: RLlib compiles forward "
            "passes that are not called here. Use language_model(compile='inductor')."
        )
    why = "nan_policy decides about gradients that are not finite. Use that."
    refuse_without_effect(config, ("torch_skip_nan_gradients",), why)
    if not config.num_gpus_per_learner:
        why = (
            "a Learner without a GPU keeps everything in host memory. Set "
            "num_gpus_per_learner, or leave it out."
        )
        refuse_without_effect(config, ("optimizer_offload",), why)
    _validate_compile(config)


def _validate_compile(config: LLMConfig) -> None:
    if config.lm_compile is None:
        return
    from torch import compiler

    backends = compiler.list_backends(exclude_tags=())
    if config.lm_compile not in backends:
        raise ConfigError(
            f"compile={config.lm_compile!r} must be a backend of torch.compile. "
            f"{did_you_mean(str(config.lm_compile), backends)}"
        )


def _validate_critic(config: LLMConfig) -> None:
    if config.lm_value_model == "own" and config.lm_lora:
        raise ConfigError(
            "value_model='own' trains a whole second model, but lora="
            f"{config.lm_lora!r} trains adapters only. Use value_model='shared'."
        )
    if config.lm_value_model == "own" and not config.lm_value_head_detach:
        raise ConfigError(
            "value_head_detach=False would have no effect: with value_model='own' the "
            "critic's gradient never reaches the policy's trunk. Leave it out."
        )


def _validate_embedded_engine(config: LLMConfig) -> None:
    if config.generation_engine != "torch":
        refuse_without_effect(
            config,
            ("engine_forward", "kv_cache_gib", "num_speculative_tokens"),
            f"engine={config.generation_engine!r} has its own. Use engine='torch', or "
            "leave it out.",
        )


def _validate_sampling(config: LLMConfig) -> None:
    if config.temperature <= 0:
        raise ConfigError(
            f"temperature={config.temperature} must be > 0 in training: a greedy "
            "policy never explores. For greedy evaluation use "
            "evaluation_config={'explore': False}."
        )
    if config.top_p != 1.0 or config.top_k != 0:
        raise ConfigError(
            f"top_p={config.top_p}, top_k={config.top_k}: training needs 1.0 and 0, "
            "since the learner's log-probabilities are over the whole vocabulary. "
            "Set them in evaluation_config only."
        )


def _validate_learner(config: LLMConfig) -> None:
    default = config.get_default_learner_class()
    if not issubclass(config.learner_class, default):
        raise ConfigError(
            f"learners.learner_class={config.learner_class.__name__} must be a "
            f"subclass of {default.__name__}, the Learner of "
            f"{type(config).__name__.removesuffix('Config')}. Derive it from that, or "
            "leave it out."
        )


def _validate_connector_states(config: LLMConfig) -> None:
    is_kept = config.create_local_env_runner or config.broadcast_env_runner_states
    if config.num_env_runners and config.merge_env_runner_states and not is_kept:
        raise ConfigError(
            "env_runners.broadcast_env_runner_states=False leaves the merged states of "
            "the connectors to the local EnvRunner, which create_local_env_runner="
            "False leaves out. Drop one of the two, or set "
            "merge_env_runner_states=False."
        )


def _validate_weight_sync(config: LLMConfig) -> None:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    dtype = config.weight_sync_dtype
    if dtype and not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            f"weight_sync_dtype={dtype!r} needs LLMEnvRunner; RLlib's "
            f"{config.env_runner_cls.__name__} receives weights unchanged. Leave "
            "weight_sync_dtype or env_runner_cls out."
        )


def _validate_groups(config: LLMConfig) -> None:
    episodes, group = config.episodes_per_iteration, config.group_size
    if episodes % group:
        raise ConfigError(
            f"group_size ({group}) must divide episodes_per_iteration ({episodes}). "
            f"Try episodes_per_iteration={max(1, round(episodes / group)) * group}."
        )
    learners = max(1, config.num_learners or 0)
    if episodes < learners:
        raise ConfigError(
            f"episodes_per_iteration ({episodes}) must be >= num_learners ({learners})."
        )
    if config.minibatch_size is not None and config.minibatch_size > episodes:
        raise ConfigError(
            f"minibatch_size ({config.minibatch_size}) counts episodes per optimiser "
            f"step and must be <= episodes_per_iteration ({episodes}). None takes all."
        )
    needs = config.loss_agg_mode == "seq-mean-token-sum-norm"
    if needs and not config.loss_agg_constant:
        raise ConfigError(
            "loss_agg_mode='seq-mean-token-sum-norm' needs loss_agg_constant, a fixed "
            "length in tokens, e.g. the most an episode may sample."
        )


def _validate_components(config: LLMConfig) -> None:
    components = config.build_composed_loss()
    components.try_out()
    if "unweighted" in components.needs and config.mismatch_settings():
        raise ConfigError(
            f"policy_loss={config.policy_loss!r} is not linear in the advantages, "
            "but tis and is_*mask_* weight them. Set tis=None and leave the masks out."
        )
    if "causal" in components.needs and config.action_labels is None:
        raise ConfigError(
            "loss_terms have weights='causal', but no scorer learns them. Set "
            "scorer.loss='causal' of GRPO or LLMPPO, or use weights='equal'."
        )
    if "actions" in components.needs and config.action_head != "score":
        raise ConfigError(
            "A loss term sums over the admissible actions of a turn, but "
            f"head={config.action_head!r} writes tokens and has no such list. Set "
            "generation.head='score', or use the loss term distill, which weighs "
            "sampled tokens."
        )


def _validate_mismatch(config: LLMConfig) -> None:
    if config.mismatch_settings() and config.old_logps == "engine":
        raise ConfigError(
            "tis and is_*mask_* compare the learner's log-probabilities with the "
            "engine's, but old_logps takes the engine's for both. Set "
            "old_logps='learner', or leave them out."
        )


def make_env(env: EnvSpec, env_config: dict[str, Any] | None) -> Any:
    """Return a new environment, given as ``config.environment(env)`` accepts it."""
    return make_playable(*_resolved(env, env_config))


def env_maker(env: EnvSpec, env_config: dict[str, Any] | None) -> Callable[[], Any]:
    """Return a picklable function that builds the environment in another process."""
    spec, config = _resolved(env, env_config)
    if isinstance(spec, str) and spec in TEXT_ENVS:
        spec = TEXT_ENVS.get(spec)  # that process may not have imported its module
    return functools.partial(make_playable, spec, config)


def _resolved(env: EnvSpec, env_config: dict[str, Any] | None) -> tuple[Any, Any]:
    """Return the environment and its options, with ids of RLlib's registry resolved."""
    from ray.rllib.env.env_context import EnvContext
    from ray.tune.registry import ENV_CREATOR, _global_registry

    config = dict(env_config or {})
    if env == MIXTURE:
        return env, {**config, ENVIRONMENTS: _resolved_members(config)}
    is_foreign = isinstance(env, str) and env not in TEXT_ENVS
    if is_foreign and _global_registry.contains(ENV_CREATOR, env):
        creator = _global_registry.get(ENV_CREATOR, env)
        if getattr(creator, "func", None) is not _create:  # that one is for RLlib
            # RLlib passes an EnvContext to creators.
            return creator, EnvContext(config, worker_index=0)
    return env, config


def _resolved_members(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the environments of a mixture with ids of RLlib's registry resolved."""
    resolved = []
    for member in read_members(config):
        env, env_config = _resolved(member.env, member.env_config)
        if isinstance(env, str) and env in TEXT_ENVS:
            env = TEXT_ENVS.get(env)  # another process may not have imported its module
        entry = {"env": env, "env_config": env_config, "name": member.name}
        resolved.append({**entry, "weight": member.weight})
    return resolved


def register_env(env: EnvSpec | None, env_config: dict[str, Any]) -> None:
    """Register the names that :func:`make_env` accepts with RLlib.

    Raises:
        ConfigError: If no environment is given, or none of that name exists.
    """
    from ray import tune
    from ray.tune.registry import ENV_CREATOR, _global_registry

    if env is None:
        raise ConfigError(
            "No environment is set. Use .environment('frozen_lake-v0'); "
            f"shipped: {', '.join(TEXT_ENVS.names())}."
        )
    if env == MIXTURE:
        # Every time: the name is registered once, for all mixtures.
        _, resolved = _resolved(env, env_config)
        check_mixture(resolved)
    if isinstance(env, str) and not _global_registry.contains(ENV_CREATOR, env):
        # An unknown name or option fails here, with a suggestion. Registration alone
        # would accept any name.
        make_registered_env(env, dict(env_config)).close()
        tune.register_env(env, env_creator(env))


def env_creator(env: EnvSpec) -> Callable[[Any], Any]:
    """Return RLlib's creator of the environment in ``config.environment(env)``."""
    return functools.partial(_create, env)


def _create(env: EnvSpec, env_config: dict[str, Any]) -> Any:
    """Return one environment for RLlib, or a vector of ``num_envs``."""
    config = dict(env_config)
    # Only RLlib's vectorised stock runner passes a number.
    count = config.pop("num_envs", None)
    if count is None:
        text_env = make_playable(env, config)
        if agents_of(text_env) is None:
            return text_env
        from rllib_llm.env_runner.rllib_multi_agent_env import to_rllib_env

        return to_rllib_env(text_env)
    from rllib_llm.envs.vector import TextVectorEnv

    make = functools.partial(make_registered_env, env, config)
    return TextVectorEnv([make] * count)
