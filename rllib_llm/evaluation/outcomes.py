"""What came of each task that an algorithm's policies played."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import Task
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.runner import local_runner


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One sample of one task.

    Where the environment failed (``failure``), nothing is known of the policy: the
    fields from ``episode_return`` on are None, which no mean may take for zero.

    Attributes:
        task: Number of the task, equal for all its samples.
        seed: Its seed.
        sample: Number of the sample, from 0.
        failure: Why there is no episode after all retries (a stop reason that drops
            episodes, e.g. ``"timeout"``); None where there is one.
        episode_return: Sum of rewards, of all agents if there are several.
        agent_returns: The same by AgentID; empty for a single agent.
        success: Whether the task was solved, where that is defined.
        turns: Environment steps.
        tokens: Sampled tokens.
        stop_reason: Why the episode ended.
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


def held_out_tasks(config: Any, num_tasks: int) -> list[Task]:
    """Return the first held-out tasks of a config, the same ones in every run."""
    return config.build_task_source(in_evaluation=True).fixed(num_tasks)


def play_tasks(
    algo: Any,
    tasks: Sequence[Task],
    *,
    greedy: bool,
    samples: int = 1,
    runner: Any = None,
) -> list[Outcome]:
    """Play tasks with the algorithm's present policies.

    Failures of environments are outcomes of their own, however many there are
    (``max_failed_fraction`` does not apply).

    Args:
        algo: The algorithm.
        tasks: What to play; what they say of rollouts is replaced by the samples.
        greedy: Take the most likely tokens, or sample as in training.
        samples: How often to play each task, with random numbers of its own.
        runner: Plays in place of the algorithm's own EnvRunner (another environment,
            see :func:`rllib_llm.evaluation.runner.runner_in`).

    Returns:
        One outcome per task and sample, the samples of a task side by side.

    Raises:
        ConfigError: If a greedy policy shall give several samples.
    """
    if samples < 1 or (greedy and samples > 1):
        raise ConfigError(
            f"samples={samples} must be >= 1, and 1 if greedy: the most likely tokens "
            "are the same every time. Sample (greedy=False) to see several tries."
        )
    runner = local_runner(algo) if runner is None else runner
    numbers = {
        id(rollout := dataclasses.replace(task, rollout=sample)): (number, rollout)
        for number, task in enumerate(tasks)
        for sample in range(samples)
    }
    episodes = runner.sample(
        tasks=[rollout for _, rollout in numbers.values()],
        explore=not greedy,
        max_failed_fraction=1.0,
    )
    runner.get_metrics()  # these episodes are none of the training's
    failures = {id(task): reason for task, reason in runner.failures}
    played = {id(episode_data(e).task): e for e in episodes}
    return [
        Outcome(number, task.seed, task.rollout, failure=failures[key])
        if key in failures
        else _outcome(played[key], number)
        for key, (number, task) in numbers.items()
    ]


def by_task(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Return the played samples of each task; failed ones are left out."""
    tasks: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        found = tasks.setdefault(outcome.task, [])
        if outcome.failure is None:
            found.append(outcome)
    return list(tasks.values())


def _outcome(episode: Any, number: int) -> Outcome:
    data = episode_data(episode)
    parts = getattr(episode, "agent_episodes", None) or {}
    return Outcome(
        task=number,
        seed=data.task.seed,
        sample=data.task.rollout,
        episode_return=float(episode.get_return()),
        agent_returns={a: float(parts[a].get_return()) for a in sorted(parts)},
        success=None if data.success is None else bool(data.success),
        turns=len(episode),
        tokens=data.num_sampled,
        stop_reason=data.stop_reason.value,
    )
