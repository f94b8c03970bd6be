"""Validation of vLLM settings, and construction of vLLM engines."""

from __future__ import annotations

import functools
import uuid
from typing import TYPE_CHECKING, Any

from ray.tune import PlacementGroupFactory

from rllib_llm.engines import vllm_setup
from rllib_llm.engines.base import GenerationEngine
from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.algorithms.config.derived import DerivedSettings
    from rllib_llm.types import LLMConfig

IN_PROCESS, IN_ACTOR = "vllm", "vllm_actor"
OBJECT_STORE = "object_store"
# Launches of a decoding step grow with the layers, and models of this size have 24 and
# more (docs/engines.md).
_LAUNCH_BOUND = 500_000_000  # parameters


def validate_engine(config: LLMConfig) -> None:
    """Check the settings of engines before anything starts.

    Raises:
        ConfigError: If one has no effect, or vLLM would refuse it.
        MissingExtraError: If vLLM is needed and not installed.
    """
    engine = config.generation_engine
    _require_effect(config, "engine_kwargs", (IN_PROCESS, IN_ACTOR))
    _require_effect(config, "engine_sleep", (IN_PROCESS, IN_ACTOR))
    _require_effect(config, "engine_num_gpus", (IN_ACTOR,))
    _require_effect(config, "weight_sync", (IN_ACTOR,), usual=OBJECT_STORE)
    if config.weight_sync_bucket_mib and config.weight_sync == OBJECT_STORE:
        raise ConfigError(
            f"weight_sync_bucket_mib={config.weight_sync_bucket_mib} would have no "
            "effect with weight_sync='object_store', which sends all weights at once. "
            "Leave it out, or set weight_sync to 'nccl' or 'ipc'."
        )
    if engine == "torch":
        return
    transfers = config.weight_sync != OBJECT_STORE
    vllm_setup.check_engine_kwargs(config.engine_kwargs, transfers=transfers)
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    if not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            f"generation(engine={engine!r}) needs LLMEnvRunner: RLlib's "
            f"{config.env_runner_cls.__name__} samples with the module itself. Leave "
            "env_runner_cls unset."
        )
    if transfers:
        _validate_transfer(config)
    num_gpus = (
        config.engine_num_gpus if engine == IN_ACTOR else _num_runner_gpus(config)
    )
    if not num_gpus:
        vllm_setup.check_cpu_arguments(
            config.resolved_context_tokens(), config.engine_kwargs
        )


def _validate_transfer(config: LLMConfig) -> None:
    """Check that Learners can send weights to the engine's GPUs.

    Raises:
        ConfigError: If not.
    """
    how = f"rollouts(weight_sync={config.weight_sync!r})"
    if config.lm_lora:
        raise ConfigError(
            f"{how} sends all weights, of which LoRA changes only the adapters. Use "
            "weight_sync='object_store', which sends adapters alone, or drop lora."
        )
    if config.non_llm_module_ids or not config.trained_module_ids:
        raise ConfigError(
            f"{how} sends the weights of one trained language model and of no other "
            "policy. Use weight_sync='object_store'."
        )
    workers = config.engine_kwargs.get("tensor_parallel_size", 1)
    learner, engine = config.num_gpus_per_learner, config.engine_num_gpus
    if config.weight_sync == "nccl" and (learner < 1 or engine != workers):
        raise ConfigError(
            f"{how} needs GPUs of its own for each Learner and for each of the "
            f"engine's {workers} processes; num_gpus_per_learner={learner:g}, "
            f"engine_num_gpus={engine:g}. Set num_gpus_per_learner=1 and "
            f"engine_num_gpus={workers}, or weight_sync='ipc' on a shared GPU."
        )
    if config.weight_sync == "ipc" and not (
        workers == 1 and 0 < learner < 1 and 0 < engine < 1
    ):
        raise ConfigError(
            f"{how} needs an engine on a Learner's GPU; tensor_parallel_size="
            f"{workers}, num_gpus_per_learner={learner:g}, engine_num_gpus="
            f"{engine:g}. Set e.g. num_gpus_per_learner=0.5 and engine_num_gpus=0.5, "
            "or weight_sync='nccl' on separate GPUs."
        )


def build_engine(config: DerivedSettings) -> GenerationEngine:
    """Return the engine for one EnvRunner, not started yet."""
    from rllib_llm.engines import ActorEngine, TransferEngine, VLLMEngine

    context = config.resolved_context_tokens()
    pictures = config.chat_renderer().pictures
    is_actor = config.generation_engine == IN_ACTOR
    # One actor serves the slots of all EnvRunners.
    clients = max(1, config.num_env_runners or 0) if is_actor else 1
    transfers = config.weight_sync != OBJECT_STORE
    engine_class: Any = VLLMEngine
    if transfers:
        engine_class = functools.partial(TransferEngine, backend=config.weight_sync)
    # A function instead of an engine: the actor builds it in its own process.
    build = functools.partial(
        engine_class,
        config.resolved_model or config.lm_model,
        max_slots=config.num_envs_per_env_runner * clients,
        max_context_tokens=context,
        dtype=config.lm_dtype,
        tokenizer=config.chat_renderer().tokenizer,
        lora=config.lm_lora,
        sleeps=config.engine_sleep,
        engine_kwargs=config.engine_kwargs,
        vocabulary=config.chat_renderer().vocabulary,
        pictures=pictures,
    )
    if not is_actor:
        return build()
    return ActorEngine(
        build,
        name=config.engine_actor or new_actor_name(),
        max_context_tokens=context,
        has_tokenizer=True,
        num_gpus=config.engine_num_gpus,
        resources=config.engine_resources,
        limit=config.call_limit,
        from_learners=transfers,
        pictures=pictures,
    )


def new_actor_name() -> str:
    """Return a name for the actor that all EnvRunners of one algorithm share."""
    # Random: several algorithms may run in one Ray cluster, and names of actors are
    # shared.
    return f"rllib_llm_engine_{uuid.uuid4().hex}"


def with_engine_bundle(request: PlacementGroupFactory, config: LLMConfig) -> Any:
    """Return a Tune trial's resource request with the resources of an engine's actor.

    Actors started by a trial run inside its placement group; without a bundle this one
    would wait for ever.
    """
    if not config.engine_num_gpus and not config.engine_resources:
        return request
    bundle = {"CPU": 0.0, "GPU": config.engine_num_gpus, **config.engine_resources}
    return PlacementGroupFactory(
        [*request.bundles, bundle], strategy=config.placement_strategy
    )


def why_vllm(config: LLMConfig, parameters: int) -> str | None:
    """Return the reason to prefer vLLM to the torch engine on a GPU, if there is one.

    Args:
        config: A validated config.
        parameters: Number of parameters of its models.
    """
    is_torch = config.generation_engine == "torch" and _num_runner_gpus(config) > 0
    if not is_torch or parameters < _LAUNCH_BOUND:
        return None
    return (
        f"generation.engine='torch' has no CUDA graphs, so with {parameters / 1e9:.1f} "
        "billion parameters a GPU mostly waits for the host"
    )


def _num_runner_gpus(config: LLMConfig) -> float:
    if config.num_env_runners:
        return config.num_gpus_per_env_runner
    # The local EnvRunner samples on the device of the local Learner.
    return config.num_gpus_per_learner


def _require_effect(
    config: LLMConfig, name: str, engines: tuple[str, ...], usual: object = None
) -> None:
    value = getattr(config, name)
    if value and value != usual and config.generation_engine not in engines:
        needed = " or ".join(repr(e) for e in engines)
        raise ConfigError(
            f"{name}={value!r} would have no effect with engine="
            f"{config.generation_engine!r}; it needs engine={needed}."
        )
