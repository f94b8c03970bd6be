"""Settings of ``alarms``: monitored metrics, thresholds and actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from annotated_types import Interval
from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import assign
from rllib_llm.monitoring.alarms.settings import BoundAlarm, bind_alarms
from rllib_llm.monitoring.alarms.snapshots import MEMORY, PLACES
from rllib_llm.rllib_bases import RLlibConfig
from rllib_llm.schema import NonNegativeFloat, NonNegativeInt, OneOf, PositiveInt

Settings = Mapping[str, Any] | bool | None


class AlarmSettings(RLlibConfig):
    """Defaults and fluent method of ``alarms``."""

    def _set_alarm_defaults(self) -> None:
        self.alarm_settings: dict[str, Settings] = {}
        self.alarm_lr_factor = 0.5
        self.alarm_min_lr = 1e-8
        self.alarm_max_rollbacks = 3
        self.alarm_snapshot_interval = 5
        self.alarm_snapshots = MEMORY

    def alarms(
        self,
        *,
        kl: Settings = NotProvided,
        entropy_collapse: Settings = NotProvided,
        entropy_explosion: Settings = NotProvided,
        reward_variance: Settings = NotProvided,
        repetition: Settings = NotProvided,
        echo: Settings = NotProvided,
        copying: Settings = NotProvided,
        length: Settings = NotProvided,
        truncation: Settings = NotProvided,
        no_valid_action: Settings = NotProvided,
        invalid_turns: Settings = NotProvided,
        unended_turns: Settings = NotProvided,
        grad_norm: Settings = NotProvided,
        nan: Settings = NotProvided,
        return_drop: Settings = NotProvided,
        train_inference_mismatch: Settings = NotProvided,
        stalled: Settings = NotProvided,
        lr_factor: Annotated[float, Interval(gt=0, lt=1)] = NotProvided,
        min_lr: NonNegativeFloat = NotProvided,
        max_rollbacks: NonNegativeInt = NotProvided,
        snapshot_interval: PositiveInt = NotProvided,
        snapshots: Annotated[str, OneOf(PLACES)] = NotProvided,
    ) -> Self:
        """Choose what happens when a run goes wrong (docs/alarms.md).

        Every alarm takes a mapping of thresholds and ``action`` ("warn", the default,
        "lower_lr", "rollback" or "stop"), or False, which switches it off.

        Args:
            kl: The policy changes too much in an update.
            entropy_collapse: The policy becomes deterministic before it succeeds.
            entropy_explosion: The policy becomes noise.
            reward_variance: Returns of a group are equal, so nothing is learned.
            repetition: Turns repeat themselves.
            echo: Turns repeat earlier turns.
            copying: Turns repeat the prompt.
            length: Turns become long.
            truncation: Episodes run out of tokens.
            no_valid_action: No turn has been a valid action since the run began.
            invalid_turns: More turns than before are invalid actions.
            unended_turns: More turns than before reach ``max_new_tokens``.
            grad_norm: Gradients are far larger than before.
            nan: A loss or gradient is not finite.
            return_drop: The return falls far below its best.
            train_inference_mismatch: Log-probabilities of sampling and training differ.
            stalled: No turn finished for ``after_s`` seconds while sampling.
            lr_factor: Factor of learning rates for "lower_lr" and "rollback".
            min_lr: Lower bound of lowered learning rates.
            max_rollbacks: Number of rollbacks after which the run continues; the next
                one stops it. 0: the first one stops it.
            snapshot_interval: Iterations without alarm between two snapshots; used only
                if an alarm's action is "rollback".
            snapshots: Storage of snapshots: "memory" or "disk" of the driver.
        """
        # locals() first: any local variable before it would count as an alarm.
        given = {k: v for k, v in locals().items() if k not in ("self", *_GENERAL)}
        self.alarm_settings = {
            **self.alarm_settings,
            **{k: v for k, v in given.items() if v is not NotProvided},
        }
        bind_alarms(self.alarm_settings)
        assign(
            self,
            alarm_lr_factor=lr_factor,
            alarm_min_lr=min_lr,
            alarm_max_rollbacks=max_rollbacks,
            alarm_snapshot_interval=snapshot_interval,
            alarm_snapshots=snapshots,
        )
        return self

    def chosen_alarms(self) -> dict[str, BoundAlarm]:
        """Return the active alarms, by name."""
        return bind_alarms(self.alarm_settings)

    def validate_alarms(self) -> None:
        """Check the settings of all alarms.

        Raises:
            ConfigError: With the value and the rule.
        """
        self.chosen_alarms()


_GENERAL = ("lr_factor", "min_lr", "max_rollbacks", "snapshot_interval", "snapshots")
