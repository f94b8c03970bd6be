"""Settings of ``fault_tolerance``: failing EnvRunners and hanging environments."""

from __future__ import annotations

from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import stores_settings
from rllib_llm.errors import ConfigError
from rllib_llm.rllib_bases import RLlibConfig
from rllib_llm.schema import NonNegativeInt


class FaultToleranceSettings(RLlibConfig):
    """Defaults and fluent method of ``fault_tolerance``."""

    def _set_fault_tolerance_defaults(self) -> None:
        self.sample_locally_if_none = False
        self.max_hung_envs_per_env_runner = 32

    @stores_settings()
    def fault_tolerance(
        self,
        *,
        sample_locally_if_none: bool = NotProvided,
        max_hung_envs_per_env_runner: NonNegativeInt = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Choose what happens when EnvRunners or environments fail.

        Args:
            sample_locally_if_none: Whether the local EnvRunner samples an iteration
                alone when no remote one is healthy. Otherwise the run waits RLlib's
                delay_between_env_runner_restarts_s plus
                env_runner_health_probe_timeout_s for one, and then ends with an error.
            max_hung_envs_per_env_runner: Environments that may hang in a call (each
                keeps a thread and its memory) before their EnvRunner is restarted.
            kwargs: RLlib's settings.
        """
        super().fault_tolerance(**kwargs)
        return self

    def validate_fault_tolerance(self) -> None:
        """Check the settings against those of other sections.

        Raises:
            ConfigError: If there is no local EnvRunner to sample with.
        """
        if self.sample_locally_if_none and not self.create_local_env_runner:
            raise ConfigError(
                "fault_tolerance.sample_locally_if_none=True needs the local EnvRunner "
                "that env_runners.create_local_env_runner=False leaves out. Drop one "
                "of the two."
            )
