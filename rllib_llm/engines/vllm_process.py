"""The only vLLM engine of a process, which several VLLMEngines use in turn."""

from __future__ import annotations

import dataclasses
import logging
import weakref
from typing import TYPE_CHECKING, Any

import torch

from rllib_llm.engines import vllm_setup
from rllib_llm.engines.base import SessionError

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

    from rllib_llm.engines.requests import Request
    from rllib_llm.engines.vllm_engine import VLLMEngine

logger = logging.getLogger("rllib_llm")


@dataclasses.dataclass
class Live:
    """The only vLLM engine of the process.

    Attributes:
        llm: vLLM's ``LLMEngine``.
        arguments: Its ``EngineArgs``.
        holder: The VLLMEngine whose weights it holds.
        requests: The holder's unfinished requests.
        asleep: vLLM's names of the memory that is released.
        is_loaded: Whether it holds all weights of the holder.
        is_changed: Whether its weights differ from those of the model's folder.
    """

    llm: LLMEngine
    arguments: dict[str, Any]
    holder: weakref.ref[VLLMEngine] | None = None
    requests: dict[int, Request] = dataclasses.field(default_factory=dict)
    asleep: set[str] = dataclasses.field(default_factory=set)
    is_loaded: bool = False
    is_changed: bool = False


_live: Live | None = None


def running() -> Live | None:
    """Return the vLLM engine of this process, if one runs."""
    return _live


def start_vllm(settings: dict[str, Any]) -> Live:
    """Return the process's vLLM engine, idle and with these settings."""
    global _live
    vllm_setup.prepare_environment()
    from vllm import EngineArgs, LLMEngine
    from vllm.platforms import current_platform

    arguments = vllm_setup.engine_arguments(
        **settings, on_cpu=current_platform.is_cpu()
    )
    if _live is not None:
        _release(_live)
        # vLLM supports one engine per process.
        if not _serves(_live.arguments, arguments):
            _stop(_live)
            _live = None
    if _live is None:
        logger.info("Starting vLLM with %s", arguments)
        llm = LLMEngine.from_engine_args(EngineArgs(**arguments))
        _live = Live(llm, arguments)
    return _live


def repack(model: torch.nn.Module) -> None:
    """Process the weights that vLLM does not process when it reloads them.

    On a CPU vLLM multiplies with packed weights. An output layer that is tied to the
    embedding loads no weights itself and would keep the packed copy of the old ones.
    Experts are packed at the first load only, and reloaded weights would be read as if
    they were packed.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if method is not None and isinstance(layer, ParallelLMHead):
            method.process_weights_after_loading(layer)
        kernel = getattr(method, "moe_kernel", None)
        if kernel is not None and current_platform.is_cpu():
            kernel.fused_experts.process_weights_after_loading(layer)


def _serves(running: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether the running engine can serve an engine with other arguments."""
    # These change the speed, not the results.
    free = ("max_num_seqs", "max_num_batched_tokens", "load_format")
    names = (running.keys() | wanted.keys()).difference(free)
    return all(running.get(name) == wanted.get(name) for name in names)


def _release(live: Live) -> None:
    """Abort the requests of a deleted holder.

    Raises:
        SessionError: If the holder still exists and has unfinished requests.
    """
    if not live.requests:
        return
    if live.holder is not None and live.holder() is not None:
        raise SessionError(
            "vLLM supports one engine per process, and another one has "
            f"{len(live.requests)} unfinished requests. Finish those first."
        )
    live.llm.abort_request([str(name) for name in live.requests])


def _stop(live: Live) -> None:
    """Stop vLLM's engine and free its memory."""
    from vllm.distributed import cleanup_dist_env_and_memory

    logger.info("Stopping vLLM: other settings are needed.")
    live.llm.engine_core.shutdown()
    cleanup_dist_env_and_memory()
