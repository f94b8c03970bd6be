"""Evaluation, RLlib's and before training."""

from __future__ import annotations

from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import assign


class EvaluationSettings:
    """Default and fluent method of ``evaluation``."""

    def _set_evaluation_defaults(self) -> None:
        self.evaluation_before_training = True

    def evaluation(
        self, *, evaluation_before_training: bool = NotProvided, **kwargs: Any
    ) -> Self:
        """Set when and how policies are evaluated; all of RLlib's settings, and one.

        Args:
            evaluation_before_training: Where ``evaluation_interval`` is set, evaluate
                once before the first iteration as well: after SFT, if there is a warm
                start. Not with ``evaluation_duration="auto"``.
            kwargs: RLlib's.
        """
        super().evaluation(**kwargs)
        assign(self, evaluation_before_training=evaluation_before_training)
        return self

    @property
    def evaluates_first(self) -> bool:
        """Return whether the policy is evaluated before the first iteration."""
        return bool(
            self.evaluation_before_training
            and self.evaluation_interval
            and self.evaluation_duration != "auto"
        )
