"""Guard of a run: checks every result and takes the actions of its alarms."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_llm.callbacks import result_keys
from rllib_llm.monitoring.alarms.catalogue import LOWER_LR, ROLLBACK, STOP, WARN
from rllib_llm.monitoring.alarms.detectors import window_mean
from rllib_llm.monitoring.alarms.metric_history import History
from rllib_llm.monitoring.alarms.settings import BoundAlarm
from rllib_llm.monitoring.alarms.snapshots import Snapshots

if TYPE_CHECKING:
    from rllib_llm.monitoring.alarms.algorithm_mixin import GuardedAlgorithm
    from rllib_llm.types import LLMConfig

logger = logging.getLogger("rllib_llm")

ALARMS_KEY = "alarms"  # of the result
MESSAGES = "messages"  # below it, with STOPPED_BY and the rest
STOPPED_BY = "stopped_by"
_NUM_ROLLBACKS = "num_rollbacks"
_LR_SCALE = "lr_scale"


@dataclasses.dataclass(frozen=True)
class Firing:
    """An alarm whose condition holds.

    Attributes:
        bound: The alarm and its settings.
        module_id: The policy; None: the whole run.
        description: The values that fulfil the condition.
    """

    bound: BoundAlarm
    module_id: str | None
    description: str

    @property
    def key(self) -> str:
        """Identifies the alarm and the policy."""
        return f"{self.bound.alarm.name}/{self.module_id or ''}"

    def message(self, iteration: int, done: str) -> str:
        """Return the message for users."""
        alarm = self.bound.alarm
        whose = f" ({self.module_id})" if self.module_id else ""
        condition = f"{alarm.subject} {self.description}".strip()
        return (
            f"alarm {alarm.name}{whose} at iteration {iteration}: {condition}. {done}"
        )


class Guard:
    """Checks the results of one run.

    Args:
        config: The algorithm's validated config.
        algorithm: The algorithm to act on; see :class:`GuardedAlgorithm`.
    """

    def __init__(self, config: LLMConfig, algorithm: GuardedAlgorithm) -> None:
        self._config, self._algorithm = config, algorithm
        self._alarms: dict[str, BoundAlarm] = config.chosen_alarms()
        self._history = History()
        self._acted: dict[str, int] = {}  # Firing.key -> iteration of the last action
        self._num_rollbacks = 0
        # Alarms that the user configured and whose metrics were not reported yet.
        self._unreported = set(config.alarm_settings)
        self._snapshots: Snapshots | None = None
        if any(a.action == ROLLBACK for a in self._alarms.values()):
            self._snapshots = Snapshots(
                config.alarm_snapshot_interval,
                config.alarm_snapshots,
                Path(algorithm.logdir),
            )

    # Every iteration -----------------------------------------------------------------

    def before_iteration(self) -> None:
        """Store the initial state of the run, or that after a resume."""
        if self._snapshots is not None and self._snapshots.good is None:
            algorithm = self._algorithm
            self._snapshots.begin(algorithm.iteration, algorithm.rollback_state())

    def after_iteration(self, result: dict[str, Any]) -> None:
        """Check a result, act, and report both in the result."""
        iteration = int(result[result_keys.ITERATION])
        self._history.add(result)
        firings = list(self._check(iteration))
        report: dict[str, Any] = dict.fromkeys(self._alarms, 0)
        for firing in firings:
            report[firing.bound.alarm.name] += 1
        result[ALARMS_KEY] = report
        holding = {firing.key for firing in firings}
        # An alarm whose condition ended acts at once when it fires again.
        self._acted = {k: i for k, i in self._acted.items() if k in holding}
        messages = self._warn_of_unreported(result)
        messages += self._act(
            [f for f in firings if self._is_due(f, iteration)], result
        )
        if self._num_rollbacks:
            report[_NUM_ROLLBACKS] = self._num_rollbacks
        self._keep_snapshot(iteration, firings)
        scales = self._algorithm.lr_scales() if self._has_lowered else {}
        if scales:
            report[_LR_SCALE] = scales
        if messages:
            report[MESSAGES] = "\n".join(messages)
            for message in messages:
                logger.warning("%s", message)

    def after_model_error(self, error: Exception) -> bool:
        """Roll back after sampling failed because weights are not finite.

        Returns:
            True if training can continue.
        """
        bound = self._alarms.get("nan")
        if bound is None or bound.action != ROLLBACK:
            return False
        if self._num_rollbacks >= self._config.alarm_max_rollbacks:
            return False
        text = self._roll_back(None)
        logger.warning("alarm nan: %s %s", error, text)
        return True

    # Checking ------------------------------------------------------------------------

    def _check(self, iteration: int) -> Iterator[Firing]:
        for bound in self._alarms.values():
            alarm = bound.alarm
            if self._is_solved(bound):
                continue
            modules: list[str | None] = [None]
            if alarm.per_module:
                modules = list(self._history.module_ids)
            for module_id in modules:
                series = [self._history.series(key, module_id) for key in alarm.reads]
                newest = max(self._history.newest(k, module_id) for k in alarm.reads)
                if newest:
                    self._unreported.discard(alarm.name)
                if newest < iteration:
                    continue  # this iteration did not report it
                thresholds = dict(bound.thresholds)
                thresholds.pop("after_s", None)  # EnvRunners apply it
                description = alarm.detect(*series, **thresholds)
                if description is not None:
                    yield Firing(bound, module_id, description)

    def _is_solved(self, bound: BoundAlarm) -> bool:
        if bound.solved is None:
            return False
        window = int(bound.thresholds.get("window", 1))
        success = window_mean(self._history.series(result_keys.SUCCESS), window)
        return success is not None and success >= bound.solved

    def _is_due(self, firing: Firing, iteration: int) -> bool:
        """Return True at first and, except for warnings, again after each cooldown."""
        last = self._acted.get(firing.key)
        again = last is not None and iteration - last >= firing.bound.cooldown
        return last is None or (again and firing.bound.action != WARN)

    def _warn_of_unreported(self, result: dict[str, Any]) -> list[str]:
        """Return messages about configured alarms whose metrics are not reported."""
        if not self._unreported or result.get("num_updates_skipped"):
            return []
        messages = [
            f"alarm {name} is inactive: this run does not report "
            f"{' or '.join(self._alarms[name].alarm.reads)}."
            for name in sorted(self._unreported)
            if name in self._alarms
        ]
        self._unreported = set()
        return messages

    # Acting --------------------------------------------------------------------------

    def _act(self, due: list[Firing], result: dict[str, Any]) -> list[str]:
        """Take the actions of the due alarms; roll back at most once."""
        iteration = int(result[result_keys.ITERATION])
        messages = []
        rolled_back = ""
        # Rollbacks first: they lower the learning rates already.
        for firing in sorted(due, key=lambda f: f.bound.action != ROLLBACK):
            self._acted[firing.key] = iteration
            alarm, action = firing.bound.alarm, firing.bound.action
            if action == STOP:
                done = self._stop(alarm.name, result)
            elif action == ROLLBACK:
                rolled_back = rolled_back or self._try_roll_back(alarm.name, result)
                done = rolled_back
            elif action == LOWER_LR and not rolled_back:
                done = self._lower_lr(firing.module_id)
            else:
                done = alarm.remedy
            messages.append(firing.message(iteration, done))
        if rolled_back:
            # The recorded actions belong to weights that were discarded.
            self._acted = {}
        return messages

    def _stop(self, name: str, result: dict[str, Any]) -> str:
        result["done"] = True
        result[ALARMS_KEY].setdefault(STOPPED_BY, name)
        return "Training stops."

    def _lower_lr(self, module_id: str | None) -> str:
        config = self._config
        self._algorithm.lower_lr(module_id, config.alarm_lr_factor, config.alarm_min_lr)
        return f"The learning rate is multiplied by {config.alarm_lr_factor:g}."

    def _try_roll_back(self, name: str, result: dict[str, Any]) -> str:
        limit = self._config.alarm_max_rollbacks
        if self._num_rollbacks < limit:
            return self._roll_back(None)
        iteration = self._restore_good()
        self._stop(name, result)
        return (
            f"Rolled back to iteration {iteration}; training stops: "
            f"max_rollbacks={limit}."
        )

    def _roll_back(self, module_id: str | None) -> str:
        iteration = self._restore_good()
        self._num_rollbacks += 1
        self._history.drop_after(iteration)
        if self._snapshots is not None:
            self._snapshots.reject()
        lowered = self._lower_lr(module_id)
        return f"Rolled back to iteration {iteration}. {lowered}"

    def _restore_good(self) -> int:
        """Restore the last good state; return its iteration."""
        good = None if self._snapshots is None else self._snapshots.good
        assert good is not None, "before_iteration() stores a first state."
        self._algorithm.roll_back(good.load())
        return good.iteration

    def _keep_snapshot(self, iteration: int, firings: list[Firing]) -> None:
        if self._snapshots is None:
            return
        quiet = not any(f.bound.action == ROLLBACK for f in firings)
        if not quiet:
            self._snapshots.reject()
        if self._snapshots.is_due(quiet=quiet):
            self._snapshots.offer(iteration, self._algorithm.rollback_state())

    @property
    def _has_lowered(self) -> bool:
        actions = {a.action for a in self._alarms.values()}
        return bool(actions & {LOWER_LR, ROLLBACK})

    # State ---------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state without snapshots."""
        return {
            "history": self._history.get_state(),
            "acted": dict(self._acted),
            "num_rollbacks": self._num_rollbacks,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state from :meth:`get_state`; delete the snapshots."""
        self._history.set_state(state["history"])
        self._acted = dict(state["acted"])
        self._num_rollbacks = state["num_rollbacks"]
        self.close()

    def close(self) -> None:
        """Delete the snapshots."""
        if self._snapshots is not None:
            self._snapshots.close()
