"""Episode metrics logged by the EnvRunner (docs/metrics.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
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

from rllib_llm.callbacks.histograms import log_histograms
from rllib_llm.callbacks.repetition import repetition
from rllib_llm.callbacks.stats import EPISODE_MEAN
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data, policy_episodes
from rllib_llm.data.types import FinishReason, StopReason
from rllib_llm.engines.base import GenerationEngine

if TYPE_CHECKING:
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

    from rllib_llm.types import Episode

COMPLETION_TOKENS = "num_completion_tokens"
COMPLETION_TOKENS_LIFETIME = "num_completion_tokens_lifetime"
SUCCESS_RATE = "success_rate"
# Metrics with histograms, and the names of those.
_DISTRIBUTIONS = {
    EPISODE_RETURN_MEAN: "returns",
    "turns_mean": "turns",
    "tokens_per_turn_mean": "tokens_per_turn",
}
ENVIRONMENTS = "environments"
# Metrics that each environment of a mixture has for itself, beside its own ("env").
_OF_ENVIRONMENTS = (
    EPISODE_RETURN_MEAN,
    SUCCESS_RATE,
    "turns_mean",
    "completion_tokens_mean",
    "tokens_per_turn_mean",
    "invalid_action_frac",
    "cut_turn_frac",
)
_STOP_KEYS = {reason: ("stop", reason.value) for reason in StopReason}


def log_episodes(metrics: MetricsLogger, episodes: list[Any], num_failed: int) -> None:
    """Log the metrics of finished episodes.

    Means are exact and unsmoothed: over all episodes (or turns) of all EnvRunners since
    the last report. With a fixed number of episodes per iteration each value belongs to
    one iteration.
    """
    metrics.log_value("num_episodes_failed", num_failed, reduce="sum")
    if not episodes:
        return
    values = _averaged_values(episodes)
    for key, each in values.items():
        metrics.log_value(key, each, reduce=EPISODE_MEAN)
    log_histograms(metrics, {n: values[key] for key, n in _DISTRIBUTIONS.items()})
    for key, value, reduce in (
        (EPISODE_RETURN_MIN, min(values[EPISODE_RETURN_MEAN]), "min"),
        (EPISODE_RETURN_MAX, max(values[EPISODE_RETURN_MEAN]), "max"),
        (EPISODE_LEN_MIN, min(values[EPISODE_LEN_MEAN]), "min"),
        (EPISODE_LEN_MAX, max(values[EPISODE_LEN_MEAN]), "max"),
    ):
        metrics.log_value(key, value, reduce=reduce)
    # What forks took over from other episodes was sampled once, by those.
    data = [episode_data(episode) for episode in episodes]
    steps = sum(map(num_new_steps, episodes))
    tokens = sum(map(_num_sampled, episodes)) - sum(d.inherited_tokens for d in data)
    agents: dict[str, int] = defaultdict(int)
    modules: dict[str, int] = defaultdict(int)
    for part in (p for e in episodes for p in policy_episodes(e)):
        agents[part.agent_id or DEFAULT_AGENT_ID] += num_new_steps(part)
        modules[part.module_id or DEFAULT_MODULE_ID] += num_new_steps(part)
    counts: dict[Any, int] = {
        **_episodes_of_environments(episodes),
        **{(NUM_AGENT_STEPS_SAMPLED, agent): n for agent, n in agents.items()},
        **{(NUM_MODULE_STEPS_SAMPLED, module): n for module, n in modules.items()},
        NUM_ENV_STEPS_SAMPLED: steps,
        NUM_EPISODES: len(episodes),
        COMPLETION_TOKENS: tokens,
    }
    for key, value in counts.items():
        metrics.log_value(key, value, reduce="sum")
    for key, value in (
        (NUM_ENV_STEPS_SAMPLED_LIFETIME, steps),
        (COMPLETION_TOKENS_LIFETIME, tokens),
    ):
        metrics.log_value(key, value, reduce="lifetime_sum", with_throughput=True)
    for key, value in (
        *(((NUM_AGENT_STEPS_SAMPLED_LIFETIME, a), n) for a, n in agents.items()),
        *(((NUM_MODULE_STEPS_SAMPLED_LIFETIME, m), n) for m, n in modules.items()),
        (NUM_EPISODES_LIFETIME, len(episodes)),
    ):
        metrics.log_value(key, value, reduce="lifetime_sum")


def log_forks(metrics: MetricsLogger, episodes: list[Any]) -> None:
    """Log how many episodes are forks, where they began, and their tokens."""
    forks = [data for data in map(episode_data, episodes) if data.is_fork]
    inherited = sum(data.inherited_tokens for data in forks)
    for key, value in (
        ("num_forks", len(forks)),
        ("fork_tokens", sum(data.num_sampled for data in forks) - inherited),
        ("inherited_tokens", inherited),
    ):
        metrics.log_value(key, value, reduce="sum")
    turns = [float(data.fork_turn) for data in forks]
    metrics.log_value("fork_turn_mean", turns, reduce=EPISODE_MEAN)


def log_candidates(metrics: MetricsLogger, episodes: list[Any]) -> None:
    """Log the tokens of replies that were sampled and not played."""
    candidates = [
        candidate
        for episode in episodes
        for of_turn in episode_data(episode).candidates.values()
        for candidate in of_turn
    ]
    tokens = sum(len(candidate.turn.action_ids) for candidate in candidates)
    metrics.log_value("candidate_tokens", tokens, reduce="sum")


def num_new_steps(episode: Episode) -> int:
    """Return the environment steps of an episode, without those before its fork."""
    return len(episode) - episode_data(episode).fork_turn


def _averaged_values(episodes: Iterable[Any]) -> dict[Any, list[float]]:
    """Return the values that are averaged, by key, in a mixture also by environment."""
    values: dict[Any, list[float]] = defaultdict(list)
    for episode in episodes:
        each: dict[Any, list[float]] = _turn_values(episode)
        each |= {key: [value] for key, value in _episode_values(episode).items()}
        environment = _environment_of(episode)
        for key, numbers in each.items():
            values[key] += numbers
            if environment is not None and _is_of_environment(key):
                parts = key if isinstance(key, tuple) else (key,)
                values[ENVIRONMENTS, environment, *parts] += numbers
    return values


def _episodes_of_environments(episodes: Iterable[Any]) -> dict[Any, int]:
    """Return the number of episodes of each environment of a mixture, by key."""
    names = (_environment_of(episode) for episode in episodes)
    counts = Counter(name for name in names if name is not None)
    return {(ENVIRONMENTS, name, NUM_EPISODES): n for name, n in counts.items()}


def _environment_of(episode: Episode) -> str | None:
    task = episode_data(episode).task
    return None if task is None else task.environment


def _is_of_environment(key: Any) -> bool:
    return key in _OF_ENVIRONMENTS or (isinstance(key, tuple) and key[0] == "env")


def _num_sampled(episode: Episode) -> int:
    return sum(episode_data(part).num_sampled for part in agent_episodes(episode))


def _episode_values(episode: Episode) -> dict[Any, float]:
    """Return the values that are averaged over episodes."""
    data, parts = episode_data(episode), agent_episodes(episode)
    ret, length = float(episode.get_return()), len(episode)
    values: dict[Any, float] = {
        EPISODE_RETURN_MEAN: ret,
        EPISODE_LEN_MEAN: length,
        EPISODE_DURATION_SEC_MEAN: data.seconds,
        "turns_mean": sum(map(len, parts)),
        "completion_tokens_mean": _num_sampled(episode),
        "context_tokens_mean": sum(episode_data(part).num_tokens for part in parts),
    }
    modules: dict[str, float] = defaultdict(float)
    for part in policy_episodes(episode):
        agent_id = part.agent_id or DEFAULT_AGENT_ID
        values["agent_episode_return_mean", agent_id] = float(part.get_return())
        modules[part.module_id or DEFAULT_MODULE_ID] += float(part.get_return())
    for module_id, episode_return in modules.items():
        values["module_episode_return_mean", module_id] = episode_return
    if data.success is not None:
        values[SUCCESS_RATE] = float(data.success)
    values |= {("env", name): value for name, value in data.metrics.items()}
    return values | {_STOP_KEYS[r]: float(data.stop_reason is r) for r in StopReason}


def _turn_values(episode: Episode) -> dict[str, list[float]]:
    """Return the values that are averaged over turns, not over episodes."""
    parts = [p.get_extra_model_outputs(columns.TURN) for p in agent_episodes(episode)]
    turns = [turn for part in parts for turn in part]
    repeated: dict[str, list[float]] = defaultdict(list)
    for part in parts:
        for key, per_turn in repetition(part).items():
            repeated[key] += per_turn
    return {
        **repeated,
        "tokens_per_turn_mean": [len(t.action_ids) for t in turns],
        "cut_turn_frac": [float(t.finish is FinishReason.LENGTH) for t in turns],
        "prefix_break_frac": [float(not t.extends) for t in turns],
        "invalid_action_frac": [float(t.invalid) for t in turns],
    }


def returns_std(episodes: Iterable[Any], group_size: int) -> list[float]:
    """Return the standard deviation of returns of each group.

    With groups of one it is that of all episodes together.
    """
    groups: dict[Any, list[float]] = defaultdict(list)
    for episode in episodes:
        task = episode_data(episode).task
        group = task.group_id if task is not None and group_size > 1 else None
        groups[group].append(float(episode.get_return()))
    return [float(np.std(returns)) for returns in groups.values()]


def log_waits(metrics: MetricsLogger, num_stalls: int, longest_s: float) -> None:
    """Log the number of stalls and the longest wait for a turn, in seconds."""
    metrics.log_value("num_stalls", num_stalls, reduce="sum")
    metrics.log_value("longest_wait_s", longest_s, reduce="max")


def log_engine(metrics: MetricsLogger, engine: GenerationEngine) -> None:
    """Log the engine's counters since the last call, then reset them."""
    for name, value in engine.stats().items():
        metrics.log_value(("engine", name), value, reduce="sum")
    engine.reset_stats()
