"""What an Algorithm needs for a :class:`Guard` to act upon it."""

from __future__ import annotations

import functools
from typing import Any

from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_METRICS_LOGGER
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rllib_llm.errors import ModelError
from rllib_llm.monitoring.alarms.guard import Guard

GUARD_KEY = "llm_guard"
_LEARNERS = "learners"
_METRICS = f"{COMPONENT_LEARNER}/{COMPONENT_METRICS_LOGGER}"


class GuardedAlgorithm:
    """Lets a guard look at results, lower learning rates and bring back states.

    Put it before the Algorithm class in the bases; Learners need
    :class:`rllib_llm.algorithms.learner.lr_scale.ScaledLearningRates`.
    """

    @property
    def guard(self) -> Guard:
        """The guard of this run."""
        if not hasattr(self, "_guard"):
            self._guard = Guard(self.config, self)
        return self._guard

    def step(self) -> Any:
        """Train one iteration; go back and try again where weights are not finite."""
        self.guard.before_iteration()
        try:
            return super().step()
        except ModelError as error:
            if not self.guard.after_model_error(error):
                raise
            return self.step()

    def log_result(self, result: dict[str, Any]) -> None:
        """Let the guard look before callbacks and loggers do."""
        self.guard.after_iteration(result)
        super().log_result(result)

    def cleanup(self) -> None:
        """Delete the guard's files, too."""
        self.guard.close()
        super().cleanup()

    # What a guard asks for -----------------------------------------------------------

    def lower_lr(self, module_id: str | None, factor: float, least: float) -> None:
        """Multiply the learning rates of a policy, None: of all, from now on."""
        self.learner_group.foreach_learner(
            functools.partial(_lower_lr, module_id=module_id, factor=factor, min_=least)
        )

    def lr_scales(self) -> dict[str, float]:
        """Return what each policy's learning rate is multiplied by, where it is."""
        answers = self.learner_group.foreach_learner(_lr_scales)
        return next(iter(answers)).get()

    def rollback_state(self) -> dict[str, Any]:
        """Return what :meth:`roll_back` brings back: all that has learnt.

        Counters and the cursor over tasks are not part of it: they go on.
        """
        learners = self.learner_group.get_state(not_components=_METRICS)
        return {_LEARNERS: learners, **self.driver_state()}

    def driver_state(self) -> dict[str, Any]:
        """Return what has learnt on the driver, for checkpoints and for going back."""
        return {}

    def set_driver_state(self, state: dict[str, Any]) -> None:
        """Bring back :meth:`driver_state`."""

    def sync_all_weights(self) -> None:
        """Bring all EnvRunners to the Learners' weights."""
        raise NotImplementedError

    def roll_back(self, state: dict[str, Any]) -> None:
        """Go on from an earlier :meth:`rollback_state`, learning rates excepted."""
        scales = self.lr_scales()
        newest = next(iter(self.learner_group.foreach_learner(_version))).get()
        # RLlib takes weights older than those it has for a late message.
        state[_LEARNERS][COMPONENT_LEARNER][WEIGHTS_SEQ_NO] = newest + 1
        self.learner_group.set_state(state[_LEARNERS])
        self.learner_group.foreach_learner(
            functools.partial(_set_lr_scales, scales=scales)
        )
        self.set_driver_state(state)
        self.sync_all_weights()


def _lower_lr(
    learner: Any, *, module_id: str | None, factor: float, min_: float
) -> None:
    learner.lower_lr(module_id, factor, min_)


def _lr_scales(learner: Any) -> dict[str, float]:
    return dict(learner.lr_scales)


def _set_lr_scales(learner: Any, *, scales: dict[str, float]) -> None:
    learner.set_lr_scales(scales)


def _version(learner: Any) -> int:
    return learner._weights_seq_no
