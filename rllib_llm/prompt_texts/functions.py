"""Functions: a set that programs of all episodes may call, edited and rolled back."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.added_texts import FixedTexts
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import Task
from rllib_llm.prompt_texts.asked import Asked, check_counts, in_task_order
from rllib_llm.prompt_texts.function_operations import (
    FunctionOperation,
    read_function_operations,
)
from rllib_llm.sandbox import shared_sandbox
from rllib_llm.sandbox.functions import Function, failed_example, read_function

OPTION = "functions"
"""The option of environments that takes the sources."""


@component(
    "prompt_text",
    "functions",
    paper="AgentOptimizer, arXiv:2402.11359 (operations, roll-back, early stop)",
)
class Functions:
    """Let an assistant edit functions, which the programs of all episodes may call.

    The environment's option ``functions`` describes them to the agent and runs them.
    After each iteration the assistant reads episodes and answers with operations:
    ``add_function`` or ``revise_function`` and a source, ``remove_function NAME``. The
    next iteration tries the new set, which is rolled back if its mean return is smaller
    than that of the set before. A source must define one function with an example in
    its docstring that gives its result in the sandbox, or it is refused.

    Args:
        of: Name of the assistant.
        functions: Sources at the beginning.
        size: Most functions, >= 1; others are refused.
        patience: Iterations in a row without a larger mean return after which the
            assistant is not asked any more, >= 1.
        episodes: Most episodes in a question, >= 1; up to half of them failed ones.
        failures: Most sources in a question that were refused or rolled back, >= 1.
        max_chars: Longest source, in characters.
        sandbox: Sandbox backend that runs the examples, "fork_server" or "monty".
    """

    def __init__(
        self,
        *,
        of: str,
        functions: Sequence[str] = (),
        size: int = 8,
        patience: int = 10,
        episodes: int = 8,
        failures: int = 20,
        max_chars: int = 1000,
        sandbox: str = "fork_server",
    ):
        check_counts(size=size, patience=patience, episodes=episodes)
        check_counts(failures=failures, max_chars=max_chars)
        self.of: str | None = of
        self.size, self.patience, self.max_chars = size, patience, max_chars
        self.episodes, self.failures = episodes, failures
        self.sandbox = sandbox
        shared_sandbox(sandbox)  # fails here if the platform cannot isolate programs
        self.kept: dict[str, Function] = {}
        self.tried: dict[str, Function] = {}
        self.value: float | None = None  # mean return of the kept set
        self._evaluations = 0  # iterations in that mean
        self.fruitless = 0
        self.failed: list[str] = []
        for source in functions:
            why = self._change(FunctionOperation("add", source=source))
            if why is not None:
                raise ValueError(f"functions: {why} Correct it: {source!r}.")
        self.kept = dict(self.tried)

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task with the set that is tried."""
        return task.with_texts(_source(self.tried))

    def asked(self, table: TurnTable) -> list[Asked]:
        """Return the question about the episodes; none after an early stop."""
        if not len(table) or self._fruitless_after(table) >= self.patience:
            return []
        if self._is_worse(table):
            functions = self.kept
            failed = [*self.failed, *self._rolled_back(table)]
        else:
            functions, failed = self.tried, self.failed
        sources = [function.source for function in functions.values()]
        texts = (*sources, *failed[-self.failures :])
        return [Asked(self._shown(table), texts)]

    def observe(
        self, table: TurnTable, answers: Sequence[str | None]
    ) -> dict[str, float]:
        """Keep or roll back the set that was tried, and apply the operations."""
        counts = collections.Counter[str]()
        if len(table):
            counts["rolled_back"] = int(self._settle(table))
        for answer in answers:
            for operation in read_function_operations(answer or ""):
                why = self._change(operation)
                counts[operation.kind if why is None else "refused"] += 1
                if why is not None and operation.source:
                    self._note(f"Refused: {why}", operation.source)
        return {
            "num_texts": float(len(self.tried)),
            "num_added": float(counts["add"]),
            "num_updated": float(counts["revise"]),
            "num_deleted": float(counts["remove"]),
            "num_refused": float(counts["refused"]),
            "num_rolled_back": float(counts["rolled_back"]),
            "best_value": 0.0 if self.value is None else self.value,
        }

    def shared(self) -> FixedTexts:
        """Return the set that is kept."""
        return _source(self.kept)

    def get_state(self) -> dict[str, Any]:
        """Return both sets, the value and the failures."""
        return {
            "kept": [function.source for function in self.kept.values()],
            "tried": [function.source for function in self.tried.values()],
            "value": self.value,
            "evaluations": self._evaluations,
            "fruitless": self.fruitless,
            "failed": list(self.failed),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        self.kept = {f.name: f for f in map(read_function, state["kept"])}
        self.tried = {f.name: f for f in map(read_function, state["tried"])}
        self.value, self._evaluations = state["value"], int(state["evaluations"])
        self.fruitless, self.failed = int(state["fruitless"]), list(state["failed"])

    def _settle(self, table: TurnTable) -> bool:
        """Keep the tried set or roll it back; return whether it was rolled back."""
        self.fruitless = self._fruitless_after(table)
        mean = _mean_return(table)
        if self._is_worse(table):
            self.failed = [*self.failed, *self._rolled_back(table)][-self.failures :]
            self.tried = dict(self.kept)
            return True
        if self.tried != self.kept or self.value is None:
            self.kept, self.value, self._evaluations = dict(self.tried), mean, 1
        else:
            self._evaluations += 1
            self.value += (mean - self.value) / self._evaluations
        return False

    def _is_worse(self, table: TurnTable) -> bool:
        """Return whether a new set has a smaller mean return than the kept one."""
        is_new = self.value is not None and self.tried != self.kept
        return is_new and _mean_return(table) < (self.value or 0.0)

    def _fruitless_after(self, table: TurnTable) -> int:
        if self.value is None:
            return 0
        has_gained = self.tried != self.kept and _mean_return(table) > self.value
        return 0 if has_gained else self.fruitless + 1

    def _rolled_back(self, table: TurnTable) -> list[str]:
        """Return the new sources of a set that was worse, with the reason."""
        why = (
            f"Rolled back: mean return {_mean_return(table):.3g}, not {self.value:.3g}."
        )
        new = [f for f in self.tried.values() if self.kept.get(f.name) != f]
        return [_noted(why, function.source) for function in new]

    def _shown(self, table: TurnTable) -> tuple[Trajectory, ...]:
        """Return failed episodes, up to a half, and solved ones."""
        ordered = in_task_order(table)
        failed = [t for t in ordered if not t.is_solved]
        solved = [t for t in ordered if t.is_solved]
        most_failed = max(self.episodes - len(solved), (self.episodes + 1) // 2)
        first = failed[:most_failed]
        return (*first, *solved[: self.episodes - len(first)])

    def _change(self, operation: FunctionOperation) -> str | None:
        """Apply an operation to the tried set; return why it is refused, or None."""
        if operation.kind == "remove":
            removed = self.tried.pop(operation.name, None)
            return None if removed else f"There is no function {operation.name!r}."
        if len(operation.source) > self.max_chars:
            return f"It is longer than {self.max_chars} characters."
        try:
            function = read_function(operation.source)
        except ValueError as error:
            return str(error)
        is_member = function.name in self.tried
        if is_member != (operation.kind == "revise"):
            return (
                f"{function.name} is {'a' if is_member else 'no'} function of the set."
            )
        if not is_member and len(self.tried) >= self.size:
            return f"There are {self.size} functions already."
        why = failed_example(function, shared_sandbox(self.sandbox))
        if why is None:
            self.tried[function.name] = function
        return why

    def _note(self, why: str, source: str) -> None:
        self.failed = [*self.failed, _noted(why, source)][-self.failures :]


def _noted(why: str, source: str) -> str:
    return f"# {' '.join(why.split())}\n{source}"


def _source(functions: Mapping[str, Function]) -> FixedTexts:
    # By name, so that agents read the same text however the set has come about.
    sources = [functions[name].source for name in sorted(functions)]
    return FixedTexts((), options={OPTION: sources})


def _mean_return(table: TurnTable) -> float:
    return float(np.mean([t.episode_return for t in table.trajectories]))
