"""Questions of components to their assistants, and the protocol of components."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from rllib_llm.data.added_texts import TextSource
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import Task


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question about episodes and texts.

    Attributes:
        trajectories: The episodes, at least one.
        texts: The texts that the answer may change or should differ from.
    """

    trajectories: tuple[Trajectory, ...]
    texts: tuple[str, ...] = ()


class PromptText(Protocol):
    """A component that adds texts to first messages; its state as other components'.

    Attributes:
        of: Name of the assistant that writes texts; None: a rule does.
    """

    of: str | None

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task of a group with its texts."""
        ...

    def asked(self, table: TurnTable) -> list[Asked]:
        """Return the questions about sampled episodes; none without an assistant."""
        ...

    def observe(
        self, table: TurnTable, answers: Sequence[str | None]
    ) -> dict[str, float]:
        """Change the texts; return numbers to log.

        Args:
            table: The sampled episodes.
            answers: The assistant's texts, one for each question; None: unreadable.
        """
        ...

    def shared(self) -> TextSource | None:
        """Return the texts of all episodes, as evaluation adds them."""
        ...


def in_task_order(table: TurnTable) -> list[Trajectory]:
    """Return the trajectories by task, rollout and agent.

    Texts are changed in this order, so that they do not depend on which EnvRunner
    sampled what, nor on how many there are.
    """
    rollout = np.array([t.task.rollout for t in table.trajectories], np.int64)
    order = np.lexsort((table.agent, rollout, table.task))
    return [table.trajectories[index] for index in order]


def one_line(text: str, max_chars: int) -> str:
    """Return a text as one line of at most so many characters."""
    return " ".join(text.split())[:max_chars].rstrip()


def check_counts(**counts: int) -> None:
    """Check that numbers are at least 1.

    Raises:
        ValueError: If one is not.
    """
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name}={value!r} must be >= 1. Use the default.")


def agents_setting(agents: Sequence[str] | None) -> frozenset[str] | None:
    """Return the setting ``agents`` of components, checked.

    Raises:
        ValueError: If it is empty or no list of names.
    """
    if agents is None:
        return None
    if not isinstance(agents, list | tuple) or not agents:
        raise ValueError(
            f"agents={agents!r} must be a list of AgentIDs, or None for all of them. "
            "Use e.g. [solver]."
        )
    return frozenset(agents)
