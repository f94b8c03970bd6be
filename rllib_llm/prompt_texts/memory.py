"""Memory: a bank of texts that episodes write and later episodes read."""

from __future__ import annotations

import collections
import dataclasses
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rllib_llm.components.registry import component
from rllib_llm.data.added_texts import HEADING, TextSource
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import Task
from rllib_llm.prompt_texts.asked import (
    Asked,
    agents_setting,
    check_counts,
    in_task_order,
    one_line,
)
from rllib_llm.prompt_texts.bank import Bank, BankView, Retrieval
from rllib_llm.prompt_texts.episode_memory import EpisodeMemory, text_fields

_WRITERS: Mapping[str, Callable[[Trajectory], bool]] = {
    "solved": lambda t: t.is_solved,
    "failed": lambda t: not t.is_solved,
    "rewarded": lambda t: t.episode_return > 0,
    "all": lambda t: True,
}
_FIELDS = ("task", "observation", "reply", "replies", "transcript", "return")


@component(
    "prompt_text",
    "memory",
    paper="cf. Doctor-R1, arXiv:2510.04284, and Memory-R1, arXiv:2508.19828",
)
class Memory:
    """Keep a bank of texts: episodes write them, later ones read those that fit.

    Args:
        of: Name of the assistant that writes a text about an episode; None: the rule
            ``text``.
        text: Text of an episode, with placeholders: ``{task}`` (the first observation),
            ``{observation}`` (the last one), ``{reply}`` (the last one),
            ``{replies}`` (all), ``{transcript}`` and ``{return}``. None:
            "{task} {reply}".
        learn_from: Episodes that write: "solved", "failed", "all", or "rewarded", those
            of a return > 0: with the reward ``asked`` a judge decides.
        scope: "run": all episodes read all texts. "task": those of their own task,
            which must come again (curriculum ``failed``, or few tasks). "episode":
            every turn writes, and later turns of the same episode read; ``text`` is
            then "{observation} {reply}" unless it is given, and newer texts replace
            similar ones.
        top_k: Most texts of an episode, >= 1.
        least_similarity: Similarity of an episode's first observation and a text's,
            above which it is read, in [0, 1).
        reward_weight: Weight of a text's mean return beside the similarity.
        candidates: Number of best texts of which duplicates are dropped, >= top_k.
        similar: Similarity from which on two observations count as the same, in (0, 1]:
            a new text then replaces that of a smaller return. None: texts are added.
        capacity: Most texts; the one of the smallest mean return is deleted beyond it.
        drop_below: Mean return below which a text is deleted, and not added again for
            the same observation; None: none is.
        drop_after: Episodes that must have read it before.
        max_chars: Longest text, in characters.
        heading: The line before the texts.
        agents: AgentIDs that write and read; None: all.
    """

    def __init__(
        self,
        *,
        of: str | None = None,
        text: str | None = None,
        learn_from: Literal["solved", "failed", "all", "rewarded"] = "solved",
        scope: Literal["run", "task", "episode"] = "run",
        top_k: int = 3,
        least_similarity: float = 0.0,
        reward_weight: float = 0.5,
        candidates: int = 30,
        similar: float | None = 0.95,
        capacity: int = 1000,
        drop_below: float | None = None,
        drop_after: int = 5,
        max_chars: int = 300,
        heading: str = HEADING,
        agents: Sequence[str] | None = None,
    ):
        check_counts(top_k=top_k, capacity=capacity, max_chars=max_chars)
        check_counts(drop_after=drop_after)
        if candidates < top_k:
            raise ValueError(
                f"candidates={candidates} must be >= top_k={top_k}. Use e.g. 30."
            )
        merges = similar is None or 0 < similar <= 1
        if not 0 <= least_similarity < 1 or not merges:
            raise ValueError(
                f"least_similarity={least_similarity} must be in [0, 1) and similar="
                f"{similar} in (0, 1] or None. Use 0.0 and 0.95."
            )
        self.of, self.learn_from, self.scope = of, learn_from, scope
        self.text = _template(text, of, scope)
        self.drop_below, self.drop_after = drop_below, drop_after
        self.max_chars = max_chars
        self.bank = Bank(capacity, similar)
        self.retrieval = Retrieval(
            top_k=top_k,
            least_similarity=least_similarity,
            reward_weight=reward_weight,
            candidates=candidates,
            duplicate=similar,
            heading=heading,
            agents=agents_setting(agents),
        )
        self._views: dict[str, BankView] = {}  # of this iteration, by scope
        self._of_episodes: EpisodeMemory | None = None
        if scope == "episode":
            _check_without_effect(
                of=(of, None),
                learn_from=(learn_from, "solved"),
                reward_weight=(reward_weight, 0.5),
                drop_below=(drop_below, None),
                drop_after=(drop_after, 5),
            )
            by_similarity = dataclasses.replace(self.retrieval, reward_weight=0.0)
            self._of_episodes = EpisodeMemory(
                self.text, max_chars, capacity, similar, by_similarity
            )

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task with the bank as it is now."""
        if self._of_episodes is not None:
            return task.with_texts(self._of_episodes)
        return task.with_texts(self._view(self._scope(task)))

    def asked(self, table: TurnTable) -> list[Asked]:
        """Return a question about each episode that writes."""
        if self.of is None:
            return []
        return [Asked((t,), self._texts_about(t)) for t in self._writers(table)]

    def observe(
        self, table: TurnTable, answers: Sequence[str | None]
    ) -> dict[str, float]:
        """Credit the texts that were read, write new ones, delete bad ones."""
        if self._of_episodes is not None:
            return _readers(table)
        self._views.clear()
        for trajectory in in_task_order(table):
            self.bank.read(trajectory.added_numbers, trajectory.episode_return)
        writers = self._writers(table)
        texts = answers if self.of is not None else map(self._rule_text, writers)
        counts = collections.Counter[str]()
        for trajectory, text in zip(writers, texts, strict=True):
            if text and (text := one_line(text, self.max_chars)):
                key, scope = trajectory.observations[0], self._scope(trajectory.task)
                done = self.bank.write(
                    *(key, text, trajectory.episode_return, scope),
                    # A failed episode did not do what is written about it.
                    counts=self.of is None or self.learn_from != "failed",
                )
                counts[done] += 1
        deleted = 0
        if self.drop_below is not None:
            deleted = self.bank.drop(self.drop_below, self.drop_after)
        return {
            "num_texts": float(len(self.bank.entries)),
            "num_added": float(counts["add"]),
            "num_updated": float(counts["update"]),
            "num_unchanged": float(counts["noop"]),
            "num_deleted": float(deleted),
            **_readers(table),
        }

    def shared(self) -> TextSource | None:
        """Return the bank, or the memory of episodes; None if texts belong to tasks."""
        if self._of_episodes is not None:
            return self._of_episodes
        return self._view("") if self.scope == "run" else None

    def get_state(self) -> dict[str, Any]:
        """Return the bank."""
        return self.bank.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        self._views.clear()
        self.bank.set_state(state)

    def _view(self, scope: str) -> BankView:
        # One object for all tasks of an iteration: it is pickled once per call, and its
        # index is computed once per process.
        if scope not in self._views:
            self._views[scope] = self.bank.view(self.retrieval, scope)
        return self._views[scope]

    def _scope(self, task: Task) -> str:
        return str(task.seed) if self.scope == "task" else ""

    def _writers(self, table: TurnTable) -> list[Trajectory]:
        """Return the trajectories that write, in order of their tasks."""
        agents, writes = self.retrieval.agents, _WRITERS[self.learn_from]
        return [
            t
            for t in in_task_order(table)
            if writes(t)
            if agents is None or t.agent_id in agents
        ]

    def _texts_about(self, trajectory: Trajectory) -> tuple[str, ...]:
        """Return the texts of its task, or else those that it has read."""
        if self.scope == "run":
            return trajectory.added_texts
        scope = self._scope(trajectory.task)
        return tuple(e.text for e in self.bank.entries if e.scope == scope)

    def _rule_text(self, trajectory: Trajectory) -> str:
        fields = text_fields(trajectory.observations, trajectory.completions)
        return self.text.format(
            **fields, **{"return": f"{trajectory.episode_return:g}"}
        )


def _readers(table: TurnTable) -> dict[str, float]:
    """Return the share of trajectories that read texts, and both classes' success."""
    readers = [t for t in table.trajectories if t.added_numbers]
    others = [t for t in table.trajectories if not t.added_numbers]
    shares = {"reading_frac": len(readers) / max(len(table), 1)}
    for name, chosen in (
        ("success_rate_readers", readers),
        ("success_rate_others", others),
    ):
        if chosen:
            shares[name] = sum(t.is_solved for t in chosen) / len(chosen)
    return shares


def _check_without_effect(**given: tuple[Any, Any]) -> None:
    """Check that settings have their defaults, which ``scope="episode"`` ignores.

    Args:
        given: Value and default of each.

    Raises:
        ValueError: If one has another value.
    """
    for name, (value, default) in given.items():
        if value != default:
            raise ValueError(
                f"{name}={value!r} has no effect with scope='episode', in which every "
                f"turn writes before the return is known. Leave {name} out."
            )


def _template(text: str | None, of: str | None, scope: str) -> str:
    in_episode = scope == "episode"
    if text is None:
        return "{observation} {reply}" if in_episode else "{task} {reply}"
    if of is not None:
        raise ValueError(
            f"text={text!r} has no effect, because the assistant {of!r} writes the "
            "texts. Leave one of the two out."
        )
    try:
        named = {name for _, name, _, _ in string.Formatter().parse(text)} - {None}
    except ValueError as error:
        raise ValueError(f"text: {error}. Write a brace as two, '{{{{'.") from error
    # The return is known when an episode has ended.
    fields = [name for name in _FIELDS if not (in_episode and name == "return")]
    unknown = sorted(str(name) for name in named if name not in fields)
    if unknown or not named:
        raise ValueError(
            f"text={text!r} must have placeholders of {', '.join(fields)}"
            f"{', not ' * bool(unknown)}{', '.join(unknown)}. Use e.g. '{{task}} "
            "{reply}'."
        )
    return text
