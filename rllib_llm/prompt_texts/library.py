"""Library: a few texts that all episodes read, edited after comparing rollouts."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from rllib_llm.components.registry import component
from rllib_llm.data.added_texts import HEADING, AddedText, FixedTexts
from rllib_llm.data.text_operations import TextOperation, read_operations
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import Task
from rllib_llm.prompt_texts.asked import (
    Asked,
    agents_setting,
    check_counts,
    in_task_order,
    one_line,
)


@component(
    "prompt_text", "library", paper="Training-free GRPO, arXiv:2510.08191 (experiences)"
)
class Library:
    """Let an assistant edit a short list of texts, which all episodes read.

    After each iteration it is asked about every task that some rollouts solved and
    others did not, and answers with operations: ``ADD: text``, ``UPDATE 2: text``,
    ``DELETE 2``. All numbers are those of the list that the episodes read.

    Args:
        of: Name of the assistant.
        texts: Texts at the beginning.
        size: Most texts, >= 1; the oldest goes beyond it.
        max_chars: Longest text, in characters.
        heading: The line before the texts.
        agents: AgentIDs that are asked about and read; None: all.
    """

    def __init__(
        self,
        *,
        of: str,
        texts: Sequence[str] = (),
        size: int = 8,
        max_chars: int = 300,
        heading: str = HEADING,
        agents: Sequence[str] | None = None,
    ):
        check_counts(size=size, max_chars=max_chars)
        if len(texts) > size:
            raise ValueError(
                f"texts has {len(texts)} texts, more than size={size}. Raise size."
            )
        self.of: str | None = of
        self.size, self.max_chars, self.heading = size, max_chars, heading
        self.agents = agents_setting(agents)
        self._texts = [AddedText(i, text) for i, text in enumerate(texts, 1)]
        self._next = len(texts) + 1

    @property
    def texts(self) -> list[str]:
        """The texts, oldest first."""
        return [added.text for added in self._texts]

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task with all texts."""
        return task.with_texts(self.shared())

    def asked(self, table: TurnTable) -> list[Asked]:
        """Return a question about each task that was solved sometimes."""
        groups = collections.defaultdict[tuple[int, int], list[Trajectory]](list)
        for trajectory in in_task_order(table):
            if self.agents is None or trajectory.agent_id in self.agents:
                key = trajectory.task.group_id, trajectory.agent
                groups[key].append(trajectory)
        return [
            Asked(tuple(rollouts), tuple(self.texts))
            for rollouts in groups.values()
            if 0 < sum(t.is_solved for t in rollouts) < len(rollouts)
        ]

    def observe(
        self, table: TurnTable, answers: Sequence[str | None]
    ) -> dict[str, float]:
        """Apply the operations of all answers to the list, in order."""
        shown = list(self._texts)
        counts = collections.Counter[str]()
        for answer in answers:
            for operation in read_operations(answer or "", len(shown)):
                counts[operation.kind] += self._apply(operation, shown)
        return {
            "num_texts": float(len(self._texts)),
            "num_added": float(counts["add"]),
            "num_updated": float(counts["update"]),
            "num_deleted": float(counts["delete"]),
        }

    def shared(self) -> FixedTexts:
        """Return all texts."""
        return FixedTexts(tuple(self._texts), self.heading, self.agents)

    def get_state(self) -> dict[str, Any]:
        """Return the texts."""
        texts = [[added.number, added.text] for added in self._texts]
        return {"texts": texts, "next": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        self._texts = [AddedText(int(n), str(t)) for n, t in state["texts"]]
        self._next = int(state["next"])

    def _apply(self, operation: TextOperation, shown: Sequence[AddedText]) -> bool:
        """Apply an operation; return whether it changes anything."""
        text = one_line(operation.text, self.max_chars)
        if operation.kind != "delete" and text in self.texts:
            return False
        if operation.kind == "add":
            self._texts = [*self._texts, AddedText(self._next, text)][-self.size :]
            self._next += 1
            return True
        number = shown[operation.number - 1].number
        places = [i for i, added in enumerate(self._texts) if added.number == number]
        if not places:  # another answer has deleted it
            return False
        if operation.kind == "delete":
            del self._texts[places[0]]
        else:
            self._texts[places[0]] = AddedText(number, text)
        return True
