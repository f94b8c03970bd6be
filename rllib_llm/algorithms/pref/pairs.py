"""Pairs of episodes, of which one is preferred."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data, task_of
from rllib_llm.offline.conversation_files import StoredPair
from rllib_llm.offline.stored_episodes import conversation_episode

MATCHES = ("best_worst", "one_to_one", "all")


class PreferencePair:
    """Two episodes of one task: a unit that Learners and minibatches never split.

    It has what the Learner's pipeline reads of a MultiAgentEpisode.

    Args:
        chosen: The preferred SingleAgentEpisode.
        rejected: The other one.
    """

    def __init__(self, chosen: Any, rejected: Any):
        self.agent_episodes = {
            name: _Side(episode, number)
            for number, (name, episode) in enumerate(
                (("chosen", chosen), ("rejected", rejected))
            )
        }
        self.custom_data: dict[str, Any] = {}
        self.id_ = f"{chosen.id_}>{rejected.id_}"

    def __len__(self) -> int:
        """Return the number of turns of both episodes."""
        return sum(map(len, self.agent_episodes.values()))

    def env_steps(self) -> int:
        """Return the number of turns of both episodes."""
        return len(self)


class _Side:
    """An episode in a pair: what the Learner's pipeline reads of an agent's episode.

    Not the episode itself, which may be in other pairs on the other side.

    Args:
        episode: The SingleAgentEpisode.
        number: 0 for the chosen one, 1 for the rejected one.
    """

    def __init__(self, episode: Any, number: int):
        self._episode = episode
        data = dataclasses.replace(
            episode_data(episode), agent_index=number, is_annotated=False
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


def outcome_pairs(
    returns: Sequence[float],
    tasks: Sequence[int],
    *,
    margin: float = 0.0,
    match: str = "one_to_one",
    max_pairs_per_task: int | None = None,
) -> list[tuple[int, int]]:
    """Return index pairs (better, worse) of episodes of the same task.

    Args:
        returns: Return of each episode. [N]
        tasks: Number of each episode's task. [N]
        margin: The better one's return is higher by more than this, >= 0.
        match: "best_worst": one pair per task (PAPRIKA). "one_to_one": the best with
            the worst, the second best with the second worst, and so on, so that every
            episode is in at most one pair. "all": every better one with every worse
            one, widest margins first.
        max_pairs_per_task: Maximum number of pairs of a task; None: no limit.

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
        if match == "all":
            candidates = [(b, w) for b in best for w in worst]
            candidates.sort(key=lambda pair: returns[pair[1]] - returns[pair[0]])
        else:
            count = 1 if match == "best_worst" else len(members) // 2
            candidates = list(zip(best[:count], worst[:count], strict=True))
        kept = [(b, w) for b, w in candidates if returns[b] - returns[w] > margin]
        pairs += kept[:max_pairs_per_task]
    return pairs


def pairs_of_episodes(episodes: Sequence[Any], **settings: Any) -> list[PreferencePair]:
    """Return the pairs of sampled episodes; see :func:`outcome_pairs`."""
    indices = outcome_pairs(
        [float(np.sum(episode.get_rewards())) for episode in episodes],
        [task_of(episode).group_id for episode in episodes],
        **settings,
    )
    return [PreferencePair(episodes[b], episodes[w]) for b, w in indices]


# Pairs from files ---------------------------------------------------------------------


def stored_pair(
    pair: StoredPair, renderer: ChatRenderer, system_prompt: str | None = None
) -> PreferencePair:
    """Return a stored pair as episodes with Turn records."""
    return PreferencePair(
        conversation_episode(pair.chosen, renderer, system_prompt),
        conversation_episode(pair.rejected, renderer, system_prompt),
    )
