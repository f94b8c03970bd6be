"""Evaluation of an algorithm on held-out tasks, and its summary."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.evaluation.outcomes import Outcome, by_task, held_out_tasks, play_tasks
from rllib_llm.evaluation.runner import local_runner, runner_in
from rllib_llm.evaluation.success_statistics import (
    Estimate,
    mean_of_tasks,
    pass_at_k,
    share_of_tasks,
)

if TYPE_CHECKING:
    from rllib_llm.envs.make import EnvSpec
    from rllib_llm.types import LLMAlgorithm, LLMConfig


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        env: The environment's name.
        env_config: Its options.
        greedy: Whether tokens were decoded greedily instead of sampled.
        tasks: Number of held-out tasks.
        samples: Number of samples per task.
        episodes: Number of finished episodes, without failed ones.
        failures: Number of episodes that failed in the environment, by stop reason.
        success: Share of solved samples (avg@k); None if the environment does not
            report success.
        pass_at: Unbiased pass@k by k (1, 2, 4 ... and ``samples``), over tasks with at
            least k samples.
        episode_return: Mean return, summed over agents.
        turns: Mean turns per episode.
        tokens: Mean sampled tokens per episode.
        stop_reasons: Number of episodes by stop reason.
        optimal_value: Success rate of the best possible policy on the same tasks; None
            if the environment does not say.
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
    algo: LLMAlgorithm,
    num_tasks: int,
    *,
    greedy: bool,
    samples: int = 1,
    env: EnvSpec | None = None,
    env_config: dict[str, Any] | None = None,
    environment: str | None = None,
) -> tuple[Evaluation, list[Outcome]]:
    """Evaluate the algorithm's policies on held-out tasks, the same every time.

    Args:
        algo: The algorithm.
        num_tasks: Number of tasks.
        greedy: Decode greedily, or sample as in training.
        samples: Number of samples per task.
        env: Environment in place of that of training.
        env_config: Its options. For the run's own environment, missing options have
            their values of training.
        environment: Environment of the run's mixture; None: all tasks together.

    Returns:
        The evaluation and its outcomes.
    """
    # Also with another environment: it takes the Learners' weights from there.
    runner_of_algo = local_runner(algo)
    runner = runner_of_algo
    if env is not None:
        runner = runner_in(runner_of_algo, env, env_config)
    config = runner.config
    tasks = held_out_tasks(config, num_tasks, environment)
    outcomes = play_tasks(algo, tasks, greedy=greedy, samples=samples, runner=runner)
    if runner is not runner_of_algo:
        runner.stop()
    evaluation = summarise(
        outcomes,
        env=environment or _name(config.env),
        env_config=_env_config_of(config, environment),
        greedy=greedy,
        samples=samples,
        optimal_value=optimal_value_of(config.make_text_env(), tasks),
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
    """Return the evaluation of outcomes; arguments as in :class:`Evaluation`."""
    tasks = by_task(outcomes)
    played = [o for group in tasks for o in group]
    returns = [
        [o.episode_return for o in g if o.episode_return is not None] for g in tasks
    ]
    solved = [[float(o.success) for o in g if o.success is not None] for g in tasks]
    return Evaluation(
        env=env,
        env_config=env_config,
        greedy=greedy,
        tasks=len(tasks),
        samples=samples,
        episodes=len(played),
        failures=_count(o.failure for o in outcomes if o.failure is not None),
        # any(): if some task has samples, whatever their success.
        success=share_of_tasks(solved) if any(solved) else None,
        pass_at=_pass_at(solved, samples),
        episode_return=_mean(returns),
        turns=_plain_mean([o.turns for o in played if o.turns is not None]),
        tokens=_plain_mean([o.tokens for o in played if o.tokens is not None]),
        stop_reasons=_count(o.stop_reason for o in played if o.stop_reason),
        optimal_value=optimal_value,
    )


def _pass_at(solved: Sequence[Sequence[float]], samples: int) -> dict[int, Estimate]:
    """Return pass@k for the powers of two below ``samples``, and for ``samples``."""
    # Powers of two, as is usual for pass@k, and the largest k that the samples allow.
    powers = [2**i for i in range(samples.bit_length()) if 2**i < samples]
    estimates = {}
    for k in [*powers, samples] if samples > 1 else ():
        chances = [
            [pass_at_k(len(task), int(sum(task)), k)]
            for task in solved
            # Failed samples are missing; a task with fewer than k has no estimate.
            if len(task) >= k
        ]
        if chances:
            estimates[k] = share_of_tasks(chances)
    return estimates


def _mean(values: Sequence[Sequence[float]]) -> Estimate | None:
    return mean_of_tasks(values) if any(values) else None


def _plain_mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _count(reasons: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(reasons).items()))


def _env_config_of(config: LLMConfig, environment: str | None) -> dict[str, Any]:
    for member in config.mixture_members:
        if member.name == environment:
            return dict(member.env_config)
    return dict(config.env_config)


def _name(env: EnvSpec) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", repr(env))


def optimal_value_of(env: Any, tasks: Sequence[Any]) -> float | None:
    """Return the mean optimal value of these tasks, if the environment has it.

    Args:
        env: An environment for this call, which closes it.
        tasks: The tasks.
    """
    values = list(_optimal_values(env, tasks))
    env.close()
    return None if None in values else float(np.mean(values))


def _optimal_values(env: Any, tasks: Sequence[Any]) -> Iterator[Any]:
    """Yield the optimal value of each task; None, and nothing more, without one."""
    # A mixture has the methods of a task's environment after the reset.
    may_have_one = hasattr(env, "environment_names")
    for task in tasks:
        if may_have_one or hasattr(env.unwrapped, "optimal_value"):
            env.reset(seed=task.seed, options=task.options)
        if not hasattr(env.unwrapped, "optimal_value"):
            yield None
            return
        yield env.unwrapped.optimal_value()
