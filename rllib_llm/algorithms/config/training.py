"""Settings of ``training`` that all algorithms share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from annotated_types import Gt, Interval

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.algorithms.config.sft import SFTGiven
from rllib_llm.components.registry import Spec, Specs
from rllib_llm.losses.aggregation import LOSS_AGGREGATIONS
from rllib_llm.losses.importance_correction import TIS_LEVELS
from rllib_llm.losses.kl import KL_ESTIMATORS
from rllib_llm.modules.tiny import TinySizes
from rllib_llm.schema import (
    Fraction,
    Hint,
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
)


class RefModelGiven(TypedDict, total=False):
    """A reference model that is built: its name or folder, sizes and fine-tuning."""

    model: str
    tiny: TinySizes
    sft: SFTGiven


_BAND = Hint(
    "The band of kept ratios must include 1, e.g. 0.5 and 5.0; None leaves an end open."
)
BelowOne = Annotated[float, Interval(gt=0, lt=1), _BAND]
AboveOne = Annotated[float, Gt(1), _BAND]


class TrainingSettings(DeclaredSettings):
    """Settings of ``training``."""

    training = fluent_method("Set the training settings.")

    critic_lr: PositiveFloat | None = setting(
        None, "Learning rate of the critic; None: ``lr``."
    )
    critic_warmup_iters: NonNegativeInt = setting(
        0, "Iterations at the start in which only the critic is trained."
    )
    weight_decay: NonNegativeFloat = setting(0.0, "AdamW's decoupled weight decay.")
    # Token positions with padding, not rows: memory grows with positions.
    micro_batch_tokens: PositiveInt | None = setting(
        4096,
        """Most tokens per forward pass of the Learner, padding included; None: the
        whole minibatch. Gradients do not depend on it.""",
    )
    packing: bool = setting(
        False,
        """Put the rows of a micro-batch one after another into one, without padding
        (for flash attention; other implementations become slower). Gradients do not
        depend on it.""",
    )
    head_chunk_tokens: PositiveInt | None = setting(
        None,
        """Tokens whose logits are computed at once, to save memory with large
        vocabularies; None: all of a micro-batch.""",
    )
    matmul_precision: Literal["auto", "highest", "high", "medium"] = setting(
        "auto",
        """Precision of float32 products in the Learner (torch's
        ``set_float32_matmul_precision``); "auto" is "highest", computed faster where
        that changes no result.""",
    )
    # Not the engine's: the requests of a decoding batch depend on timing, and
    # change the last bits of its log-probabilities.
    old_logps: Literal["learner", "engine"] = setting(
        "learner",
        """Source of the old log-probabilities: the "learner", which recomputes them,
        or the "engine", which sampled.""",
    )
    tis: Annotated[str, OneOf(("auto", *TIS_LEVELS))] | None = setting(
        "auto",
        """Truncated importance sampling between engine and learner per "token" or
        "sequence"; "auto": per token where the engine is not exact; None: off.""",
    )
    tis_clip: PositiveFloat = setting(
        2.0, "Largest weight of a token or sequence under ``tis``."
    )
    # Ratios of learner to engine, around 1. None: no bound.
    is_mask_low: BelowOne | None = setting(
        None,
        "Ratio of learner to engine below which tokens are masked; None: no bound.",
    )
    is_mask_high: AboveOne | None = setting(
        None, "Ratio above which tokens are masked; None: no bound."
    )
    is_sequence_mask_low: BelowOne | None = setting(
        None, "As ``is_mask_low``, for whole sequences."
    )
    is_sequence_mask_high: AboveOne | None = setting(
        None, "As ``is_mask_high``, for whole sequences."
    )
    # RLlib's two checks would repeat that of nan_policy, and need memory.
    torch_skip_nan_gradients = setting(True)
    nan_policy: Literal["skip", "error"] = setting(
        "skip",
        """A minibatch with a non-finite loss or gradient is skipped and counted
        ("skip"), or ends the run ("error").""",
    )
    loss_agg_mode: Annotated[str, OneOf(LOSS_AGGREGATIONS)] = setting(
        "token-mean", "Aggregation of token losses (verl ``loss_agg_mode``)."
    )
    loss_agg_constant: PositiveFloat | None = setting(
        None, 'Length in tokens by which "seq-mean-token-sum-norm" divides.'
    )
    loss_mask_pattern: str | None = setting(
        None,
        """Regular expression; sampled tokens whose text it matches are left out of the
        loss, e.g. the thoughts, ``<think>.*?(</think>|$)``. None: no token.""",
    )
    ref_kl_coeff: NonNegativeFloat = setting(
        0.0,
        """Coefficient of the KL divergence to the frozen reference policy; 0: no
        reference.""",
    )
    # Of the three, k1 has no expected gradient in the loss; k3 is never negative.
    ref_kl_estimator: Annotated[str, OneOf(KL_ESTIMATORS)] = setting(
        "k3", 'Estimator of the KL divergence, "k1", "k2" or "k3".'
    )
    # k3 grows exponentially in the log-ratio: one token could dominate the step.
    ref_kl_clip: PositiveFloat | None = setting(
        10.0, 'Largest KL of one token by "k3" (verl: 10); None: no bound.'
    )
    ref_kl_in: Literal["loss", "reward"] = setting(
        "loss", 'Whether it is part of the "loss" or of the "reward".'
    )
    ref_model: str | dict[str, Any] | None = setting(
        None,
        """Reference model in place of the initial policy, e.g. a teacher: a folder, hub
        id or GGUF file, or a dict of ``model``, ``tiny`` (sizes) and ``sft``
        (settings), which is built once. It needs the policy's tokenizer.""",
        kind=str | RefModelGiven | None,
    )
    ref_kl_target: PositiveFloat | None = setting(
        None, "KL to which ``ref_kl_coeff`` is adapted; None: fixed."
    )
    policy_loss: Spec | None = setting(
        None, "Component that replaces the algorithm's loss (docs/losses.md)."
    )
    loss_terms: Specs = setting((), "Components that are added to the loss.")
    token_advantage_transforms: Specs = setting(
        (), "Components that change advantages per token."
    )
    shared_reward_fraction: Fraction = setting(
        0.0, "Share of every reward that all agents of the episode divide equally."
    )
    max_staleness: NonNegativeInt | None = setting(
        None,
        """With ``env_runners.sample_ahead``: most updates between the weights that
        sample an episode and its training; groups that take longer are waited for.
        None: ``sample_ahead``.""",
    )
    # RLlib's 128 would count time steps.
    minibatch_size: PositiveInt | None = setting(
        None,
        "Episodes per optimiser step, over all Learners; None: all of the iteration.",
    )
    num_epochs: PositiveInt = setting(1, "Passes over an iteration's episodes.")
