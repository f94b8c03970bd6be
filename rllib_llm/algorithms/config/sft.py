"""Settings of ``sft``: supervised fine-tuning on demonstrations before RL."""

from __future__ import annotations

from typing import Self

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import stores_settings
from rllib_llm.rllib_bases import RLlibConfig
from rllib_llm.schema import Fraction, NonNegativeInt, PositiveFloat, PositiveInt


class SFTSettings(RLlibConfig):
    """Defaults and fluent method of ``sft``."""

    def _set_sft_defaults(self) -> None:
        self.sft_demonstrations = 0
        self.sft_mistake_rate = 0.3
        self.sft_epochs = 2
        self.sft_lr = 1e-3
        self.sft_minibatch_size = 8
        self.sft_observation_weight = 0.0

    @stores_settings("sft_")
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
        RL has mistakes to correct. The policy imitates all turns.

        Args:
            demonstrations: Episodes; 0 switches the stage off (default).
            mistake_rate: Share of random turns, in [0, 1].
            epochs: Passes over the demonstrations.
            lr: Learning rate, decayed linearly to a tenth.
            minibatch_size: Episodes per optimiser step.
            observation_weight: Weight of prompt tokens relative to the expert's, in
                [0, 1]. With 0 they are not trained; with 0.1 to 0.2 small models
                learn sooner to copy from the prompt.
        """
        return self
