"""Settings of ``sft``: supervised fine-tuning on demonstrations before RL."""

from __future__ import annotations

from typing import TypedDict

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.schema import Fraction, NonNegativeInt, PositiveFloat, PositiveInt


class SFTGiven(TypedDict, total=False):
    """Settings of ``sft`` of a model that is built beside the policy."""

    demonstrations: NonNegativeInt
    mistake_rate: Fraction
    epochs: PositiveInt
    lr: PositiveFloat
    minibatch_size: PositiveInt
    observation_weight: Fraction


class SFTSettings(DeclaredSettings):
    """Settings of ``sft``."""

    sft = fluent_method(
        """Fine-tune on scripted demonstrations before RL, once, cached.

        The environment's ``expert_action`` plays ``demonstrations`` episodes; with
        probability ``mistake_rate`` a turn is replaced by ``random_action``, so that
        RL has mistakes to correct. The policy imitates all turns.
        """,
        prefix="sft_",
    )

    sft_demonstrations: NonNegativeInt = setting(
        0, "Episodes; 0 switches the stage off (default)."
    )
    sft_mistake_rate: Fraction = setting(0.3, "Share of random turns, in [0, 1].")
    sft_epochs: PositiveInt = setting(2, "Passes over the demonstrations.")
    sft_lr: PositiveFloat = setting(1e-3, "Learning rate, decayed linearly to a tenth.")
    sft_minibatch_size: PositiveInt = setting(8, "Episodes per optimiser step.")
    sft_observation_weight: Fraction = setting(
        0.0,
        """Weight of prompt tokens relative to the expert's, in [0, 1]. With 0 they
        are not trained; with 0.1 to 0.2 small models learn sooner to copy from the
        prompt.""",
    )
