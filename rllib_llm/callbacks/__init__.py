"""Callbacks of RLlib and Tune: metrics, transcripts and progress of a run.

Importing this package loads neither torch nor ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.callbacks import result_keys

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

PROGRESS_KEYS: tuple[str, ...] = (
    result_keys.RETURN,
    result_keys.SUCCESS,
    result_keys.TURNS,
    result_keys.TOKENS_PER_TURN,
    *result_keys.TRUNCATED,
    result_keys.INVALID,
    f"learners/<module>/{result_keys.KL}",
    f"learners/<module>/{result_keys.CLIP}",
    f"learners/<module>/{result_keys.ENTROPY}",
    f"learners/<module>/{result_keys.TRAIN_INFERENCE_MISMATCH}",
    result_keys.TOKENS,
    result_keys.SAMPLING_SECONDS,
    result_keys.EVAL_RETURN,
    result_keys.EVAL_SUCCESS,
    result_keys.EVAL_EPISODES,
    result_keys.FIRST_RETURN,
    result_keys.FIRST_SUCCESS,
    result_keys.FIRST_EPISODES,
)
"""Result keys that the progress line reads (docs/metrics.md explains each)."""


def run_callbacks(
    recipe_name: str,
    algo_config: LLMConfig,
    *,
    stop: dict[str, float] | None = None,
    time_budget_s: float | None = None,
    expect: dict[str, float] | None = None,
    hyperparameters: dict[str, Any] | None = None,
    tensorboard: bool = True,
    loggers: Sequence[Any] = (),
) -> list[Any]:
    """Return the Tune callbacks of a run: progress, TensorBoard, transcripts, others.

    Pass them as ``tune.RunConfig(callbacks=..., verbose=0)``; ``verbose=0`` silences
    Tune's own tables. Their order matters: TranscriptLogger removes transcripts and
    histograms from the result, so it must come before the JSON logger, ``loggers`` and
    Tune's CSV logger, which Tune appends.

    Args:
        recipe_name: Name of the recipe, for the first line.
        algo_config: The config of the run; it is only read.
        stop: Bounds of result keys, to estimate the remaining time.
        time_budget_s: Seconds after which Tune stops all trials; None: no limit.
        expect: Thresholds by result key; the line that reaches them is marked.
        hyperparameters: Settings for TensorBoard's HParams tab, by dotted names.
        tensorboard: Whether to write TensorBoard files.
        loggers: Further loggers; they get numbers only.
    """
    from rllib_llm.callbacks.tune_logging import (
        LiveJsonLogger,
        NoTensorBoard,
        TranscriptLogger,
        TranscriptTensorBoard,
    )
    from rllib_llm.monitoring.progress_line import ProgressLine

    demonstrations = getattr(algo_config, "sft_demonstrations", 0)
    return [
        ProgressLine(
            _title(recipe_name, algo_config),
            stop,
            expect,
            tensorboard=tensorboard,
            time_budget_s=time_budget_s,
            begin="after SFT" if demonstrations else "before training",
        ),
        TranscriptTensorBoard(hyperparameters) if tensorboard else NoTensorBoard(),
        TranscriptLogger(),
        LiveJsonLogger(),
        *loggers,
    ]


def _title(recipe_name: str, config: LLMConfig) -> str:
    algorithm = config.algo_class.__name__ if config.algo_class else "?"
    model = _shown(config.lm_model)
    if config.lm_lora:
        model += f" (LoRA r={_shown(config.lm_lora.get('rank', '?'))})"
    parts = [recipe_name, algorithm, str(config.env), model]
    parts.append(f"seed {_shown(config.seed)}")
    return "  ".join(part for part in parts if part)


def _shown(value: object) -> str:
    # In a sweep a setting may be a search space: a dictionary or one of Tune's objects.
    simple = isinstance(value, str | int | float) or value is None
    return str(value) if simple else "searched"
