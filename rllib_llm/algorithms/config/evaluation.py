"""Settings of ``evaluation``: RLlib's, and one for the initial policy."""

from __future__ import annotations

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)


class EvaluationSettings(DeclaredSettings):
    """Settings of ``evaluation``."""

    evaluation = fluent_method(
        "Set when and how policies are evaluated: RLlib's settings, and one more."
    )

    evaluation_before_training: bool = setting(
        True,
        """With ``evaluation_interval``, also evaluate once before the first iteration
        (after SFT, if there is any). Not with ``evaluation_duration="auto"``.""",
    )

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
