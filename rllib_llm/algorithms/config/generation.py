"""Settings of ``generation``: sampling of turns, and engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Interval, MinLen

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
    state,
)
from rllib_llm.modules.action_head import NORMS
from rllib_llm.schema import (
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
)


class GenerationSettings(DeclaredSettings):
    """Settings of ``generation``."""

    generation = fluent_method("Choose how turns are sampled.")

    action_head: Literal["generate", "score"] = setting(
        "generate",
        """"generate" samples text token by token; "score" chooses among the actions
        that the environment lists, by their log-probabilities.""",
        key="head",
    )
    score_norm: Annotated[str, OneOf(NORMS)] = setting(
        "sum",
        """The score of an action is the "sum" of its tokens' log-probabilities (GLAM),
        divided by the number of its tokens with "token" or of its words with "word"
        (TWOSOME).""",
    )
    generation_engine: Literal["torch", "vllm", "vllm_actor"] = setting(
        "torch",
        """"torch", the embedded engine; "vllm", vLLM in each EnvRunner; "vllm_actor",
        one vLLM in an actor that all EnvRunners share.""",
        key="engine",
    )
    engine_kwargs: dict[str, Any] = setting(
        {},
        """Further arguments of vLLM's ``EngineArgs``, e.g.
        ``{"gpu_memory_utilization": 0.4}``.""",
    )
    engine_num_gpus: NonNegativeFloat = setting(
        0.0, 'GPUs of the "vllm_actor", a share of one if below 1.'
    )
    engine_sleep: bool = setting(
        False,
        """Let vLLM release its GPU memory while the Learner updates, for engines that
        share the Learner's GPU.""",
    )
    engine_forward: Literal["auto", "plain"] = setting(
        "auto",
        """"auto" lets the embedded engine run Llama, Mistral, Qwen2 and Qwen3 in
        fewer operations than transformers' modules; "plain" runs those modules in
        any case.""",
    )
    num_speculative_tokens: NonNegativeInt = setting(
        24,
        """Most tokens that the embedded engine drafts from earlier turns and computes
        in one forward pass; 0: none. The sampled tokens are the same up to rounding.
        For vLLM see its ``speculative_config``.""",
    )
    kv_cache_gib: PositiveFloat | None = setting(
        None,
        """Most memory of the embedded engine's key-value cache in each EnvRunner;
        conversations that do not fit wait, or are computed again. None: room for
        ``num_envs_per_env_runner`` full contexts, at most 30 % of the machine's
        memory, or 60 % of what a GPU has beside the planned memory of a Learner in the
        same process.""",
    )
    max_new_tokens: PositiveInt = setting(
        32, "Most tokens per turn (verl ``response_length``)."
    )
    max_context_tokens: PositiveInt | None = setting(
        None,
        "Most tokens of a conversation; None: the model's own limit, at most 2048.",
    )
    temperature: NonNegativeFloat = setting(
        1.0, "Sampling temperature; training uses the same distribution."
    )
    top_p: Annotated[float, Interval(gt=0, le=1)] = setting(
        1.0, "Nucleus sampling, evaluation only (must be 1.0 in training)."
    )
    top_k: NonNegativeInt = setting(
        0, "Top-k sampling, evaluation only (must be 0 in training)."
    )
    mask_top_p: Annotated[float, Interval(gt=0, lt=1)] | None = setting(
        None,
        """Restrict tokens, in sampling and in training, to this nucleus of a *mask
        policy*, an earlier copy of the policy (NLPO); None: all tokens. Evaluation
        is not restricted.""",
    )
    mask_update_iters: PositiveInt = setting(
        20, "Updates after which the mask policy becomes a copy of the policy."
    )
    stop_strings: Sequence[Annotated[str, MinLen(1)]] = setting(
        (), "Texts that end a turn, beside the end-of-turn token."
    )

    # Name of the engine actor that EnvRunners share; set when building.
    engine_actor: str | None = state(None)
