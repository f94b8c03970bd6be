"""Supervised fine-tuning on demonstrations before RL."""

from __future__ import annotations

from typing import Self

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import assign
from rllib_llm.schema import Fraction, NonNegativeInt, PositiveFloat, PositiveInt


class SFTSettings:
    """Defaults and fluent method of ``sft``."""

    def _set_sft_defaults(self) -> None:
        self.sft_demonstrations = 0
        self.sft_mistake_rate = 0.3
        self.sft_epochs = 2
        self.sft_lr = 1e-3
        self.sft_minibatch_size = 8
        self.sft_observation_weight = 0.0

    def sft(
        self,
        *,
        demonstrations: NonNegativeInt = NotProvided,
        mistake_rate: Fraction = NotProvided,
        epochs: PositiveInt = NotProvided,
        lr: PositiveFloat = NotProvided,
        minibatch_size: PositiveInt = NotProvided,
        observation_weight: Fraction = NotProvided,
    ) -> Self:
        """Fine-tune on scripted demonstrations before RL, once, cached.

        The environment's ``expert_action`` plays ``demonstrations`` episodes; with
        probability ``mistake_rate`` a turn is replaced by ``random_action``, so that
        there is something left to learn. The policy imitates all turns.

        Args:
            demonstrations: Episodes; 0 switches the stage off (default).
            mistake_rate: Share of random turns, in [0, 1].
            epochs: Passes over the demonstrations.
            lr: Learning rate, decayed linearly to a tenth.
            minibatch_size: Episodes per optimiser step.
            observation_weight: Weight of tokens that are read, relative to those that
                are said, in [0, 1]. With 0 they are not learnt; 0.1 to 0.2 teaches
                small models sooner to copy what they read.
        """
        assign(
            self,
            sft_demonstrations=demonstrations,
            sft_mistake_rate=mistake_rate,
            sft_epochs=epochs,
            sft_lr=lr,
            sft_minibatch_size=minibatch_size,
            sft_observation_weight=observation_weight,
        )
        return self
