"""Looks at every iteration's result and does what the alarms are set to do."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllib_llm.callbacks import keys
from rllib_llm.monitoring.alarms.catalogue import LOWER_LR, ROLLBACK, STOP, WARN
from rllib_llm.monitoring.alarms.detectors import window_mean
from rllib_llm.monitoring.alarms.history import History
from rllib_llm.monitoring.alarms.settings import BoundAlarm
from rllib_llm.monitoring.alarms.snapshots import Snapshots

logger = logging.getLogger("rllib_llm")

ALARMS_KEY = "alarms"  # of the result
MESSAGES = "messages"  # below it, with STOPPED_BY and the rest
STOPPED_BY = "stopped_by"
_NUM_ROLLBACKS = "num_rollbacks"
_LR_SCALE = "lr_scale"


@dataclasses.dataclass(frozen=True)
class Firing:
    """An alarm's condition holds.

    Attributes:
        chosen: The alarm and its settings.
        module_id: Of which policy; None: of the run.
        found: What was found, in words.
    """

    chosen: BoundAlarm
    module_id: str | None
    found: str

    @property
    def key(self) -> str:
        """Tells firings of one alarm and policy from others."""
        return f"{self.chosen.alarm.name}/{self.module_id or ''}"

    def message(self, iteration: int, done: str) -> str:
        """Return the line that people read."""
        alarm = self.chosen.alarm
        whose = f" ({self.module_id})" if self.module_id else ""
        found = f"{alarm.what} {self.found}".strip()
        return f"alarm {alarm.name}{whose} at iteration {iteration}: {found}. {done}"


class Guard:
    """Watches one run.

    Args:
        config: The algorithm's config, validated.
        algorithm: Whose Learners are acted upon; see :class:`GuardedAlgorithm`.
    """

    def __init__(self, config: Any, algorithm: Any) -> None:
        self._config, self._algorithm = config, algorithm
        self._chosen: dict[str, BoundAlarm] = config.chosen_alarms()
        self._history = History()
        self._acted: dict[str, int] = {}  # Firing.key -> iteration of the last action
        self._num_rollbacks = 0
        self._is_unread = set(config.alarm_settings)
        self._snapshots: Snapshots | None = None
        if any(c.action == ROLLBACK for c in self._chosen.values()):
            self._snapshots = Snapshots(
                config.alarm_snapshot_interval,
                config.alarm_snapshots,
                Path(algorithm.logdir),
            )

    # Every iteration -----------------------------------------------------------------

    def before_iteration(self) -> None:
        """Keep the state that the run begins (or goes on) with."""
        if self._snapshots is not None and self._snapshots.good is None:
            algorithm = self._algorithm
            self._snapshots.begin(algorithm.iteration, algorithm.rollback_state())

    def after_iteration(self, result: dict[str, Any]) -> None:
        """Look at a result, act, and write into it what was found and done."""
        iteration = int(result[keys.ITERATION])
        self._history.add(result)
        found = list(self._look(iteration))
        report: dict[str, Any] = dict.fromkeys(self._chosen, 0)
        for firing in found:
            report[firing.chosen.alarm.name] += 1
        result[ALARMS_KEY] = report
        holding = {firing.key for firing in found}
        self._acted = {k: i for k, i in self._acted.items() if k in holding}
        messages = self._warn_of_unread(result)
        messages += self._act([f for f in found if self._is_due(f, iteration)], result)
        if self._num_rollbacks:
            report[_NUM_ROLLBACKS] = self._num_rollbacks
        self._keep_snapshot(iteration, found)
        scales = self._algorithm.lr_scales() if self._has_lowered else {}
        if scales:
            report[_LR_SCALE] = scales
        if messages:
            report[MESSAGES] = "\n".join(messages)
            for message in messages:
                logger.warning("%s", message)

    def after_model_error(self, error: Exception) -> bool:
        """Go back after sampling failed since weights are not finite.

        Returns:
            Whether training can go on.
        """
        chosen = self._chosen.get("nan")
        if chosen is None or chosen.action != ROLLBACK:
            return False
        if self._num_rollbacks >= self._config.alarm_max_rollbacks:
            return False
        text = self._roll_back(None)
        logger.warning("alarm nan: %s %s", error, text)
        return True

    # Looking -------------------------------------------------------------------------

    def _look(self, iteration: int) -> Iterator[Firing]:
        for chosen in self._chosen.values():
            alarm = chosen.alarm
            if self._is_solved(chosen):
                continue
            modules: list[str | None] = [None]
            if alarm.per_module:
                modules = list(self._history.module_ids)
            for module_id in modules:
                series = [self._history.series(key, module_id) for key in alarm.reads]
                newest = max(self._history.newest(k, module_id) for k in alarm.reads)
                if newest:
                    self._is_unread.discard(alarm.name)
                if newest < iteration:
                    continue  # nothing new has been seen of it
                thresholds = dict(chosen.thresholds)
                thresholds.pop("after_s", None)  # EnvRunners apply it
                found = alarm.detect(*series, **thresholds)
                if found is not None:
                    yield Firing(chosen, module_id, found)

    def _is_solved(self, chosen: BoundAlarm) -> bool:
        if chosen.solved is None:
            return False
        window = int(chosen.thresholds.get("window", 1))
        success = window_mean(self._history.series(keys.SUCCESS), window)
        return success is not None and success >= chosen.solved

    def _is_due(self, firing: Firing, iteration: int) -> bool:
        """Whether to act: at first, and again while it lasts; warnings come once."""
        last = self._acted.get(firing.key)
        again = last is not None and iteration - last >= firing.chosen.cooldown
        return last is None or (again and firing.chosen.action != WARN)

    def _warn_of_unread(self, result: dict[str, Any]) -> list[str]:
        """Say which alarms someone asked for that this run reports nothing for."""
        if not self._is_unread or result.get("num_updates_skipped"):
            return []
        messages = [
            f"alarm {name} is deaf: this run reports no "
            f"{' or '.join(self._chosen[name].alarm.reads)}."
            for name in sorted(self._is_unread)
            if name in self._chosen
        ]
        self._is_unread = set()
        return messages

    # Acting --------------------------------------------------------------------------

    def _act(self, due: list[Firing], result: dict[str, Any]) -> list[str]:
        """Take the actions of those that are due; a state is gone back to once."""
        iteration = int(result[keys.ITERATION])
        messages = []
        rolled_back = ""
        for firing in sorted(due, key=lambda f: f.chosen.action != ROLLBACK):
            self._acted[firing.key] = iteration
            alarm, action = firing.chosen.alarm, firing.chosen.action
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
            # What it would look at belongs to weights that are gone.
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
        most = self._config.alarm_max_rollbacks
        if self._num_rollbacks < most:
            return self._roll_back(None)
        good = self._snapshots.good
        self._algorithm.roll_back(good.load())
        self._stop(name, result)
        return (
            f"Rolled back to iteration {good.iteration}; training stops: "
            f"max_rollbacks={most}."
        )

    def _roll_back(self, module_id: str | None) -> str:
        good = self._snapshots.good
        self._algorithm.roll_back(good.load())
        self._num_rollbacks += 1
        self._history.forget_after(good.iteration)
        self._snapshots.reject()
        lowered = self._lower_lr(module_id)
        return f"Rolled back to iteration {good.iteration}. {lowered}"

    def _keep_snapshot(self, iteration: int, found: list[Firing]) -> None:
        if self._snapshots is None:
            return
        quiet = not any(f.chosen.action == ROLLBACK for f in found)
        if not quiet:
            self._snapshots.reject()
        if self._snapshots.is_due(quiet=quiet):
            self._snapshots.offer(iteration, self._algorithm.rollback_state())

    @property
    def _has_lowered(self) -> bool:
        actions = {c.action for c in self._chosen.values()}
        return bool(actions & {LOWER_LR, ROLLBACK})

    # State ---------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return what is remembered, but for snapshots."""
        return {
            "history": self._history.get_state(),
            "acted": dict(self._acted),
            "num_rollbacks": self._num_rollbacks,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Bring back :meth:`get_state`'s answer; a state kept before is forgotten."""
        self._history.set_state(state["history"])
        self._acted = dict(state["acted"])
        self._num_rollbacks = state["num_rollbacks"]
        self.close()

    def close(self) -> None:
        """Delete the snapshots."""
        if self._snapshots is not None:
            self._snapshots.close()
