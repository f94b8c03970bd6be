"""Best of n: whole episodes of a task, of which the one with the best score counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import Task
from rllib_llm.evaluation.outcomes import Outcome, outcome_of

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

EpisodeScore = Callable[[Sequence[Any]], Sequence[float]]
"""Scores of episodes, the higher the better."""


def mean_logps(episodes: Sequence[Any]) -> list[float]:
    """Return the mean log-probability of each episode's sampled tokens, in nats."""
    means = []
    for episode in episodes:
        turns = episode.get_extra_model_outputs(columns.TURN)
        means.append(float(np.mean(np.concatenate([t.action_logps for t in turns]))))
    return means


def returns(episodes: Sequence[Any]) -> list[float]:
    """Return the return of each episode."""
    return [float(episode.get_return()) for episode in episodes]


@dataclasses.dataclass
class TaskSamples:
    """Episodes of one task.

    Attributes:
        task: The task.
        number: Its number.
        max_episodes: Episodes to sample; None: until ``max_tokens``.
        max_tokens: The episode with which the sampled tokens reach this number is the
            last one; None: ``max_episodes``.
        outcomes: Outcomes of the episodes, in the order of their seeds.
        scores: Their scores, by name.
        failure: Stop reason of an episode that the environment failed.
    """

    task: Task
    number: int
    max_episodes: int | None = None
    max_tokens: int | None = None
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    scores: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    failure: str | None = None

    @property
    def tokens(self) -> int:
        """Sampled tokens of the episodes."""
        return sum(outcome.tokens or 0 for outcome in self.outcomes)

    @property
    def num_missing(self) -> int:
        """Number of episodes to sample next; 0: none."""
        if self.failure is not None:
            return 0
        if self.max_tokens is None:
            return (self.max_episodes or 0) - len(self.outcomes)
        left = self.max_tokens - self.tokens
        if left <= 0:
            return 0
        longest = max((o.tokens or 0 for o in self.outcomes), default=left)
        # Never too many: not even if all of them are as long as the longest so far.
        return max(1, left // max(1, longest))

    def best_by(self, name: str) -> Outcome:
        """Return the outcome with the best score, of equal ones the first."""
        return self.outcomes[int(np.argmax(self.scores[name]))]


def sample_tasks(
    runner: LLMEnvRunner,
    samples: Sequence[TaskSamples],
    scores: dict[str, EpisodeScore],
) -> None:
    """Sample the episodes that the tasks miss, and score them.

    Args:
        runner: An EnvRunner with the policy.
        samples: The tasks, to which outcomes and scores are added.
        scores: Scores of episodes, by name.
    """
    while True:
        requests = {
            id(task): (each, task) for each in samples for task in _next_tasks(each)
        }
        if not requests:
            return
        episodes = runner.sample(
            tasks=[task for _, task in requests.values()],
            explore=True,
            # Failures are outcomes here, not a reason to end.
            max_failed_fraction=1.0,
        )
        runner.get_metrics()  # discarded, as for all evaluations of this kind
        for failed, reason in runner.failures:
            requests[id(failed)][0].failure = reason
        scored = {name: score(episodes) for name, score in scores.items()}
        for index, episode in enumerate(episodes):
            each = requests[id(episode_data(episode).task)][0]
            if not each.num_missing:
                continue  # an episode before it was longer than all earlier ones
            each.outcomes.append(outcome_of(episode, each.number))
            for name, values in scored.items():
                each.scores.setdefault(name, []).append(float(values[index]))


def _next_tasks(samples: TaskSamples) -> list[Task]:
    first = len(samples.outcomes)
    return [
        dataclasses.replace(samples.task, rollout=rollout)
        for rollout in range(first, first + samples.num_missing)
    ]
