"""Settings of sampling ahead of the Learner."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.errors import ConfigError
from rllib_llm.schema import NonNegativeInt

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


class SamplingAheadSettings(DeclaredSettings):
    """Settings of ``env_runners``."""

    if TYPE_CHECKING:
        max_staleness: int | None
        sample_locally_if_none: bool
        engine_sleep: bool

        @property
        def corrects_staleness(self) -> bool: ...

    env_runners = fluent_method("Set RLlib's settings of EnvRunners, and one more.")

    sample_ahead: NonNegativeInt = setting(
        0,
        """Batches that EnvRunners sample while the Learner trains (docs/scaling.md); 0:
        sampling and training take turns.""",
    )

    @property
    def largest_staleness(self) -> int:
        """Most updates between the weights that sample an episode and its training."""
        given = self.max_staleness
        return self.sample_ahead if given is None else given

    def validate_sampling_ahead(self) -> None:
        """Check the settings against those of other sections.

        Raises:
            ConfigError: If another setting does not work with them.
        """
        ahead = self.sample_ahead
        if not ahead:
            if self.max_staleness:
                raise ConfigError(
                    f"training.max_staleness={self.max_staleness} has no effect "
                    "without env_runners.sample_ahead: every episode is sampled with "
                    "the newest weights. Set sample_ahead=1 or more, or leave it out."
                )
            return
        if self.largest_staleness < ahead:
            raise ConfigError(
                f"training.max_staleness={self.max_staleness} must be at least "
                f"env_runners.sample_ahead={ahead}: episodes that are sampled {ahead} "
                "batches ahead are trained that many updates later. Raise it, or leave "
                "it out."
            )
        for is_wrong, problem in self.ahead_obstacles():
            if is_wrong:
                raise ConfigError(f"env_runners.sample_ahead={ahead} {problem}")

    def ahead_obstacles(self) -> list[tuple[bool, str]]:
        """Return conditions under which nothing is sampled ahead, with message ends."""
        from rllib_llm.algorithms.config.check_assistants import asks_runners

        return [
            (
                asks_runners(cast("LLMConfig", self)),
                "keeps EnvRunners busy, but rollouts.assistants has a policy or model "
                "that answers there. Use api or script.",
            ),
            (
                not self.num_env_runners,
                "needs EnvRunners in processes of their own. Set num_env_runners=1 or "
                "more.",
            ),
            (
                self.sample_locally_if_none,
                "never samples on the driver. Leave "
                "fault_tolerance.sample_locally_if_none out.",
            ),
            (
                self.engine_sleep,
                "keeps engines busy during the update. Leave generation.engine_sleep "
                "out.",
            ),
            (
                not self.corrects_staleness,
                "trains on older weights' samples, but tis=None with "
                "old_logps='learner' corrects nothing: PPO's ratio compares the "
                "learner with itself. Set tis='auto', or old_logps='engine'.",
            ),
        ]
