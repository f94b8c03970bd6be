"""Settings of ``fault_tolerance``: failing EnvRunners and hanging environments."""

from __future__ import annotations

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.errors import ConfigError
from rllib_llm.schema import NonNegativeInt


class FaultToleranceSettings(DeclaredSettings):
    """Settings of ``fault_tolerance``."""

    fault_tolerance = fluent_method(
        "Choose what happens when EnvRunners or environments fail."
    )

    sample_locally_if_none: bool = setting(
        False,
        """Whether the local EnvRunner samples an iteration alone when no remote one is
        healthy. Otherwise the run waits RLlib's delay_between_env_runner_restarts_s
        plus env_runner_health_probe_timeout_s for one, and then ends with an error.""",
    )
    max_hung_envs_per_env_runner: NonNegativeInt = setting(
        32,
        """Environments that may hang in a call (each keeps a thread and its memory)
        before their EnvRunner is restarted.""",
    )

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
