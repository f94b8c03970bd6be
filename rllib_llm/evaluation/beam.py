"""Beam search over the turns of held-out tasks, by a score of the turns so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.data.types import Task
from rllib_llm.env_runner.episode_tree import PlayedTurn, turns_of
from rllib_llm.envs.parsing import require_int
from rllib_llm.evaluation.best_of import EpisodeScore
from rllib_llm.evaluation.best_turn import TurnSelection, finish
from rllib_llm.evaluation.tree_search import Snapshots

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

_MANY = 10**6


@dataclasses.dataclass(frozen=True, kw_only=True)
class BeamSettings:
    """Settings of the beam search.

    Attributes:
        width: Unfinished episodes that are kept after each turn.
        expand: Replies that are sampled from each of them; equal ones become one.

    Raises:
        ConfigError: If a value is out of range.
    """

    width: int = 4
    expand: int = 4

    def __post_init__(self) -> None:
        """Check the values."""
        require_int("width", self.width, 1, _MANY)
        require_int("expand", self.expand, 1, _MANY)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Turns of an episode from the prompt on.

    Attributes:
        last: The last one of them.
        score: Their score.
        is_over: Whether the last one ended the episode.
    """

    last: PlayedTurn
    score: float
    is_over: bool


class BeamSearch(TurnSelection):
    """Beam search of one task.

    Episodes that have ended do not take a place of the beam, and none of them is
    dropped: at the end the one with the best score counts.

    Args:
        task: The task.
        number: Its number.
        settings: Settings of the search.

    Attributes:
        kept: The unfinished episodes, the best first; None: the prompt.
        ended: The finished ones, in the order in which they ended.
    """

    def __init__(self, task: Task, number: int, settings: BeamSettings):
        super().__init__(task, number, settings.expand)
        self.kept: list[Prefix | None] = [None]
        self.ended: list[Prefix] = []
        self._beam, self._num_sampled = settings.width, 0

    def next_tasks(self, snapshots: Snapshots) -> list[Task]:
        """Return the tasks of the replies to each of the kept episodes, in order.

        They go on for a turn after the reply, as those of :class:`TurnSelection`.
        """
        if self.is_over or self.failure is not None:
            return []
        tasks = []
        for prefix in self.kept:
            place = None
            if prefix is not None:
                place = snapshots.place_after(prefix.last, self.task)
            for _ in range(self.width):
                rollout, self._num_sampled = self._num_sampled, self._num_sampled + 1
                tasks.append(
                    dataclasses.replace(
                        self.task,
                        rollout=rollout,
                        place=place,
                        max_turns=self.turn + 2,
                    )
                )
        return tasks

    def choose(self, episodes: Sequence[Any], scores: Sequence[float]) -> None:
        """Keep the best episodes that go on, and all that have ended.

        Of equal turns of a place the one with the best score stays.

        Args:
            episodes: Those of :meth:`next_tasks`, in its order.
            scores: Score of each, up to the reply.
        """
        self.count_tokens(episodes)
        best_of_turn: dict[Any, Prefix] = {}
        for index, (episode, score) in enumerate(zip(episodes, scores, strict=True)):
            number = index // self.width
            before = self.kept[number]
            # The episode has a turn more, which is not read.
            turn = next(turns_of(episode, before.last if before else None))
            key = (number, turn.key)
            if key not in best_of_turn or score > best_of_turn[key].score:
                best_of_turn[key] = Prefix(turn.data, score, turn.is_last)
        self.ended += [prefix for prefix in best_of_turn.values() if prefix.is_over]
        going_on = [prefix for prefix in best_of_turn.values() if not prefix.is_over]
        self.kept = [*sorted(going_on, key=_score, reverse=True)[: self._beam]]
        self.is_over = not self.kept
        # Of equal ones the first, as the sort above.
        best = max(self.ended, key=_score) if self.is_over else self.kept[0]
        assert best is not None
        self.last = best.last


def search_beams(
    runner: LLMEnvRunner,
    tasks: Sequence[Task],
    settings: BeamSettings,
    score: EpisodeScore,
) -> list[BeamSearch]:
    """Search tasks side by side, one turn of each at a time.

    Args:
        runner: An EnvRunner with the policy.
        tasks: The tasks.
        settings: Settings of the search.
        score: Scores conversations up to a reply, without what the environment says to
            it.

    Returns:
        The finished searches, in the order of the tasks.
    """
    searches = [BeamSearch(task, n, settings) for n, task in enumerate(tasks)]
    finish(runner, searches, score)
    return searches


def _score(prefix: Prefix) -> float:
    return prefix.score
