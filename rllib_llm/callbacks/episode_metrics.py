"""Per-episode numbers, logged by the env runner (docs/metrics.md explains each)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import (
    EPISODE_DURATION_SEC_MEAN,
    EPISODE_LEN_MAX,
    EPISODE_LEN_MEAN,
    EPISODE_LEN_MIN,
    EPISODE_RETURN_MAX,
    EPISODE_RETURN_MEAN,
    EPISODE_RETURN_MIN,
    NUM_AGENT_STEPS_SAMPLED,
    NUM_AGENT_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    NUM_MODULE_STEPS_SAMPLED,
    NUM_MODULE_STEPS_SAMPLED_LIFETIME,
)

from rllib_llm import columns
from rllib_llm.connectors.episode_data import episode_data
from rllib_llm.engines.base import GenerationEngine
from rllib_llm.types import FinishReason, StopReason

COMPLETION_TOKENS = "num_completion_tokens"
COMPLETION_TOKENS_LIFETIME = "num_completion_tokens_lifetime"
SUCCESS_RATE = "success_rate"


def log_episodes(metrics: Any, episodes: list[Any], failures: list[str]) -> None:
    """Log everything known about finished episodes.

    Means are over the episodes since the last report, not smoothed over iterations:
    with a fixed number of episodes per iteration each value stands for one iteration.
    """
    metrics.log_value("num_episodes_failed", len(failures), reduce="sum")
    if not episodes:
        return
    for episode in episodes:
        _log_episode(metrics, episode, window=len(episodes))
    steps = sum(map(len, episodes))
    tokens = sum(episode_data(e).num_sampled for e in episodes)
    for key, value in (
        (NUM_ENV_STEPS_SAMPLED, steps),
        ((NUM_AGENT_STEPS_SAMPLED, DEFAULT_AGENT_ID), steps),
        ((NUM_MODULE_STEPS_SAMPLED, DEFAULT_MODULE_ID), steps),
        (NUM_EPISODES, len(episodes)),
        (COMPLETION_TOKENS, tokens),
    ):
        metrics.log_value(key, value, reduce="sum")
    metrics.log_value(
        NUM_ENV_STEPS_SAMPLED_LIFETIME,
        steps,
        reduce="lifetime_sum",
        with_throughput=True,
    )
    for key, value in (
        ((NUM_AGENT_STEPS_SAMPLED_LIFETIME, DEFAULT_AGENT_ID), steps),
        ((NUM_MODULE_STEPS_SAMPLED_LIFETIME, DEFAULT_MODULE_ID), steps),
        (NUM_EPISODES_LIFETIME, len(episodes)),
        (COMPLETION_TOKENS_LIFETIME, tokens),
    ):
        metrics.log_value(key, value, reduce="lifetime_sum")
    _log_stop_reasons(metrics, episodes)


def _log_episode(metrics: Any, episode: Any, window: int) -> None:
    data = episode_data(episode)
    ret, length = float(episode.get_return()), len(episode)
    turns = episode.get_extra_model_outputs(columns.TURN)
    cut = sum(t.finish is FinishReason.LENGTH for t in turns)
    breaks = sum(not t.extends for t in turns)
    per_turn = max(1, length)
    means = {
        EPISODE_RETURN_MEAN: ret,
        EPISODE_LEN_MEAN: length,
        EPISODE_DURATION_SEC_MEAN: data.seconds,
        "turns_mean": length,
        "completion_tokens_mean": data.num_sampled,
        "tokens_per_turn_mean": data.num_sampled / per_turn,
        "context_tokens_mean": len(data.ids),
        "invalid_action_frac": data.invalid_actions / per_turn,
        "cut_turn_frac": cut / per_turn,
        "prefix_break_frac": breaks / per_turn,
    }
    if data.success is not None:
        means[SUCCESS_RATE] = float(data.success)
    means |= {f"env/{name}": value for name, value in data.metrics.items()}
    for key, value in means.items():
        metrics.log_value(key, value, window=window)
    for key in ("agent_episode_return_mean", "module_episode_return_mean"):
        owner = DEFAULT_AGENT_ID if key.startswith("agent") else DEFAULT_MODULE_ID
        metrics.log_value((key, owner), ret, window=window)
    for key, value, reduce in (
        (EPISODE_RETURN_MIN, ret, "min"),
        (EPISODE_RETURN_MAX, ret, "max"),
        (EPISODE_LEN_MIN, length, "min"),
        (EPISODE_LEN_MAX, length, "max"),
    ):
        metrics.log_value(key, value, reduce=reduce, window=window)


def _log_stop_reasons(metrics: Any, episodes: Iterable[Any]) -> None:
    episodes = list(episodes)
    counts = Counter(episode_data(e).stop_reason for e in episodes)
    for reason in StopReason:
        share = counts.get(reason, 0) / len(episodes)
        metrics.log_value(("stop", reason.value), share, window=1)


def log_engine(metrics: Any, engine: GenerationEngine) -> None:
    """Log the engine's counters since the last call, then reset them."""
    for name, value in engine.stats().items():
        metrics.log_value(("engine", name), value, reduce="sum")
    engine.reset_stats()
