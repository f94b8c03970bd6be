"""How turns are sampled."""

from __future__ import annotations

from ray.rllib.algorithms.algorithm_config import NotProvided
from typing_extensions import Self

from rllib_llm.algorithms.settings.assign import assign


class GenerationSettings:
    """Defaults and fluent method of ``generation``."""

    def _set_generation_defaults(self) -> None:
        self.generation_engine = "torch"
        self.max_new_tokens = 32
        self.max_context_tokens: int | None = None
        self.temperature = 1.0
        self.top_p = 1.0
        self.top_k = 0
        self.stop_strings: tuple[str, ...] = ()

    def generation(
        self,
        *,
        engine: str = NotProvided,
        max_new_tokens: int = NotProvided,
        max_context_tokens: int | None = NotProvided,
        temperature: float = NotProvided,
        top_p: float = NotProvided,
        top_k: int = NotProvided,
        stop_strings: list[str] = NotProvided,
    ) -> Self:
        """Choose how turns are sampled.

        Args:
            engine: "torch", the embedded engine.
            max_new_tokens: Most tokens per turn (verl ``response_length``).
            max_context_tokens: Most tokens of a conversation; None: the model's own
                limit, at most 2048.
            temperature: Sampling temperature; training uses the same distribution.
            top_p: Nucleus sampling, evaluation only (must be 1.0 in training).
            top_k: Top-k sampling, evaluation only (must be 0 in training).
            stop_strings: Texts that end a turn, beside the end-of-turn token.
        """
        assign(
            self,
            generation_engine=engine,
            max_new_tokens=max_new_tokens,
            max_context_tokens=max_context_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            stop_strings=stop_strings,
        )
        return self
