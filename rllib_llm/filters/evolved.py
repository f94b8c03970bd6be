"""Filter of functions and tests that a policy wrote, by a strategy that evolves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.filters.pass_matrix import Strategy, is_comparable, select
from rllib_llm.filters.strategy_search import Problem, best, evolve, rate
from rllib_llm.graders.unit_tests import Case, run_tests
from rllib_llm.sandbox import Sandbox, shared_sandbox


@dataclasses.dataclass(slots=True)
class Written:
    """The functions and tests that the rollouts of a task wrote.

    Attributes:
        passes: Whether function i passes test j. bool [M, N]
        functions: Their turns in the table. [M]
        tests: Their turns in the table. [N]
        checked: The outcomes of checked tests; None without them. bool [M]
        right: Whether the function is right, for metrics alone. bool [M]
    """

    passes: np.ndarray
    functions: list[int]
    tests: list[int]
    checked: np.ndarray | None
    right: np.ndarray


@component(
    "filter",
    "evolved",
    paper="EvoSyn, arXiv:2510.17928 (mutations by rule)",
    effect="turns",
)
class Evolved:
    """Keep the functions and tests that agree, by a strategy evolved on checked tasks.

    All functions of a task run on all its tests in the sandbox. Tasks with checked
    tests (info ``checked``) rate strategies and are left out; of the others the turns
    with the best functions and tests are kept, and none if a task is trivial or
    inconsistent. No other outcome is read, but for the metrics.

    Args:
        children: Mutants per island and iteration, >= 0; 0: the initial strategy.
        islands: Number of archives, >= 1.
        memory: Most tasks with checked tests that rate a strategy, the latest, >= 1.
        least_kept: Least share of them that the chosen strategy keeps, in [0, 1].
        seed: Seed of the mutations.
        sandbox: Sandbox backend, "fork_server" or "monty".
    """

    def __init__(
        self,
        *,
        children: int = 16,
        islands: int = 2,
        memory: int = 64,
        least_kept: float = 0.5,
        seed: int = 0,
        sandbox: str = "fork_server",
    ):
        if children < 0 or islands < 1 or memory < 1 or not 0 <= least_kept <= 1:
            raise ValueError(
                f"children={children} must be >= 0, islands={islands} and "
                f"memory={memory} >= 1, least_kept={least_kept} in [0, 1]. Use 16, 2, "
                "64 and 0.5."
            )
        if not children and (islands, memory, least_kept, seed) != (2, 64, 0.5, 0):
            raise ValueError(
                "children=0 evolves nothing, so islands, memory, least_kept and seed "
                "have no effect. Leave them out, or set children."
            )
        shared_sandbox(sandbox)  # fails here if the platform cannot isolate programs
        self.children, self.memory = children, memory
        self.least_kept, self.seed, self.sandbox = least_kept, seed, sandbox
        self.islands: list[list[Strategy]] = [[] for _ in range(islands)]
        self.problems: list[Problem] = []
        self.strategy = Strategy()
        self.metrics: dict[str, float] = {}
        self._generation = 0

    def __call__(self, table: TurnTable) -> np.ndarray:
        """Return whether to keep each turn. bool [M]"""
        written = written_by_tasks(table, shared_sandbox(self.sandbox))
        seeds = [
            Problem(w.passes, w.checked)
            for w in written
            if w.checked is not None and is_comparable(w.passes)
        ]
        others = [w for w in written if w.checked is None]
        self.metrics = {"num_checked": float(len(seeds))}
        if seeds:  # rated before they take part in the evolution
            for name, strategy in self._compared():
                rated = rate(strategy, seeds)
                self.metrics[f"agreement_{name}"] = rated.agreement
                self.metrics[f"checked_kept_{name}"] = rated.kept
        self._evolve(seeds)
        keep = np.zeros(len(table.owner), bool)
        for each in others:
            functions, tests = select(each.passes, self.strategy)
            keep[np.array(each.functions, int)[functions]] = True
            keep[np.array(each.tests, int)[tests]] = True
        self._measure(others)
        return keep

    def get_state(self) -> dict[str, Any]:
        """Return the archives, the seed problems and the generation."""
        return {
            "islands": [[dataclasses.asdict(s) for s in i] for i in self.islands],
            "problems": [(p.passes.tolist(), p.right.tolist()) for p in self.problems],
            "strategy": dataclasses.asdict(self.strategy),
            "generation": self._generation,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        self.islands = [[Strategy(**s) for s in i] for i in state["islands"]]
        self.problems = [
            Problem(np.array(passes, bool), np.array(right, bool))
            for passes, right in state["problems"]
        ]
        self.strategy = Strategy(**state["strategy"])
        self._generation = int(state["generation"])

    def _compared(self) -> tuple[tuple[str, Strategy], ...]:
        return ("initial", Strategy()), ("evolved", self.strategy)

    def _evolve(self, seeds: Sequence[Problem]) -> None:
        """Evolve the strategies on the latest seed problems, and choose one."""
        self.problems = [*self.problems, *seeds][-self.memory :]
        if not self.children or not self.problems:
            return
        rng = np.random.default_rng([self.seed, self._generation])
        elites = evolve(self.islands, self.problems, self.children, rng)
        self._generation += 1
        self.islands = [[e.strategy for e in island] for island in elites]
        chosen = best([e for island in elites for e in island], self.least_kept)
        self.strategy = chosen.strategy

    def _measure(self, others: Sequence[Written]) -> None:
        """Compute how many tasks strategies keep, and how many functions are right."""
        every = [w.right for w in others]
        if not sum(map(len, every)):
            return
        self.metrics["right_all"] = float(np.concatenate(every).mean())
        for name, strategy in self._compared():
            kept = [w.right[select(w.passes, strategy)[0]] for w in others]
            self.metrics[f"kept_{name}"] = float(np.mean([len(k) > 0 for k in kept]))
            if sum(map(len, kept)):
                right = float(np.concatenate(kept).mean())
                self.metrics[f"right_{name}"] = right


def written_by_tasks(table: TurnTable, sandbox: Sandbox) -> list[Written]:
    """Return the functions and tests of each task, run on each other."""
    rollouts = np.array([t.task.rollout for t in table.trajectories], np.int64)
    order = np.lexsort((table.episode, rollouts, table.task))
    first_turn = np.cumsum(table.num_turns) - table.num_turns
    return [
        _written(
            table, [i for i in order if table.task[i] == task], first_turn, sandbox
        )
        for task in np.unique(table.task)
    ]


def _written(
    table: TurnTable, members: Sequence[int], first_turn: np.ndarray, sandbox: Sandbox
) -> Written:
    programs: list[str] = []
    cases: list[Case] = []
    functions: list[int] = []
    tests: list[int] = []
    checked: list[bool | None] = []
    right: list[bool] = []
    for member in members:
        trajectory = table.trajectories[member]
        outcomes = trajectory.info_per_turn("checked", None)
        given = trajectory.info_per_turn("test", None)
        for turn, code in enumerate(trajectory.info_per_turn("program", None)):
            number = int(first_turn[member]) + turn
            if code is not None:
                programs.append(code)
                functions.append(number)
                checked.append(outcomes[turn])
                right.append(trajectory.is_solved)
            if given[turn] is not None:
                arguments, result = given[turn]
                cases.append(Case(tuple(arguments), result))
                tests.append(number)
    is_seed = bool(checked) and None not in checked
    return Written(
        pass_matrix(programs, cases, sandbox),
        functions,
        tests,
        np.array(checked, bool) if is_seed else None,
        np.array(right, bool),
    )


def pass_matrix(
    programs: Sequence[str], cases: Sequence[Case], sandbox: Sandbox
) -> np.ndarray:
    """Return whether each program's function ``f`` passes each test. bool [M, N]"""
    outcomes = {
        code: [r.passed for r in run_tests(code, "f", cases, sandbox)] if cases else []
        for code in dict.fromkeys(programs)  # equal programs run once
    }
    rows = [outcomes[code] for code in programs]
    return np.array(rows, bool).reshape(len(programs), len(cases))
