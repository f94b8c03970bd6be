"""Repairs of RLlib's result: timers per iteration, no evaluation reported twice."""

from __future__ import annotations

from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ENV_RUNNER_SAMPLING_TIMER,
    EVALUATION_ITERATION_TIMER,
    EVALUATION_RESULTS,
    LEARNER_UPDATE_TIMER,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
    TRAINING_ITERATION_TIMER,
    TRAINING_STEP_TIMER,
)

_EXACT_TIMERS = (
    ENV_RUNNER_SAMPLING_TIMER,
    EVALUATION_ITERATION_TIMER,
    LEARNER_UPDATE_TIMER,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TRAINING_ITERATION_TIMER,
    TRAINING_STEP_TIMER,
)


class ExactResults(RLlibCallback):
    """Makes every value of an iteration's result belong to that iteration.

    Active in every LLM algorithm. RLlib smooths timers with a factor of 0.01, so that
    they hardly leave their first value, and repeats an evaluation's numbers in the
    result of the iteration after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._evaluated = False

    @override(RLlibCallback)
    def on_algorithm_init(self, *, metrics_logger: Any, **kwargs: Any) -> None:
        """Create the timers as sums over the iteration."""
        for name in _EXACT_TIMERS:
            # A key keeps the settings it was created with; RLlib gives its own later.
            metrics_logger.log_time((TIMERS, name), reduce="sum")

    @override(RLlibCallback)
    def on_evaluate_end(self, *, algorithm: Any, **kwargs: Any) -> None:
        """Remember that the next result has fresh evaluation numbers."""
        # The evaluation before training stands in the result under its own name.
        self._evaluated = not getattr(algorithm, "is_evaluating_first", False)

    @override(RLlibCallback)
    def on_train_result(
        self, *, metrics_logger: Any, result: dict[str, Any], **kwargs: Any
    ) -> None:
        """Take stale evaluation numbers out of the result."""
        timers = result.get(TIMERS, {})
        timers.pop(EVALUATION_ITERATION_TIMER, None)
        if self._evaluated:
            # RLlib evaluates after it has compiled the timers.
            timers[EVALUATION_ITERATION_TIMER] = metrics_logger.peek(
                (TIMERS, EVALUATION_ITERATION_TIMER)
            )
        else:
            result.pop(EVALUATION_RESULTS, None)
        self._evaluated = False
