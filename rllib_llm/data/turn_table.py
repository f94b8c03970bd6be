"""Trajectories of one iteration as the driver's components see them, without RLlib."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rllib_llm.data.places import Path
from rllib_llm.data.types import Message, StopReason, Task
from rllib_llm.errors import ConfigError


class MissingInfo(ConfigError):
    """The environment's infos lack an entry that a component needs."""


class MissingScores(ConfigError):
    """A component reads the scores of a scorer, and there is none."""


class MissingAnswers(MissingInfo):
    """A component reads the answers of an assistant, and there are none."""


class MissingGreedyReturn(ConfigError):
    """A component compares with a greedy rollout, and the task has none."""


@dataclasses.dataclass(slots=True)
class Trajectory:
    """One agent's turns in one episode.

    Attributes:
        task: The rollout's instance; ``task.group_id`` names the group.
        episode: Number of the episode in the iteration; the agents of a team share it.
        agent: The agent's number in its environment's declared order.
        agent_id: The agent's AgentID.
        module_id: ModuleID of the agent's policy.
        observations: Text observed before each turn. [H]
        completions: Text sampled in each turn. [H]
        rewards: Reward of each turn. [H]
        steps: The environment's step of each turn. [H]
        num_tokens: Sampled tokens of each turn. [H]
        logps: Mean log-probability of each turn's tokens, in nats; 0 without tokens.
            [H]
        invalid: Whether the environment parsed no action from a turn. [H]
        infos: The environment's info after each turn. [H]
        metrics: Numbers reported by the environment.
        success: Whether the task was solved, None where that is not defined.
        stop_reason: Reason that the episode ended.
        is_trained: Whether it is trained on; otherwise only statistics count it.
        greedy_return: The agent's return in the greedy rollout of the task; None
            without such a rollout.
        scores: Score of each turn; None without a scorer. [H]
        answers: Values of an assistant's answers, by its name: one, or one per turn.
        baselines: Mean returns of the task under other options, by reward ``gain``.
        messages: The conversation of the last turn, system message included, as the
            policy read it and wrote it.
        path: Branches that sampled the turns; several if the episode is a fork.
        images: Digests of the pictures shown before each turn; empty if the
            environment shows none. [H]
        added_texts: Texts that were added before its messages.
        added_numbers: Their numbers among the texts of their component.
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
    logps: list[float] = dataclasses.field(default_factory=list)
    infos: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    success: bool | None = None
    stop_reason: StopReason | None = None
    is_trained: bool = True
    greedy_return: float | None = None
    scores: list[float] | None = None
    answers: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    baselines: dict[str, float] = dataclasses.field(default_factory=dict)
    messages: list[Message] = dataclasses.field(default_factory=list)
    path: Path = ()
    images: list[tuple[str, ...]] = dataclasses.field(default_factory=list)
    added_texts: tuple[str, ...] = ()
    added_numbers: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of turns."""
        return len(self.rewards)

    @property
    def outcome(self) -> dict[str, Any]:
        """The environment's info after the last turn, e.g. with the right answer."""
        return self.infos[-1] if self.infos else {}

    @property
    def episode_return(self) -> float:
        """The undiscounted return."""
        return float(sum(self.rewards))

    @property
    def is_solved(self) -> bool:
        """True if the task was solved or, without ``success``, the return is > 0."""
        return self.episode_return > 0 if self.success is None else self.success

    @property
    def turn_scores(self) -> list[float]:
        """The scores of its turns. [H]

        Raises:
            MissingScores: If there are none.
        """
        if self.scores is None:
            raise MissingScores(
                "The component 'scorer' reads the scores of a scorer, and this episode "
                "has none. Set scorer.loss; greedy and other extra rollouts have none."
            )
        return self.scores

    def answers_of(self, assistant: str) -> list[float]:
        """Return the values of an assistant's answers: one, or one per turn.

        Raises:
            MissingAnswers: If there are none.
        """
        if assistant not in self.answers:
            raise MissingAnswers(
                f"The answers of {assistant!r} are read, and this episode has none. "
                "Define it in rollouts.assistants; greedy and other extra rollouts "
                "have none."
            )
        return self.answers[assistant]

    def last_info(self, key: str) -> Any:
        """Return the last value of a key of ``infos``.

        Raises:
            MissingInfo: If no info has the key.
        """
        for info in reversed(self.infos):
            if key in info:
                return info[key]
        keys = sorted({k for info in self.infos for k in info})
        raise MissingInfo(
            f"The environment's info has no {key!r} (it has: {', '.join(keys)}). "
            f"Return it from the environment, e.g. by TextEnv.more_info()."
        )

    def info_per_turn(self, key: str, default: Any) -> list[Any]:
        """Return the value of a key of ``infos`` in each turn. [H]

        Raises:
            MissingInfo: If no info has the key.
        """
        if len(self):
            self.last_info(key)
        return [info.get(key, default) for info in self.infos]


class TurnTable:
    """Trajectories as columns: ``[N]`` one entry each, ``[M]`` one per turn.

    Args:
        trajectories: Trajectories, whose turns become consecutive entries.
        replay: See the attribute.

    Attributes:
        trajectories: As given. [N]
        replay: Plays a game again with the texts of these trajectories (one of each
            agent, all of one task) and returns each agent's return by AgentID; None
            where games cannot be played again.
        task: Group of each. int64 [N]
        episode: Episode of each. int64 [N]
        agent: Agent of each. int64 [N]
        returns: Undiscounted return of each. [N]
        tokens: Sampled tokens of each. int64 [N]
        is_trained: Whether each is trained on. bool [N]
        owner: Trajectory of each turn. int64 [M]
        turn: Its number in the trajectory, from 0. int64 [M]
        step: The environment's step. int64 [M]
        rewards: Reward of each turn. [M]
        turn_tokens: Sampled tokens of each turn. int64 [M]
        invalid: Whether the environment parsed no action from it. bool [M]
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        replay: Callable[[Sequence[Trajectory]], dict[str, float]] | None = None,
    ):
        self.trajectories, self.replay = list(trajectories), replay
        all_trajectories = self.trajectories
        sizes = np.array([len(t) for t in all_trajectories], np.int64)
        self.task = _ints(t.task.group_id for t in all_trajectories)
        self.episode = _ints(t.episode for t in all_trajectories)
        self.agent = _ints(t.agent for t in all_trajectories)
        self.is_trained = np.array([t.is_trained for t in all_trajectories], bool)
        self.owner = np.repeat(np.arange(len(all_trajectories)), sizes)
        self._ends = np.cumsum(sizes)
        # Index of the turn minus that of its trajectory's first turn.
        self.turn = np.arange(len(self.owner)) - (self._ends - sizes)[self.owner]
        self.step = _ints(s for t in all_trajectories for s in t.steps)
        self.rewards = np.array(
            [r for t in all_trajectories for r in t.rewards], np.float64
        )
        self.turn_tokens = _ints(n for t in all_trajectories for n in t.num_tokens)
        self.invalid = np.array([i for t in all_trajectories for i in t.invalid], bool)
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
        successes = [t.success for t in self.trajectories]
        return np.array([np.nan if s is None else float(s) for s in successes])

    @property
    def observations(self) -> list[str]:
        """Text observed before each turn. [M]"""
        return [o for t in self.trajectories for o in t.observations]

    @property
    def images(self) -> list[str]:
        """Digests of the pictures shown before each turn, "" without pictures. [M]"""
        shown = (t.images or [()] * len(t) for t in self.trajectories)
        return [" ".join(digests) for turns in shown for digests in turns]

    @property
    def completions(self) -> list[str]:
        """Text sampled in each turn. [M]"""
        return [c for t in self.trajectories for c in t.completions]

    def sum_turns(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over each trajectory's turns. [M] -> [N]"""
        return np.bincount(self.owner, weights=values, minlength=len(self))

    def to_go(
        self, discount: float = 1.0, rewards: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the discounted return from each turn on. [M]

        ``R[t] = rewards[t] + discount * R[t+1]`` inside a trajectory.

        Args:
            discount: Discount per turn.
            rewards: Other numbers to sum; None: the rewards. [M]
        """
        rewards = self.rewards if rewards is None else rewards
        returns = np.zeros_like(rewards)
        later = 0.0
        for i in range(len(returns) - 1, -1, -1):
            is_last = i + 1 == len(returns) or self.owner[i + 1] != self.owner[i]
            later = rewards[i] + (0.0 if is_last else discount * later)
            returns[i] = later
        return returns

    @property
    def greedy_returns(self) -> np.ndarray:
        """Return of each agent in the greedy rollout of its task. [N]

        Raises:
            MissingGreedyReturn: If a task has no greedy rollout.
        """
        returns = [t.greedy_return for t in self.trajectories]
        if None in returns:
            raise MissingGreedyReturn(
                "baseline='greedy' compares with a greedy rollout of the same task, "
                "which GRPO plays. Use another baseline elsewhere."
            )
        return np.array(returns, np.float64)

    @property
    def scores(self) -> np.ndarray:
        """Score of each turn. [M]

        Raises:
            MissingScores: If a trajectory has none.
        """
        scores = [t.turn_scores for t in self.trajectories]
        return np.array([s for of_one in scores for s in of_one], np.float64)

    def split(self, per_turn: np.ndarray) -> list[np.ndarray]:
        """Return each trajectory's part of a column. [M] -> N arrays of [H]"""
        return np.split(np.asarray(per_turn), self._ends[:-1]) if len(self) else []


# Info keys that the package's components read; docs/rewards.md explains each.
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
    """Return a small table for checks: two tasks, two turns for every agent.

    Args:
        agents: AgentIDs.
        rollouts: Rollouts of each task.
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
                logps=[-0.5, -0.25],
                invalid=[False, False],
                infos=[dict(_EXAMPLE_INFO), dict(_EXAMPLE_INFO)],
                success=bool(rollout),
                stop_reason=StopReason.TERMINATED,
                greedy_return=0.25,
                scores=[0.5 * rollout - 0.25, 0.125 * task],
            )
            for task in range(2)
            for rollout in range(rollouts)
            for agent, name in enumerate(agents)
        ],
        replay=lambda players: {p.agent_id: p.episode_return for p in players},
    )


def _ints(values: Any) -> np.ndarray:
    return np.fromiter(values, np.int64)
