"""Result keys read by the package or named by recipes (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

RETURN = "env_runners/episode_return_mean"
SUCCESS = "env_runners/success_rate"
TURNS = "env_runners/turns_mean"
TOKENS_PER_TURN = "env_runners/tokens_per_turn_mean"
INVALID = "env_runners/invalid_action_frac"
CUT_TURNS = "env_runners/cut_turn_frac"
TOKENS = "env_runners/num_completion_tokens"
ZERO_VARIANCE_GROUPS = "zero_variance_group_frac"
SAMPLING_SECONDS = "timers/env_runner_sampling_timer"
EVAL_RETURN = "evaluation/env_runners/episode_return_mean"
EVAL_SUCCESS = "evaluation/env_runners/success_rate"
EVAL_EPISODES = "evaluation/env_runners/num_episodes"
# The evaluation before training, in the first iteration's result.
FIRST_EVALUATION = "evaluation_before_training"
FIRST_RETURN = f"{FIRST_EVALUATION}/env_runners/episode_return_mean"
FIRST_SUCCESS = f"{FIRST_EVALUATION}/env_runners/success_rate"
FIRST_EPISODES = f"{FIRST_EVALUATION}/env_runners/num_episodes"
# Stop reasons of episodes that ran out of tokens.
TRUNCATED = (
    "env_runners/stop/max_tokens_turn",
    "env_runners/stop/max_tokens_episode",
    "env_runners/stop/context_overflow",
)
# Below learners/<module>/.
KL = "approx_kl_k3"
CLIP = "clip_frac"
ENTROPY = "entropy"
TRAIN_INFERENCE_MISMATCH = "train_inference_mismatch_mean"
POLICY_STALENESS = "policy_staleness_mean"

ITERATION = "training_iteration"
SECONDS = "time_this_iter_s"
SECONDS_TOTAL = "time_total_s"

ALL_MODULES = "__all_modules__"


def lookup(result: dict[str, Any], key: str) -> float | None:
    """Return the number under a ``/``-separated key; None if absent or NaN."""
    value: Any = result
    for part in key.split("/"):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if number != number else number


def truncated(result: dict[str, Any]) -> float | None:
    """Return the share of episodes that ran out of tokens."""
    shares = [lookup(result, key) for key in TRUNCATED]
    reported = [share for share in shares if share is not None]
    return sum(reported) if reported else None


def modules(result: dict[str, Any]) -> list[str]:
    """Return the modules with Learner statistics in a result."""
    return [m for m in result.get("learners", {}) if m != ALL_MODULES]


def lookup_learner(result: dict[str, Any], key: str) -> float | None:
    """Return ``learners/<module>/<key>``, averaged over the modules that have it."""
    values = [lookup(result, f"learners/{m}/{key}") for m in modules(result)]
    reported = [v for v in values if v is not None]
    return sum(reported) / len(reported) if reported else None


def flat_keys(result: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every leaf of a nested result as a ``/``-separated key."""
    for name, value in result.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from flat_keys(value, key + "/")
        else:
            yield key
