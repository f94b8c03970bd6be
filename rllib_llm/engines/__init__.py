"""Generation engines: the interface and the torch engine that is always there."""

from __future__ import annotations

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

__all__ = [
    "ContextOverflowError",
    "Generation",
    "GenerationEngine",
    "SamplingParams",
    "SessionError",
    "SessionId",
    "TorchEngine",
    "generate",
]


def __getattr__(name: str) -> Any:
    """Load the torch engine on first use, so that the interface needs no torch."""
    if name == "TorchEngine":
        from rllib_llm.engines.torch_engine import TorchEngine

        return TorchEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
