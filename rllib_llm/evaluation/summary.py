"""An evaluation: tasks played in one way, and what that says about the policy."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rllib_llm.evaluation.outcomes import Outcome, by_task, held_out_tasks, play_tasks
from rllib_llm.evaluation.runner import local_runner, runner_in
from rllib_llm.evaluation.success_statistics import (
    Estimate,
    mean_of_tasks,
    pass_at_k,
    share_of_tasks,
)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What an evaluation measured.

    Attributes:
        env: The environment's name.
        env_config: Its options.
        greedy: Most likely tokens (True) or sampled as in training.
        tasks: Held-out tasks.
        samples: How often each was played.
        episodes: Episodes played to their end; failed ones are not among them.
        failures: Episodes that the environment failed, by reason.
        success: Share of solved samples (avg@k); None where the task knows no success.
        pass_at: By k (1, 2, 4 ... and ``samples``): chance that one of k samples
            solves a task, unbiased; tasks with fewer samples do not count.
        episode_return: Mean return, of all agents together.
        turns: Mean turns per episode.
        tokens: Mean sampled tokens per episode.
        stop_reasons: Episodes by the reason of their end.
        optimal_value: Success rate of the best possible policy on the same tasks,
            where the environment can tell.
    """

    env: str
    env_config: dict[str, Any]
    greedy: bool
    tasks: int
    samples: int
    episodes: int
    failures: dict[str, int]
    success: Estimate | None
    pass_at: dict[int, Estimate]
    episode_return: Estimate | None
    turns: float | None
    tokens: float | None
    stop_reasons: dict[str, int]
    optimal_value: float | None


def evaluate_algorithm(
    algo: Any,
    num_tasks: int,
    *,
    greedy: bool,
    samples: int = 1,
    env: Any = None,
    env_config: dict[str, Any] | None = None,
) -> tuple[Evaluation, list[Outcome]]:
    """Play held-out tasks with the algorithm's policies; the same ones every time.

    Args:
        algo: The algorithm.
        num_tasks: How many tasks.
        greedy: Take the most likely tokens, or sample as in training.
        samples: How often to play each task.
        env: Another environment than that of training.
        env_config: Its options. Where the environment is the run's own, those of
            training hold for what is not named.

    Returns:
        The evaluation, and what it is made of.
    """
    own = local_runner(algo)
    runner = own if env is None else runner_in(own, env, env_config)
    config = runner.config
    tasks = held_out_tasks(config, num_tasks)
    outcomes = play_tasks(algo, tasks, greedy=greedy, samples=samples, runner=runner)
    if runner is not own:
        runner.stop()
    evaluation = summarise(
        outcomes,
        env=_name(config.env),
        env_config=dict(config.env_config),
        greedy=greedy,
        samples=samples,
        optimal_value=_optimal_value(config, tasks),
    )
    return evaluation, outcomes


def summarise(
    outcomes: Sequence[Outcome],
    *,
    env: str,
    env_config: dict[str, Any],
    greedy: bool,
    samples: int,
    optimal_value: float | None = None,
) -> Evaluation:
    """Return what outcomes of one environment say; arguments as in Evaluation."""
    tasks = by_task(outcomes)
    played = [o for group in tasks for o in group]
    solved = [[float(o.success) for o in g if o.success is not None] for g in tasks]
    return Evaluation(
        env=env,
        env_config=env_config,
        greedy=greedy,
        tasks=len(tasks),
        samples=samples,
        episodes=len(played),
        failures=_count(o.failure for o in outcomes if o.failure is not None),
        success=share_of_tasks(solved) if any(solved) else None,
        pass_at=_pass_at(solved, samples),
        episode_return=_mean([[o.episode_return for o in g] for g in tasks]),
        turns=_plain_mean([o.turns for o in played]),
        tokens=_plain_mean([o.tokens for o in played]),
        stop_reasons=_count(o.stop_reason for o in played),
        optimal_value=optimal_value,
    )


def _pass_at(solved: Sequence[Sequence[float]], samples: int) -> dict[int, Estimate]:
    """Return pass@k for the powers of two up to ``samples``, and for that itself."""
    powers = [2**i for i in range(samples.bit_length()) if 2**i < samples]
    found = {}
    for k in [*powers, samples] if samples > 1 else ():
        chances = [
            [pass_at_k(len(task), int(sum(task)), k)]
            for task in solved
            if len(task) >= k
        ]
        if chances:
            found[k] = share_of_tasks(chances)
    return found


def _mean(values: Sequence[Sequence[float]]) -> Estimate | None:
    return mean_of_tasks(values) if any(values) else None


def _plain_mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _count(reasons: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(reasons).items()))


def _name(env: Any) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", repr(env))


def _optimal_value(config: Any, tasks: Sequence[Any]) -> float | None:
    """Return the best policy's mean value on these tasks, if the env knows it."""
    env = config.make_text_env()
    if not hasattr(env.unwrapped, "optimal_value"):
        return None
    values = []
    for task in tasks:
        env.reset(seed=task.seed, options=task.options)
        values.append(env.unwrapped.optimal_value())
    env.close()
    return float(np.mean(values))
