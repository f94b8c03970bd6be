"""Population: instructions that compete, tried by groups and rated by their returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.added_texts import HEADING, AddedText, FixedTexts
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task
from rllib_llm.prompt_texts.asked import (
    Asked,
    agents_setting,
    check_counts,
    in_task_order,
    one_line,
)


@dataclasses.dataclass(slots=True)
class Instruction:
    """An instruction.

    Attributes:
        number: Its number, from 1; none is used again.
        text: Its text; "": nothing is added.
        value: Running mean of the returns of its groups; None before the first.
    """

    number: int
    text: str
    value: float | None = None


@component("prompt_text", "population", paper="cf. INSPO, arXiv:2512.01945")
class Population:
    """Let instructions compete: each group reads one, drawn by the returns so far.

    An assistant proposes new ones from failed episodes. A proposal is first tried by
    ``trial_groups`` groups, and admitted if their mean return is larger than the value
    of the worst instruction, which it replaces once there are ``size``.

    Args:
        of: Name of the assistant.
        texts: Instructions at the beginning; "" is a prompt without one.
        size: Most instructions, >= 1.
        temperature: An instruction is drawn with probability proportional to
            exp(value / temperature), > 0.
        decay: Weight of the value before in the running mean, in [0, 1).
        proposals: Proposals in an iteration, >= 1.
        trial_groups: Groups that try a proposal, >= 1.
        failures: Most failed episodes that a proposal is asked from, >= 1.
        max_chars: Longest text, in characters.
        heading: The line before the text.
        agents: AgentIDs that are asked about and read; None: all.
        seed: Seed of the draws, combined with the group's number.
    """

    def __init__(
        self,
        *,
        of: str,
        texts: Sequence[str] = ("",),
        size: int = 4,
        temperature: float = 0.1,
        decay: float = 0.5,
        proposals: int = 1,
        trial_groups: int = 2,
        failures: int = 4,
        max_chars: int = 300,
        heading: str = HEADING,
        agents: Sequence[str] | None = None,
        seed: int = 0,
    ):
        check_counts(size=size, proposals=proposals, trial_groups=trial_groups)
        check_counts(failures=failures, max_chars=max_chars)
        if not texts or len(texts) > size:
            raise ValueError(
                f"texts has {len(texts)} texts; there must be 1 to size={size}. Change "
                "one of the two."
            )
        if temperature <= 0 or not 0 <= decay < 1:
            raise ValueError(
                f"temperature={temperature} must be > 0 and decay={decay} in [0, 1). "
                "Use 0.1 and 0.5."
            )
        self.of: str | None = of
        self.size, self.temperature, self.decay = size, temperature, decay
        self.proposals, self.trial_groups = proposals, trial_groups
        self.failures, self.max_chars = failures, max_chars
        self.heading, self.agents = heading, agents_setting(agents)
        self.seed = seed
        self.members = [Instruction(i, text) for i, text in enumerate(texts, 1)]
        self.proposed: list[Instruction] = []
        self._next = len(texts) + 1
        self._read: dict[int, int] = {}  # instruction's number, by group

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task with a proposal to try, or else with a drawn instruction."""
        chosen = next((p for p in self.proposed if self._trials(p) > 0), None)
        if chosen is None:
            rng = np.random.default_rng([self.seed, task.group_id])
            index = int(rng.choice(len(self.members), p=self.probabilities()))
            chosen = self.members[index]
        self._read[task.group_id] = chosen.number
        return task.with_texts(self._source(chosen))

    def probabilities(self) -> np.ndarray:
        """Return the probability of each instruction; one without a value is equal to
        the best. [N]"""
        rated = [m.value for m in self.members if m.value is not None]
        best = max(rated, default=0.0)
        values = [best if m.value is None else m.value for m in self.members]
        powers = np.exp((np.array(values) - max(values)) / self.temperature)
        return powers / powers.sum()

    def asked(self, table: TurnTable) -> list[Asked]:
        """Return a question for each proposal, about failed episodes."""
        failed = [
            t
            for t in in_task_order(table)
            if not t.is_solved and (self.agents is None or t.agent_id in self.agents)
        ][: self.failures * self.proposals]
        texts = tuple(m.text for m in (*self.members, *self.proposed) if m.text)
        parts = [tuple(failed[i :: self.proposals]) for i in range(self.proposals)]
        return [Asked(part, texts) for part in parts if part]

    def observe(
        self, table: TurnTable, answers: Sequence[str | None]
    ) -> dict[str, float]:
        """Rate the instructions, admit or drop proposals, and take new ones."""
        returns = self._returns(table)
        for member in self.members:
            if member.number in returns:
                mean, old = float(np.mean(returns[member.number])), member.value
                new = (1 - self.decay) * mean
                member.value = mean if old is None else self.decay * old + new
        tried = [p for p in self.proposed if p.number in returns]
        admitted = [p for p in tried if self._admit(p, returns[p.number])]
        self.proposed = [p for p in self.proposed if p not in tried]
        self._read.clear()
        self._propose(answers)
        values = [m.value for m in self.members if m.value is not None]
        return {
            "num_texts": float(len(self.members)),
            "num_tried": float(len(tried)),
            "num_admitted": float(len(admitted)),
            "best_value": max(values, default=0.0),
        }

    def shared(self) -> FixedTexts:
        """Return the best instruction, the oldest of equal ones."""
        return self._source(self.best)

    @property
    def best(self) -> Instruction:
        """The instruction of the largest value."""
        return max(self.members, key=_rank)

    def get_state(self) -> dict[str, Any]:
        """Return the instructions and the proposals."""
        return {
            "members": [dataclasses.asdict(m) for m in self.members],
            "proposed": [dataclasses.asdict(p) for p in self.proposed],
            "next": self._next,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        self.members = [Instruction(**m) for m in state["members"]]
        self.proposed = [Instruction(**p) for p in state["proposed"]]
        self._next = int(state["next"])
        self._read.clear()

    def _source(self, instruction: Instruction) -> FixedTexts:
        text = AddedText(instruction.number, instruction.text)
        texts = (text,) if instruction.text else ()
        return FixedTexts(texts, self.heading, self.agents)

    def _trials(self, proposal: Instruction) -> int:
        """Return the number of groups that a proposal still needs."""
        return self.trial_groups - list(self._read.values()).count(proposal.number)

    def _returns(self, table: TurnTable) -> dict[int, list[float]]:
        """Return the returns of the episodes of each instruction, by its number."""
        returns: dict[int, list[float]] = {}
        for trajectory in in_task_order(table):
            number = self._read.get(trajectory.task.group_id)
            if number is not None:
                returns.setdefault(number, []).append(trajectory.episode_return)
        return returns

    def _admit(self, proposal: Instruction, returns: Sequence[float]) -> bool:
        """Take a proposal in if it is better than the worst instruction."""
        worst, value = min(self.members, key=_rank), float(np.mean(returns))
        if worst.value is not None and value <= worst.value:
            return False
        if len(self.members) >= self.size:
            self.members.remove(worst)
        proposal.value = value
        self.members.append(proposal)
        return True

    def _propose(self, answers: Sequence[str | None]) -> None:
        existing = {m.text for m in (*self.members, *self.proposed)}
        for answer in answers:
            text = one_line(answer or "", self.max_chars)
            if text and text not in existing:
                self.proposed.append(Instruction(self._next, text))
                self._next += 1
                existing.add(text)


def _rank(instruction: Instruction) -> tuple[float, int]:
    value = instruction.value
    return (-np.inf if value is None else value, -instruction.number)
