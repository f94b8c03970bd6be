"""Mixin of an Algorithm whose weights and learning rates a Guard can change."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_METRICS_LOGGER
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rllib_llm.errors import ModelError
from rllib_llm.monitoring.alarms.alarm_actions import Guard
from rllib_llm.rllib_bases import RLlibAlgorithm

if TYPE_CHECKING:
    from rllib_llm.algorithms.learner.optimizers import OptimizerMixin

GUARD_KEY = "llm_guard"
_LEARNERS = "learners"
_METRICS = f"{COMPONENT_LEARNER}/{COMPONENT_METRICS_LOGGER}"


class GuardedAlgorithm(RLlibAlgorithm):
    """Passes results to a guard, which can lower learning rates and restore states.

    It must come before the Algorithm class in the bases. Learners must inherit
    :class:`rllib_llm.algorithms.learner.optimizers.OptimizerMixin`.
    """

    @property
    def guard(self) -> Guard:
        """The guard of this run."""
        if not hasattr(self, "_guard"):
            self._guard = Guard(self.config, self)
        return self._guard

    def step(self) -> Any:
        """Train one iteration; roll back and retry if weights are not finite."""
        self.guard.before_iteration()
        try:
            return super().step()
        except ModelError as error:
            if not self.guard.after_model_error(error):
                raise
            return self.step()

    def log_result(self, result: dict[str, Any]) -> None:
        """Let the guard check the result before callbacks and loggers get it."""
        self.guard.after_iteration(result)
        super().log_result(result)

    def cleanup(self) -> None:
        """Delete the guard's files too."""
        self.guard.close()
        super().cleanup()

    # Called by the guard -----------------------------------------------------------

    def lower_lr(self, module_id: str | None, factor: float, least: float) -> None:
        """Multiply the learning rates of a policy, or of all policies if None."""
        self.learner_group.foreach_learner(
            functools.partial(_lower_lr, module_id=module_id, factor=factor, min_=least)
        )

    def lr_scales(self) -> dict[str, float]:
        """Return the learning rate multipliers by policy, without those that are 1."""
        answers = self.learner_group.foreach_learner(_lr_scales)
        return next(iter(answers)).get()

    def rollback_state(self) -> dict[str, Any]:
        """Return the state that :meth:`roll_back` restores.

        It excludes counters and the position in the tasks: these continue, so that the
        retried iterations sample new tasks.
        """
        learners = self.learner_group.get_state(not_components=_METRICS)
        return {_LEARNERS: learners, **self.driver_state()}

    def driver_state(self) -> dict[str, Any]:
        """Return the learned state on the driver, for checkpoints and rollbacks."""
        return {}

    def set_driver_state(self, state: dict[str, Any]) -> None:
        """Restore the state from :meth:`driver_state`."""

    def sync_all_weights(self) -> None:
        """Send the Learners' weights to all EnvRunners."""
        raise NotImplementedError

    def roll_back(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`rollback_state`, but keep the current learning rates."""
        scales = self.lr_scales()
        newest = next(iter(self.learner_group.foreach_learner(_version))).get()
        # RLlib ignores weights with a lower sequence number as outdated.
        state[_LEARNERS][COMPONENT_LEARNER][WEIGHTS_SEQ_NO] = newest + 1
        self.learner_group.set_state(state[_LEARNERS])
        self.learner_group.foreach_learner(
            functools.partial(_set_lr_scales, scales=scales)
        )
        self.set_driver_state(state)
        self.sync_all_weights()


def _lower_lr(
    learner: OptimizerMixin, *, module_id: str | None, factor: float, min_: float
) -> None:
    learner.lower_lr(module_id, factor, min_)


def _lr_scales(learner: OptimizerMixin) -> dict[str, float]:
    return dict(learner.lr_scales)


def _set_lr_scales(learner: OptimizerMixin, *, scales: dict[str, float]) -> None:
    learner.set_lr_scales(scales)


def _version(learner: OptimizerMixin) -> int:
    return learner._weights_seq_no
