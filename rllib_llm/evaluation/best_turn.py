"""The best of several replies at each turn of a task, by a score of the reply."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.data import columns
from rllib_llm.data.candidates import candidate_episodes
from rllib_llm.data.episode_data import episode_data, task_of
from rllib_llm.data.types import Task
from rllib_llm.env_runner.episode_tree import PlayedTurn
from rllib_llm.evaluation.best_of import EpisodeScore
from rllib_llm.evaluation.outcomes import Outcome, outcome_of
from rllib_llm.evaluation.tree_search import Snapshots, sample_from_places

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner


def last_logps(replies: Sequence[Any]) -> list[float]:
    """Return the mean log-probability of each conversation's last turn, in nats."""
    turns = [reply.get_extra_model_outputs(columns.TURN)[-1] for reply in replies]
    return [float(np.mean(turn.action_logps)) for turn in turns]


class TurnSelection:
    """Selection of the turns of one task.

    Args:
        task: The task.
        number: Its number.
        width: Replies that are sampled at each turn.

    Attributes:
        tokens: Sampled tokens of all replies.
        last: The chosen turn; None: the prompt.
        is_over: Whether the chosen turn ended the episode.
        failure: Stop reason of an episode that the environment failed.
    """

    def __init__(self, task: Task, number: int, width: int):
        self.task = dataclasses.replace(task, group_id=number)
        self.number, self.width = number, width
        self.tokens = 0
        self.last: PlayedTurn | None = None
        self.is_over = False
        self.failure: str | None = None

    @property
    def turn(self) -> int:
        """Number of the turn that is selected next."""
        return 0 if self.last is None else self.last.turn + 1

    def next_tasks(self, snapshots: Snapshots) -> list[Task]:
        """Return the tasks whose episodes sample the replies at the current place.

        They go on for a turn after the reply, which tells whether the reply ended the
        episode.
        """
        if self.is_over or self.failure is not None:
            return []
        place = None
        if self.last is not None:
            place = snapshots.place_after(self.last, self.task)
        return [
            dataclasses.replace(
                self.task, rollout=rollout, place=place, max_turns=self.turn + 2
            )
            for rollout in range(self.width)
        ]

    def choose(self, episodes: Sequence[Any], scores: Sequence[float]) -> None:
        """Play the reply with the best score, of equal ones the first.

        Args:
            episodes: Those of :meth:`next_tasks`, in its order.
            scores: Score of each reply.
        """
        turn = self.turn
        self.count_tokens(episodes)
        best = episodes[int(np.argmax(scores))]
        self.last = PlayedTurn(best, turn, self.last)
        self.is_over = len(best) == turn + 1

    def count_tokens(self, episodes: Sequence[Any]) -> None:
        """Count the tokens of the current turn's replies."""
        for episode in episodes:
            reply = episode.get_extra_model_outputs(columns.TURN)[self.turn]
            self.tokens += len(reply.action_ids)

    def outcome(self) -> Outcome:
        """Return the outcome of the turns that were chosen."""
        if self.failure is not None:
            seed = self.task.seed
            return Outcome(self.number, seed, 0, failure=self.failure)
        assert self.last is not None
        outcome = outcome_of(self.last.episode, self.number)
        return dataclasses.replace(outcome, sample=0, tokens=self.tokens)


def select_turns(
    runner: LLMEnvRunner, tasks: Sequence[Task], width: int, score: EpisodeScore
) -> list[TurnSelection]:
    """Play tasks side by side, at each turn the best of several replies.

    Args:
        runner: An EnvRunner with the policy.
        tasks: The tasks.
        width: Replies that are sampled at each turn.
        score: Scores conversations up to a reply, without what the environment says to
            it.

    Returns:
        The finished selections, in the order of the tasks.
    """
    selections = [TurnSelection(task, n, width) for n, task in enumerate(tasks)]
    finish(runner, selections, score)
    return selections


def finish(
    runner: LLMEnvRunner, selections: Sequence[TurnSelection], score: EpisodeScore
) -> None:
    """Sample and choose turns, of all tasks side by side, until all have ended.

    Args:
        runner: An EnvRunner with the policy.
        selections: The selections; their numbers are their places here.
        score: See :func:`select_turns`.
    """
    snapshots = Snapshots(runner.config.make_text_env())
    while wanted := [t for s in selections for t in s.next_tasks(snapshots)]:
        by_task: dict[int, list[Any]] = {}
        for number, episode in sample_from_places(runner, wanted):
            if isinstance(episode, str):
                selections[number].failure = episode
            elif len(episode) == episode_data(episode).fork_turn:
                selections[number].failure = "no turn fits into the context"
            else:
                by_task.setdefault(number, []).append(episode)
        for number, episodes in by_task.items():
            selection = selections[number]
            if selection.failure is None:
                episodes.sort(key=lambda episode: task_of(episode).rollout)
                replies = [candidate_episodes(e, selection.turn)[-1] for e in episodes]
                selection.choose(episodes, score(replies))
    snapshots.close()
