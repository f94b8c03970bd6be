"""Settings of ``evaluation``: RLlib's, and one for the initial policy."""

from __future__ import annotations

from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import stores_settings
from rllib_llm.rllib_bases import RLlibConfig


class EvaluationSettings(RLlibConfig):
    """Default and fluent method of ``evaluation``."""

    def _set_evaluation_defaults(self) -> None:
        self.evaluation_before_training = True

    @stores_settings()
    def evaluation(
        self, *, evaluation_before_training: bool = NotProvided, **kwargs: Any
    ) -> Self:
        """Set when and how policies are evaluated: RLlib's settings, and one more.

        Args:
            evaluation_before_training: With ``evaluation_interval``, also evaluate once
                before the first iteration (after SFT, if there is any). Not with
                ``evaluation_duration="auto"``.
            kwargs: RLlib's settings.
        """
        super().evaluation(**kwargs)
        return self

    @property
    def evaluates_first(self) -> bool:
        """True if the policy is evaluated before the first iteration."""
        return bool(
            self.evaluation_before_training
            and self.evaluation_interval
            # "auto" means as long as training takes in parallel, and there is no
            # training yet.
            and self.evaluation_duration != "auto"
        )
