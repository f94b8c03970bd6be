"""Outcomes of tasks that an algorithm's policies play."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rllib_llm.data.episode_data import episode_data, task_of
from rllib_llm.data.types import Task
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.runner import local_runner

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.types import Episode, LLMAlgorithm, LLMConfig


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of one sample of one task.

    If the environment failed (``failure``), the outcome says nothing about the policy:
    the fields from ``episode_return`` on are None and must not count as zero in means.

    Attributes:
        task: Index of the task, equal for all its samples.
        seed: Seed of the task.
        sample: Index of the sample, from 0.
        failure: Stop reason if there is no episode after all retries, e.g.
            ``"timeout"``; None if there is an episode.
        episode_return: Sum of rewards, over all agents.
        agent_returns: Returns by AgentID; empty with a single agent.
        success: Whether the task was solved; None if the environment does not say.
        turns: Number of environment steps.
        tokens: Number of sampled tokens.
        stop_reason: Stop reason of the episode.
    """

    task: int
    seed: int
    sample: int
    failure: str | None = None
    episode_return: float | None = None
    agent_returns: dict[str, float] = dataclasses.field(default_factory=dict)
    success: bool | None = None
    turns: int | None = None
    tokens: int | None = None
    stop_reason: str | None = None


def held_out_tasks(
    config: LLMConfig, num_tasks: int, environment: str | None = None
) -> list[Task]:
    """Return the first held-out tasks of a config, the same tasks in every run.

    Args:
        config: The config.
        num_tasks: Number of tasks.
        environment: Environment of a mixture that all tasks belong to; None: its
            environments take turns.

    Raises:
        ConfigError: If the mixture has no such environment.
    """
    source = config.build_task_source(in_evaluation=True)
    if environment is not None:
        source = source.of_environment(environment)
    return source.fixed(num_tasks)


def play_tasks(
    algo: LLMAlgorithm,
    tasks: Sequence[Task],
    *,
    greedy: bool,
    samples: int = 1,
    runner: LLMEnvRunner | None = None,
) -> list[Outcome]:
    """Play tasks with the algorithm's current policies.

    Environment failures are reported as outcomes; ``max_failed_fraction`` does not
    apply.

    Args:
        algo: The algorithm.
        tasks: The tasks; their ``rollout`` is replaced by the index of the sample.
        greedy: Decode greedily, or sample as in training.
        samples: Number of samples per task, each with its own sampling seeds.
        runner: EnvRunner in place of the algorithm's, e.g. for another environment
            (see :func:`rllib_llm.evaluation.runner.runner_in`).

    Returns:
        One outcome per task and sample, ordered by task, then by sample.

    Raises:
        ConfigError: If ``samples`` is below 1, or above 1 with ``greedy``.
    """
    if samples < 1 or (greedy and samples > 1):
        raise ConfigError(
            f"samples={samples} must be >= 1, and 1 if greedy, because greedy samples "
            "are all equal. Set greedy=False for several samples."
        )
    runner = local_runner(algo) if runner is None else runner
    # By identity: tasks may be equal, and the runner returns these very objects.
    numbers = {
        id(rollout := dataclasses.replace(task, rollout=sample)): (number, rollout)
        for number, task in enumerate(tasks)
        for sample in range(samples)
    }
    episodes = runner.sample(
        tasks=[rollout for _, rollout in numbers.values()],
        explore=not greedy,
        # Failures are outcomes here, not a reason to end.
        max_failed_fraction=1.0,
    )
    runner.get_metrics()  # discarded: training metrics must not include these episodes
    failures = {id(task): reason for task, reason in runner.failures}
    played = {id(episode_data(e).task): e for e in episodes}
    return [
        Outcome(number, task.seed, task.rollout, failure=failures[key])
        if key in failures
        else outcome_of(played[key], number)
        for key, (number, task) in numbers.items()
    ]


def by_task(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Return the samples of each task without the failed ones."""
    tasks: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        played = tasks.setdefault(outcome.task, [])
        if outcome.failure is None:
            played.append(outcome)
    return list(tasks.values())


def outcome_of(episode: Episode, number: int) -> Outcome:
    """Return the outcome of an episode of the task with this number."""
    data, task = episode_data(episode), task_of(episode)
    parts = getattr(episode, "agent_episodes", None) or {}
    return Outcome(
        task=number,
        seed=task.seed,
        sample=task.rollout,
        episode_return=float(episode.get_return()),
        agent_returns={a: float(parts[a].get_return()) for a in sorted(parts)},
        success=None if data.success is None else bool(data.success),
        turns=len(episode),
        tokens=data.num_sampled,
        stop_reason=None if data.stop_reason is None else data.stop_reason.value,
    )
