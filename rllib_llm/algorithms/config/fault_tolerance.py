"""Settings of ``fault_tolerance``: actors that fail or do not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
)
from rllib_llm.errors import ConfigError
from rllib_llm.remote_calls import TimeLimit
from rllib_llm.schema import NonNegativeInt, PositiveFloat, PositiveInt

_CALL_TIMEOUT_S = 1800.0
_BATCH_TIMEOUT_S = 86_400.0


class FaultToleranceSettings(DeclaredSettings):
    """Settings of ``fault_tolerance``."""

    if TYPE_CHECKING:
        generation_engine: Literal["torch", "vllm", "vllm_actor"]

    fault_tolerance = fluent_method(
        "Choose what happens when EnvRunners or environments fail."
    )

    sample_locally_if_none: bool = setting(
        False,
        """If True, the local EnvRunner samples an iteration alone when no remote one is
        healthy. If False, the run waits for them (``min_healthy_timeout_s``).""",
    )
    min_healthy_env_runners: PositiveInt = setting(
        1,
        """EnvRunners that an iteration needs. With fewer it waits until others have
        been restarted.""",
    )
    min_healthy_timeout_s: PositiveFloat | None = setting(
        None,
        """Seconds of that wait; then the run ends with an error. None: RLlib's
        delay_between_env_runner_restarts_s plus env_runner_health_probe_timeout_s.""",
    )
    call_timeout_s: PositiveFloat = setting(
        _CALL_TIMEOUT_S,
        """Seconds that a call to another process may take which neither samples nor
        trains: weights, states, calls of an engine's actor. An EnvRunner or engine that
        does not answer is restarted; a Learner ends the run with an error.""",
    )
    batch_timeout_s: PositiveFloat = setting(
        _BATCH_TIMEOUT_S,
        """Seconds that an EnvRunner may take to sample its part of a batch, and
        Learners for the update. An EnvRunner that takes longer is restarted, and its
        groups are sampled again.""",
    )
    max_hung_envs_per_env_runner: NonNegativeInt = setting(
        32,
        """Environments that may hang in a call (each keeps a thread and its memory)
        before their EnvRunner is restarted.""",
    )

    @property
    def call_limit(self) -> TimeLimit:
        """Time limit of calls that neither sample nor train."""
        return TimeLimit(self.call_timeout_s, "fault_tolerance.call_timeout_s")

    @property
    def batch_limit(self) -> TimeLimit:
        """Time limit of sampling a batch, and of an update."""
        return TimeLimit(self.batch_timeout_s, "fault_tolerance.batch_timeout_s")

    @property
    def longest_wait_s(self) -> float:
        """Seconds that an iteration waits for EnvRunners that restart."""
        if self.min_healthy_timeout_s is not None:
            return self.min_healthy_timeout_s
        restart_s = self.delay_between_env_runner_restarts_s
        return restart_s + self.env_runner_health_probe_timeout_s

    def validate_fault_tolerance(self) -> None:
        """Check the settings against those of other sections.

        Raises:
            ConfigError: If one cannot take effect, or contradicts another one.
        """
        if self.sample_locally_if_none and not self.create_local_env_runner:
            raise ConfigError(
                "fault_tolerance.sample_locally_if_none=True needs the local EnvRunner "
                "that env_runners.create_local_env_runner=False leaves out. Drop one "
                "of the two."
            )
        if self.in_evaluation:
            return
        self._validate_min_healthy()
        self._validate_min_healthy_timeout()
        self._validate_call_timeouts()

    def _validate_min_healthy(self) -> None:
        least, number = self.min_healthy_env_runners, self.num_env_runners or 0
        if least == 1:
            return
        given = f"fault_tolerance.min_healthy_env_runners={least}"
        if not number:
            raise ConfigError(
                f"{given} has no effect with num_env_runners=0, which samples in the "
                "driver. Leave it out, or set env_runners.num_env_runners."
            )
        if least > number:
            raise ConfigError(
                f"{given} must be at most env_runners.num_env_runners={number}. Lower "
                "it, or start more EnvRunners."
            )
        if self.sample_locally_if_none:
            raise ConfigError(
                f"{given} waits for EnvRunners, where sample_locally_if_none=True does "
                "without any. Leave one of the two out."
            )

    def _validate_min_healthy_timeout(self) -> None:
        if self.min_healthy_timeout_s is None:
            return
        for never_waits, cause in (
            (not self.num_env_runners, "env_runners.num_env_runners=0"),
            (self.sample_locally_if_none, "sample_locally_if_none=True"),
            (not self.restart_failed_env_runners, "restart_failed_env_runners=False"),
        ):
            if never_waits:
                raise ConfigError(
                    f"fault_tolerance.min_healthy_timeout_s="
                    f"{self.min_healthy_timeout_s:g} has no effect with {cause}: the "
                    "run never waits for EnvRunners. Leave one of the two out."
                )

    def _validate_call_timeouts(self) -> None:
        workers = bool(self.num_env_runners or self.num_learners)
        others = bool(
            self.evaluation_num_env_runners or self.generation_engine == "vllm_actor"
        )
        for name, value, default, has_effect in (
            ("call", self.call_timeout_s, _CALL_TIMEOUT_S, workers or others),
            ("batch", self.batch_timeout_s, _BATCH_TIMEOUT_S, workers),
        ):
            if value != default and not has_effect:
                raise ConfigError(
                    f"fault_tolerance.{name}_timeout_s={value:g} has no effect with "
                    "num_env_runners=0 and num_learners=0: nothing is called in "
                    "another process. Leave it out."
                )
