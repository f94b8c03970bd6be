"""What pieces on the driver see of an iteration: whole groups, without RLlib."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rllib_llm.data.types import StopReason, Task
from rllib_llm.errors import ConfigError


class MissingInfo(ConfigError):
    """The environment does not say what a piece needs to know."""


class MissingGreedyReturn(ConfigError):
    """No greedy rollout was played of a task that is compared with one."""


@dataclasses.dataclass(slots=True)
class Trajectory:
    """What one agent did in one episode.

    Attributes:
        task: Which instance it is a rollout of; ``task.group_id`` names the group.
        episode: Number of the episode in the iteration; the agents of a team share it.
        agent: The agent's number in its environment's declared order.
        agent_id: Its name.
        module_id: Its policy.
        observations: What it was told before each turn. [H]
        completions: What it said, as text. [H]
        rewards: What each turn earned. [H]
        steps: The environment's step of each turn. [H]
        num_tokens: Sampled tokens of each turn. [H]
        invalid: Whether the environment found no action in a turn. [H]
        infos: What the environment said about each turn beside its text. [H]
        metrics: The environment's own numbers.
        success: Whether the task was solved, None where that is not defined.
        stop_reason: Why the episode ended.
        is_trained: Whether it may be learnt from; else it counts in statistics only.
        greedy_return: What its agent earned in the greedy rollout of the task; None
            where none was played.
    """

    task: Task
    episode: int
    agent: int
    agent_id: str
    module_id: str
    observations: list[str]
    completions: list[str]
    rewards: list[float]
    steps: list[int]
    num_tokens: list[int]
    invalid: list[bool]
    infos: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    success: bool | None = None
    stop_reason: StopReason | None = None
    is_trained: bool = True
    greedy_return: float | None = None

    def __len__(self) -> int:
        """Return the number of turns."""
        return len(self.rewards)

    @property
    def outcome(self) -> dict[str, Any]:
        """What the environment said about the last turn, e.g. the right answer."""
        return self.infos[-1] if self.infos else {}

    @property
    def earned(self) -> float:
        """The undiscounted return."""
        return float(sum(self.rewards))

    @property
    def is_solved(self) -> bool:
        """Whether the task was solved; where that is undefined, whether it paid."""
        return self.earned > 0 if self.success is None else self.success

    def said(self, key: str) -> Any:
        """Return what the environment said last under a key of ``infos``.

        Raises:
            MissingInfo: If it never did.
        """
        for info in reversed(self.infos):
            if key in info:
                return info[key]
        known = sorted({k for info in self.infos for k in info})
        raise MissingInfo(
            f"The environment's info has no {key!r} (it has: {', '.join(known)}). "
            f"Return it from the environment, e.g. by TextEnv.more_info()."
        )

    def each(self, key: str, default: Any) -> list[Any]:
        """Return what the environment said in each turn under a key of ``infos``. [H]

        Raises:
            MissingInfo: If it never said anything under that key.
        """
        if len(self):
            self.said(key)
        return [info.get(key, default) for info in self.infos]


class TurnTable:
    """Trajectories as columns: ``[N]`` one entry each, ``[M]`` one per turn.

    Args:
        trajectories: The turns of one follow those of the one before.
        replay: See the attribute.

    Attributes:
        trajectories: As given. [N]
        replay: What each agent would have earned if these trajectories of one task,
            one of each agent, had met, by AgentID: a game played again with their
            texts; None where no game can be played again.
        task: Group of each. int64 [N]
        episode: Episode of each. int64 [N]
        agent: Agent of each. int64 [N]
        returns: Undiscounted return of each. [N]
        tokens: Sampled tokens of each. int64 [N]
        is_trained: Whether each may be learnt from. bool [N]
        owner: Trajectory of each turn. int64 [M]
        turn: Its number in the trajectory, from 0. int64 [M]
        step: The environment's step. int64 [M]
        rewards: What each turn earned. [M]
        turn_tokens: Sampled tokens of each turn. int64 [M]
        invalid: Whether no action was found in it. bool [M]
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        replay: Callable[[Sequence[Trajectory]], dict[str, float]] | None = None,
    ):
        self.trajectories, self.replay = list(trajectories), replay
        every = self.trajectories
        sizes = np.array([len(t) for t in every], np.int64)
        self.task = _ints(t.task.group_id for t in every)
        self.episode = _ints(t.episode for t in every)
        self.agent = _ints(t.agent for t in every)
        self.is_trained = np.array([t.is_trained for t in every], bool)
        self.owner = np.repeat(np.arange(len(every)), sizes)
        self._ends = np.cumsum(sizes)
        self.turn = np.arange(len(self.owner)) - (self._ends - sizes)[self.owner]
        self.step = _ints(s for t in every for s in t.steps)
        self.rewards = np.array([r for t in every for r in t.rewards], np.float64)
        self.turn_tokens = _ints(n for t in every for n in t.num_tokens)
        self.invalid = np.array([i for t in every for i in t.invalid], bool)
        self.returns = self.sum_turns(self.rewards)
        self.tokens = self.sum_turns(self.turn_tokens).astype(np.int64)

    def __len__(self) -> int:
        """Return the number of trajectories."""
        return len(self.trajectories)

    @property
    def num_turns(self) -> np.ndarray:
        """Turns of each trajectory. int64 [N]"""
        return np.diff(self._ends, prepend=0)

    @property
    def success(self) -> np.ndarray:
        """1 where the task was solved, 0 where not, NaN where undefined. [N]"""
        found = [t.success for t in self.trajectories]
        return np.array([np.nan if s is None else float(s) for s in found])

    @property
    def observations(self) -> list[str]:
        """What was told before each turn. [M]"""
        return [o for t in self.trajectories for o in t.observations]

    @property
    def completions(self) -> list[str]:
        """What was said in each turn. [M]"""
        return [c for t in self.trajectories for c in t.completions]

    def sum_turns(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over each trajectory's turns. [M] -> [N]"""
        return np.bincount(self.owner, weights=values, minlength=len(self))

    def to_go(self, discount: float = 1.0) -> np.ndarray:
        """Return what is earned from each turn on, discounted per turn. [M]

        ``R[t] = rewards[t] + discount * R[t+1]`` inside a trajectory.
        """
        found = np.zeros_like(self.rewards)
        later = 0.0
        for i in range(len(found) - 1, -1, -1):
            is_last = i + 1 == len(found) or self.owner[i + 1] != self.owner[i]
            later = self.rewards[i] + (0.0 if is_last else discount * later)
            found[i] = later
        return found

    @property
    def greedy_returns(self) -> np.ndarray:
        """What each one's agent earned in the greedy rollout of its task. [N]

        Raises:
            MissingGreedyReturn: If there was none.
        """
        found = [t.greedy_return for t in self.trajectories]
        if None in found:
            raise MissingGreedyReturn(
                "baseline='greedy' compares with a greedy rollout of the same task, "
                "which GRPO plays. Use another baseline elsewhere."
            )
        return np.array(found, np.float64)

    def split(self, per_turn: np.ndarray) -> list[np.ndarray]:
        """Return each trajectory's part of a column. [M] -> N arrays of [H]"""
        return np.split(np.asarray(per_turn), self._ends[:-1]) if len(self) else []


# What pieces of the package read in infos; docs/rewards.md explains each.
_EXAMPLE_INFO: dict[str, Any] = {
    "gold_answers": ["So."],
    "gold_documents": ["It is so."],
    "gold_queries": ["is it so"],
    "documents": ["It is so.", "It is not."],
    "query": "so",
    "tool": "search",
    "tool_error": False,
}


def example_table(
    agents: Sequence[str] = ("agent_0", "agent_1"), rollouts: int = 2
) -> TurnTable:
    """Return two tasks of a few rollouts in which each agent has two turns, for trials.

    Args:
        agents: Who plays.
        rollouts: Of each task.
    """
    most = 1 + len(agents) * max(rollouts - 1, 1)  # rewards lie in [0, 1]
    return TurnTable(
        [
            Trajectory(
                task=Task(group_id=task, rollout=rollout, seed=task),
                episode=rollouts * task + rollout,
                agent=agent,
                agent_id=name,
                module_id=f"policy_{agent}",
                observations=["Well?", "And now?"],
                completions=["So.", f"Thus {rollout}."],
                rewards=[0.0, (task + rollout * (agent + 1)) / most],
                steps=[0, 1],
                num_tokens=[2, 3],
                invalid=[False, False],
                infos=[dict(_EXAMPLE_INFO), dict(_EXAMPLE_INFO)],
                success=bool(rollout),
                stop_reason=StopReason.TERMINATED,
                greedy_return=0.25,
            )
            for task in range(2)
            for rollout in range(rollouts)
            for agent, name in enumerate(agents)
        ],
        replay=lambda players: {p.agent_id: p.earned for p in players},
    )


def _ints(values: Any) -> np.ndarray:
    return np.fromiter(values, np.int64)
