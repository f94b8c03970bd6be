"""Pairs of episodes, of which one is preferred, and episodes with a label."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rllib_llm.advantages.column_keys import key_means
from rllib_llm.advantages.fork_trees import replies_of
from rllib_llm.data import columns
from rllib_llm.data.candidates import CandidateEpisode, candidate_episodes
from rllib_llm.data.episode_data import episode_data, task_of
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.turn_table import TurnTable

MATCHES = ("best_worst", "one_to_one", "all", "longest_prefix")

# Agent indices of the episodes in a unit.
CHOSEN, REJECTED, MISMATCHED = range(3)


class Compared:
    """Episodes that a loss compares: a unit that Learners and minibatches never split.

    It has what the Learner's pipeline reads of a MultiAgentEpisode.

    Args:
        sides: Episodes with their agent index, by name.
        compared: Other turns are context and are not trained.
    """

    def __init__(
        self, sides: dict[str, tuple[Any, int]], compared: slice = slice(None)
    ):
        self.agent_episodes = {
            name: _Side(episode, number, compared)
            for name, (episode, number) in sides.items()
        }
        self.custom_data: dict[str, Any] = {}
        self.id_ = ">".join(episode.id_ for episode, _ in sides.values())

    def __len__(self) -> int:
        """Return the number of turns of all episodes."""
        return sum(map(len, self.agent_episodes.values()))

    def env_steps(self) -> int:
        """Return the number of turns of all episodes."""
        return len(self)


class PreferencePair(Compared):
    """Two episodes of one task.

    Args:
        chosen: The preferred SingleAgentEpisode.
        rejected: The other one.
        after_fork: Whether only the turns from the first one in which they differ are
            compared; earlier ones are context.
        turn: The only turn that is compared; None: all.
    """

    def __init__(
        self,
        chosen: Any,
        rejected: Any,
        *,
        after_fork: bool = False,
        turn: int | None = None,
    ):
        compared = slice(None)
        if turn is not None:
            compared = slice(turn, turn + 1)
        elif after_fork:
            compared = slice(common_turns(chosen, rejected), None)
        sides = {"chosen": (chosen, CHOSEN), "rejected": (rejected, REJECTED)}
        super().__init__(sides, compared)


class LabelledEpisode(Compared):
    """An episode that is desirable or not (KTO).

    Args:
        episode: The SingleAgentEpisode.
        desirable: Its label.
        mismatched: The episode's prompt with the reply to another one, from which the
            KL divergence is estimated; None: from the episodes themselves.
    """

    def __init__(self, episode: Any, desirable: bool, mismatched: Any = None):
        label = CHOSEN if desirable else REJECTED
        sides = {"episode": (episode, label)}
        if mismatched is not None:
            sides["mismatched"] = (mismatched, MISMATCHED)
        super().__init__(sides)

    def __len__(self) -> int:
        """Return the episode's number of turns; the mismatched one is never played."""
        return len(self.agent_episodes["episode"])


class _Side:
    """An episode in a unit: what the Learner's pipeline reads of an agent's episode.

    Not the episode itself, which may be in other pairs on the other side.

    Args:
        episode: The SingleAgentEpisode.
        number: Its agent index.
        compared: Other turns are not trained.
    """

    def __init__(self, episode: Any, number: int, compared: slice):
        self._episode = episode
        data = episode_data(episode)
        turns = range(len(episode))
        data = dataclasses.replace(
            data,
            agent_index=number,
            is_annotated=False,
            masked_turns=frozenset(data.masked_turns)
            | (frozenset(turns) - frozenset(turns[compared])),
        )
        self.custom_data = {**episode.custom_data, columns.EPISODE_DATA: data}
        self.id_, self.module_id = episode.id_, episode.module_id
        self.is_truncated = episode.is_truncated

    def __len__(self) -> int:
        return len(self._episode)

    def get_rewards(self) -> Any:
        return self._episode.get_rewards()

    def get_extra_model_outputs(self, key: str) -> Any:
        return self._episode.get_extra_model_outputs(key)


def common_turns(one: Any, other: Any) -> int:
    """Return the number of leading turns with equal prompts, pictures and replies.

    The last turn of the shorter episode does not count: something is left to compare.
    """
    turns = [e.get_extra_model_outputs(columns.TURN) for e in (one, other)]
    equal = itertools.takewhile(
        lambda pair: (
            all(
                np.array_equal(getattr(pair[0], ids), getattr(pair[1], ids))
                for ids in ("prompt_ids", "action_ids")
            )
            and [p.digest for p in pair[0].images] == [p.digest for p in pair[1].images]
        ),
        zip(turns[0][:-1], turns[1][:-1], strict=False),
    )
    return sum(1 for _ in equal)


def outcome_pairs(
    returns: Sequence[float],
    tasks: Sequence[int],
    *,
    margin: float = 0.0,
    match: str = "one_to_one",
    max_pairs_per_task: int | None = None,
    shared_turns: Callable[[int, int], int] | None = None,
) -> list[tuple[int, int]]:
    """Return index pairs (better, worse) of episodes of the same task.

    Args:
        returns: Return of each episode. [N]
        tasks: Number of each episode's task. [N]
        margin: The better one's return is higher by more than this, >= 0.
        match: "best_worst": one pair per task (PAPRIKA). "one_to_one": the best with
            the worst, the second best with the second worst, and so on, so that every
            episode is in at most one pair. "all": every better one with every worse
            one, widest margins first. "longest_prefix": as "all", but pairs with most
            leading turns in common first, and every episode in at most one pair.
        max_pairs_per_task: Maximum number of pairs of a task; None: no limit.
        shared_turns: Returns how many leading turns two episodes share, by their
            indices; for "longest_prefix".

    Returns:
        Pairs in order of the tasks' first episodes; ties in order of the episodes.
    """
    by_task: dict[int, list[int]] = {}
    for index, task in enumerate(tasks):
        by_task.setdefault(task, []).append(index)
    pairs: list[tuple[int, int]] = []
    for members in by_task.values():
        # Stable in both directions: equal returns keep the order of the episodes.
        best = sorted(members, key=lambda i: -returns[i])
        worst = sorted(members, key=lambda i: returns[i])
        if match in ("all", "longest_prefix"):
            candidates = [(b, w) for b in best for w in worst]
            candidates.sort(key=lambda pair: returns[pair[1]] - returns[pair[0]])
        else:
            count = 1 if match == "best_worst" else len(members) // 2
            candidates = list(zip(best[:count], worst[:count], strict=True))
        kept = [(b, w) for b, w in candidates if returns[b] - returns[w] > margin]
        if match == "longest_prefix":
            assert shared_turns is not None
            kept = _once_each(sorted(kept, key=lambda pair: -shared_turns(*pair)))
        pairs += kept[:max_pairs_per_task]
    return pairs


def _once_each(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs, in order, whose members are in no pair before."""
    kept: list[tuple[int, int]] = []
    taken: set[int] = set()
    for pair in pairs:
        if taken.isdisjoint(pair):
            kept.append(pair)
            taken.update(pair)
    return kept


def pairs_of_episodes(
    episodes: Sequence[Any], *, after_fork: bool = False, **settings: Any
) -> list[PreferencePair]:
    """Return the pairs of sampled episodes; see :func:`outcome_pairs`."""
    indices = outcome_pairs(
        [_return(episode) for episode in episodes],
        [task_of(episode).group_id for episode in episodes],
        shared_turns=lambda b, w: common_turns(episodes[b], episodes[w]),
        **settings,
    )
    return [
        PreferencePair(episodes[b], episodes[w], after_fork=after_fork)
        for b, w in indices
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedReplies:
    """Two replies to one observation.

    Attributes:
        better: Index of an episode with the reply of the higher value.
        worse: Index of one with the other reply.
        turn: Number of the turn.
        gap: Difference of their values.
        task: Number of the task.
    """

    better: int
    worse: int
    turn: int
    gap: float
    task: int


def compared_replies(
    table: TurnTable,
    *,
    margin: float = 0.0,
    judge: str | None = None,
    judge_weight: float = 0.5,
) -> list[ComparedReplies]:
    """Return pairs of replies to one observation of forked episodes.

    The value of a reply is the mean return of the episodes that contain it, the
    Monte-Carlo estimate of IPR (Xiong et al. 2024, arXiv:2406.11176). With a judge it
    is ``(1 - judge_weight)`` of that and ``judge_weight`` of the judge's value of the
    turn (Agent Q, Putta et al. 2024, arXiv:2408.07199). Equal replies at one place are
    one. Of the replies at a place the best is paired with the worst, the
    second best with the second worst, and so on.

    Args:
        table: Whole groups of one agent.
        margin: The better one's value is higher by more than this, >= 0.
        judge: Assistant whose answers about turns count; None: none.
        judge_weight: Its share of a value, in [0, 1].
    """
    if not len(table.owner):
        return []
    owner = table.owner
    places, replies = replies_of(table)
    values = key_means(table.returns[owner], replies)
    if judge is not None:
        answers = [a for t in table.trajectories for a in t.answers_of(judge)]
        of_judge = key_means(np.array(answers, np.float64), replies)
        values = (1 - judge_weight) * values + judge_weight * of_judge
    # Of the episodes with a reply the first one that is trained on stands for it.
    order = np.argsort(~table.is_trained[owner], kind="stable")
    first = order[np.unique(replies[order], return_index=True)[1]]
    return [
        ComparedReplies(
            better=int(owner[first[b]]),
            worse=int(owner[first[w]]),
            turn=int(table.turn[first[b]]),
            gap=float(values[b] - values[w]),
            task=int(table.task[owner[first[b]]]),
        )
        for b, w in outcome_pairs(
            values.tolist(), places[first].tolist(), margin=margin
        )
    ]


def step_pairs(
    table: TurnTable, *, max_pairs_per_task: int | None = None, **settings: Any
) -> list[tuple[int, int, int]]:
    """Return :func:`compared_replies`, widest gaps first.

    Args:
        table: Whole groups of one agent.
        max_pairs_per_task: Maximum number of pairs of a task; None: no limit.
        settings: Those of :func:`compared_replies`.

    Returns:
        Indices of an episode with the better and one with the worse reply, and the
        number of the turn.
    """
    candidates = compared_replies(table, **settings)
    gaps, tasks = [each.gap for each in candidates], [each.task for each in candidates]
    kept = [candidates[i] for i in best_of_tasks(gaps, tasks, max_pairs_per_task)]
    return [(each.better, each.worse, each.turn) for each in kept]


def best_of_tasks(
    scores: Sequence[float], tasks: Sequence[int], max_per_task: int | None
) -> list[int]:
    """Return indices in order of falling scores, at most so many of each task."""
    used: dict[int, int] = {}
    kept = []
    for index in sorted(range(len(scores)), key=lambda i: -scores[i]):
        task = tasks[index]
        if max_per_task is None or used.get(task, 0) < max_per_task:
            used[task] = used.get(task, 0) + 1
            kept.append(index)
    return kept


def step_pairs_of_episodes(
    episodes: Sequence[Any] | SampledEpisodes, **settings: Any
) -> list[PreferencePair]:
    """Return pairs of episodes that compare one turn each; see :func:`step_pairs`."""
    if not isinstance(episodes, SampledEpisodes):
        episodes = SampledEpisodes(episodes)
    return [
        PreferencePair(episodes[better], episodes[worse], turn=turn)
        for better, worse, turn in step_pairs(episodes.table(), **settings)
    ]


def candidate_pairs_of_episodes(
    episodes: Sequence[Any],
    *,
    margin: float = 0.0,
    max_pairs_per_task: int | None = None,
) -> list[PreferencePair]:
    """Return pairs of replies that were sampled at one turn, by the rank of the score.

    The best is paired with the worst, the second best with the second worst, and so on
    (SWEET-RL, Zhou et al. 2025, arXiv:2503.15478, draws pairs of the better and the
    worse half).

    Args:
        episodes: Episodes with scored candidates.
        margin: The better one's score is higher by more than this, >= 0.
        max_pairs_per_task: Maximum number of pairs of a task, widest margins first;
            None: no limit.
    """
    replies: list[CandidateEpisode] = []
    scores, places, tasks = list[float](), list[int](), list[int]()
    for episode in episodes:
        for turn, of_turn in episode_data(episode).candidate_scores.items():
            replies += candidate_episodes(episode, turn)
            places += [len(scores)] * len(of_turn)
            tasks += [task_of(episode).group_id] * len(of_turn)
            scores += of_turn
    pairs = outcome_pairs(scores, places, margin=margin)
    gaps, of_task = (
        [scores[b] - scores[w] for b, w in pairs],
        [tasks[b] for b, _ in pairs],
    )
    kept = [pairs[i] for i in best_of_tasks(gaps, of_task, max_pairs_per_task)]
    return [
        PreferencePair(replies[b], replies[w], turn=replies[b].turn) for b, w in kept
    ]


def labelled_episodes(
    episodes: Sequence[Any], desirable_return: float
) -> list[LabelledEpisode]:
    """Return the episodes; those with a higher return than this are desirable."""
    return [LabelledEpisode(e, _return(e) > desirable_return) for e in episodes]


def _return(episode: Any) -> float:
    return float(np.sum(episode.get_rewards()))
