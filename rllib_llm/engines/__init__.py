"""Generation engines: the interface, the torch engine, vLLM in process or an actor."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rllib_llm.engines.base import (
    ContextOverflowError,
    Generation,
    GenerationEngine,
    SamplingParams,
    SessionError,
    SessionId,
    generate,
)

if TYPE_CHECKING:
    from rllib_llm.engines.torch_engine import TorchEngine
    from rllib_llm.engines.vllm_actor import ActorEngine
    from rllib_llm.engines.vllm_engine import VLLMEngine
    from rllib_llm.engines.vllm_transfer import TransferEngine

__all__ = [
    "ActorEngine",
    "ContextOverflowError",
    "Generation",
    "GenerationEngine",
    "SamplingParams",
    "SessionError",
    "SessionId",
    "TorchEngine",
    "TransferEngine",
    "VLLMEngine",
    "generate",
]

_ENGINES = {
    "TorchEngine": "torch_engine",
    "VLLMEngine": "vllm_engine",
    "ActorEngine": "vllm_actor",
    "TransferEngine": "vllm_transfer",
}


def __getattr__(name: str) -> Any:
    """Load an engine on first use, so that the interface needs no torch."""
    if name in _ENGINES:
        module = importlib.import_module(f"rllib_llm.engines.{_ENGINES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
