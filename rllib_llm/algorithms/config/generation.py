"""Settings of ``generation``: sampling of turns, and engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from annotated_types import Interval, MinLen
from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import stores_settings
from rllib_llm.modules.action_head import NORMS
from rllib_llm.rllib_bases import RLlibConfig
from rllib_llm.schema import (
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
)


class GenerationSettings(RLlibConfig):
    """Defaults and fluent method of ``generation``."""

    def _set_generation_defaults(self) -> None:
        self.action_head = "generate"
        self.score_norm = "sum"
        self.generation_engine = "torch"
        self.engine_kwargs: dict[str, Any] = {}
        self.engine_num_gpus = 0.0
        self.engine_sleep = False
        # Name of the engine actor that EnvRunners share; set when building.
        self.engine_actor: str | None = None
        self.engine_forward = "auto"
        self.kv_cache_gib: float | None = None
        self.max_new_tokens = 32
        self.max_context_tokens: int | None = None
        self.temperature = 1.0
        self.top_p = 1.0
        self.top_k = 0
        self.stop_strings: tuple[str, ...] = ()

    @stores_settings(head="action_head", engine="generation_engine")
    def generation(
        self,
        *,
        head: Literal["generate", "score"] = NotProvided,
        score_norm: Annotated[str, OneOf(NORMS)] = NotProvided,
        engine: Literal["torch", "vllm", "vllm_actor"] = NotProvided,
        engine_kwargs: dict[str, Any] = NotProvided,
        engine_num_gpus: NonNegativeFloat = NotProvided,
        engine_sleep: bool = NotProvided,
        engine_forward: Literal["auto", "plain"] = NotProvided,
        kv_cache_gib: PositiveFloat | None = NotProvided,
        max_new_tokens: PositiveInt = NotProvided,
        max_context_tokens: PositiveInt | None = NotProvided,
        temperature: NonNegativeFloat = NotProvided,
        top_p: Annotated[float, Interval(gt=0, le=1)] = NotProvided,
        top_k: NonNegativeInt = NotProvided,
        stop_strings: Sequence[Annotated[str, MinLen(1)]] = NotProvided,
    ) -> Self:
        """Choose how turns are sampled.

        Args:
            head: "generate" samples text token by token; "score" chooses among the
                actions that the environment lists, by their log-probabilities.
            score_norm: The score of an action is the "sum" of its tokens'
                log-probabilities (GLAM), divided by the number of its tokens with
                "token" or of its words with "word" (TWOSOME).
            engine: "torch", the embedded engine; "vllm", vLLM in each EnvRunner;
                "vllm_actor", one vLLM in an actor that all EnvRunners share.
            engine_kwargs: Further arguments of vLLM's ``EngineArgs``, e.g.
                ``{"gpu_memory_utilization": 0.4}``.
            engine_num_gpus: GPUs of the "vllm_actor", a share of one if below 1.
            engine_sleep: Let vLLM release its GPU memory while the Learner updates, for
                engines that share the Learner's GPU.
            engine_forward: "auto" lets the embedded engine run Llama, Mistral, Qwen2
                and Qwen3 in fewer operations than transformers' modules; "plain" runs
                those modules in any case.
            kv_cache_gib: Most memory of the embedded engine's key-value cache in each
                EnvRunner; conversations that do not fit wait, or are computed again.
                None: room for ``num_envs_per_env_runner`` full contexts, at most 30 %
                of the machine's memory, or 60 % of the free memory of a GPU.
            max_new_tokens: Most tokens per turn (verl ``response_length``).
            max_context_tokens: Most tokens of a conversation; None: the model's own
                limit, at most 2048.
            temperature: Sampling temperature; training uses the same distribution.
            top_p: Nucleus sampling, evaluation only (must be 1.0 in training).
            top_k: Top-k sampling, evaluation only (must be 0 in training).
            stop_strings: Texts that end a turn, beside the end-of-turn token.
        """
        return self
