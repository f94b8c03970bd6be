"""Callback for results with exact timers and without repeated evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

_EXACT_TIMERS = (
    ENV_RUNNER_SAMPLING_TIMER,
    EVALUATION_ITERATION_TIMER,
    LEARNER_UPDATE_TIMER,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TRAINING_ITERATION_TIMER,
    TRAINING_STEP_TIMER,
)


class ExactResults(RLlibCallback):
    """Makes every value of a result belong to its iteration.

    Active in every LLM algorithm. RLlib smooths timers with a factor of 0.01, which
    keeps them near their first value, and repeats an evaluation in the results of the
    iterations after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._evaluated = False

    @override(RLlibCallback)
    def on_algorithm_init(
        self, *, metrics_logger: MetricsLogger, **kwargs: Any
    ) -> None:
        """Create the timers as sums over the iteration."""
        for name in _EXACT_TIMERS:
            # A key keeps the settings of its first log_time; RLlib's own calls come
            # later.
            metrics_logger.log_time((TIMERS, name), reduce="sum")

    @override(RLlibCallback)
    def on_evaluate_end(self, *, algorithm: Algorithm, **kwargs: Any) -> None:
        """Record that the next result has a new evaluation."""
        # The evaluation before training has a result key of its own.
        self._evaluated = not getattr(algorithm, "is_evaluating_first", False)

    @override(RLlibCallback)
    def on_train_result(
        self, *, metrics_logger: MetricsLogger, result: dict[str, Any], **kwargs: Any
    ) -> None:
        """Remove a stale evaluation from the result."""
        timers = result.get(TIMERS, {})
        timers.pop(EVALUATION_ITERATION_TIMER, None)
        if self._evaluated:
            # RLlib compiles the timers before it evaluates.
            timers[EVALUATION_ITERATION_TIMER] = metrics_logger.peek(
                (TIMERS, EVALUATION_ITERATION_TIMER)
            )
        else:
            result.pop(EVALUATION_RESULTS, None)
        self._evaluated = False
