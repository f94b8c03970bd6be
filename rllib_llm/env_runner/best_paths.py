"""Places along the best episodes of groups, at which others may begin."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rllib_llm.data.episode_data import policy_episodes
from rllib_llm.env_runner.episode_tree import GroupTrees, chooses_in_tree
from rllib_llm.forks.follow_best import FollowBest

if TYPE_CHECKING:
    from rllib_llm.data.places import Place


@dataclasses.dataclass(slots=True)
class _Path:
    """The path of a group: the place of its last episodes.

    Attributes:
        turn: Number of the environment's step that follows the place.
        followed: Recorder of the episode that the place belongs to; None: the prompt.
        ended: Recorders of the episodes that began there, and have ended.
    """

    turn: int = 0
    followed: Any = None
    ended: list[Any] = dataclasses.field(default_factory=list)


class BestPaths:
    """Paths of the groups that are being sampled.

    The place of a group's next episodes depends on its earlier episodes alone.

    Args:
        rule: The fork rule.
    """

    def __init__(self, rule: FollowBest) -> None:
        self._rule = rule
        self._paths: dict[int, _Path] = {}

    def add(self, group: int, recorder: Any) -> None:
        """Add an episode that began at the place last chosen, or at the prompt.

        Args:
            group: Id of the group.
            recorder: The finished episode's recorder.
        """
        self._paths.setdefault(group, _Path()).ended.append(recorder)

    def next_place(self, group: int) -> tuple[Place | None, int]:
        """Return where the next episodes begin, and how many.

        Called when all episodes have ended that began at the place last chosen.

        Args:
            group: Id of the group.

        Returns:
            The place, None for the prompt, and the number of episodes.
        """
        path = self._paths.pop(group, _Path())
        # By number, because the order in which episodes end depends on timing.
        ended = sorted(path.ended, key=lambda recorder: recorder.task.rollout)
        # The one that is followed has a turn at this place, too. First, so that it
        # stays so among equal ones.
        played = [path.followed, *ended] if path.followed is not None else ended
        best, turn = max(played, key=team_return, default=None), path.turn + 1
        if best is None or turn >= best.env_t:
            return None, self._rule.width
        self._paths[group] = _Path(turn, best)
        return best.place(turn), self._rule.width - 1

    def end(self, group: int) -> None:
        """Forget a group's path."""
        self._paths.pop(group, None)


def team_return(recorder: Any) -> float:
    """Return the sum of the rewards of a recorder's episode, over all agents."""
    parts = [part for part in policy_episodes(recorder.episode) if len(part)]
    return float(sum(sum(part.get_rewards()) for part in parts))


def chooses_among_finished(rule: object) -> bool:
    """Return whether a fork rule chooses places among finished episodes."""
    return chooses_in_tree(rule) or isinstance(rule, FollowBest)


def chosen_places(rule: Any) -> GroupTrees | BestPaths:
    """Return what chooses the places of such a rule."""
    return BestPaths(rule) if isinstance(rule, FollowBest) else GroupTrees(rule)
