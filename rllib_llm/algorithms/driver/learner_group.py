"""Group of Learners that answer together or fail with one message."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.rllib.core import COMPONENT_LEARNER
from ray.rllib.core.learner.learner_group import LearnerGroup
from ray.rllib.utils.actor_manager import (
    FaultTolerantActorManager,
    RemoteCallResults,
    ResultOrError,
)
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.optimizer_shards import (
    FOLDER,
    LoadShards,
    SaveShards,
    shards_in,
)
from rllib_llm.distributed import is_first
from rllib_llm.errors import LearnerError, RLlibLLMError, summarize
from rllib_llm.remote_calls import TimeLimit, name_of

if TYPE_CHECKING:
    from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
    from rllib_llm.types import LLMConfig

# Calls whose time grows with the batch.
_OF_BATCHES = ("update", "update_scorer", "score_turns", "pair_influences")
_GRACE_S = 10.0
"""Seconds for the other Learners to fail as well once one has."""


class LLMLearnerGroup(LearnerGroup):
    """RLlib's LearnerGroup, whose calls end within a time limit.

    Calls on sharded Learners go to all of them, since each holds a part of the state.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Start the Learners; the arguments are RLlib's."""
        super().__init__(**kwargs)
        self._version = 0  # as Learners count
        self._saves_shards = False
        if not self.is_local:
            self._worker_manager = LearnerActors(
                self._workers,
                limits=_Limits(self.config),
                version=lambda: self._version,
                max_remote_requests_in_flight_per_actor=(
                    self.config.max_requests_in_flight_per_learner
                ),
            )

    @property
    def is_sharded(self) -> bool:
        """True if every Learner holds a part of the state only."""
        return self.config.sharding is not None

    @override(LearnerGroup)
    def update(self, *args: Any, **kwargs: Any) -> Any:
        results = super().update(*args, **kwargs)
        self._version += 1
        return results

    @override(LearnerGroup)
    def foreach_learner(
        self,
        func: Callable[..., Any],
        *,
        remote_actor_ids: list[int] | None = None,
        **kwargs: Any,
    ) -> RemoteCallResults:
        """Call a function on all Learners, or on some that hold everything.

        Results are those of ``remote_actor_ids`` even if others are called as well.
        """
        chosen = None if self.is_sharded else remote_actor_ids
        results = super().foreach_learner(func, remote_actor_ids=chosen, **kwargs)
        if remote_actor_ids is None or not self.is_sharded:
            return results
        answers = RemoteCallResults()
        for result in results.result_or_errors:
            if result.actor_id in remote_actor_ids:
                answers.result_or_errors.append(result)
        return answers

    def foreach_shard(
        self, method: str, shards: Sequence[Any], **kwargs: Any
    ) -> list[Any]:
        """Call a method on every Learner with a shard of its own.

        Args:
            method: Name of the Learner's method, with an argument ``shard``.
            shards: One for each Learner; one for a local Learner.
            kwargs: Other arguments, equal for all.

        Returns:
            The results, in order of the shards.
        """
        if self.is_local:
            (shard,) = shards
            return [_call_method(method, self._learner, shard=shard, **kwargs)]
        results = self._worker_manager.foreach_actor(
            method, kwargs=[{"shard": shard, **kwargs} for shard in shards]
        )
        return [result.get() for result in results]

    def map_units(self, method: str, units: Sequence[Any]) -> list[Any]:
        """Call a method on every Learner with its part of the units.

        Args:
            method: Name of the Learner's method, with an argument ``shard``, which
                returns a result for each of its units.
            units: Episodes or the like.

        Returns:
            The results, in order of the units.
        """
        count = max(1, len(self))
        shards = [list(units[rank::count]) for rank in range(count)]
        results: list[Any] = [None] * len(units)
        for rank, of_shard in enumerate(self.foreach_shard(method, shards)):
            results[rank::count] = of_shard
        return results

    @override(LearnerGroup)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return RLlib's state; shards are gathered by all Learners."""
        if not self.is_sharded:
            return super().get_state(
                components, not_components=not_components, **kwargs
            )
        if not self._check_component(COMPONENT_LEARNER, components, not_components):
            return {}
        call = _State(
            self._get_subcomponents(COMPONENT_LEARNER, components),
            self._get_subcomponents(COMPONENT_LEARNER, not_components),
            kwargs,
            leaves_out_moments=self._saves_shards,
        )
        (answer,) = self.foreach_learner(call, remote_actor_ids=[0])
        return {COMPONENT_LEARNER: answer.get()}

    @override(LearnerGroup)
    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._ask_version()

    @override(LearnerGroup)
    def save_to_path(
        self, path: str | Path | None = None, *, state: Any = None, **kwargs: Any
    ) -> str:
        """Write RLlib's checkpoint; without ``state`` RLlib would ask one Learner."""
        if self.is_sharded:
            state = state or self.get_state()
        written = super().save_to_path(path, state=state, **kwargs)
        if self._saves_shards:
            self.foreach_learner(SaveShards(str(Path(written, FOLDER))))
        return written

    @contextlib.contextmanager
    def saving_a_checkpoint(self) -> Iterator[None]:
        """Let states and folders that are written have the configured format."""
        format_ = self.config.complete_sharding_kwargs()["checkpoint_format"]
        self._saves_shards = self.is_sharded and format_ == "sharded"
        try:
            yield
        finally:
            self._saves_shards = False

    @override(LearnerGroup)
    def restore_from_path(self, path: str | Path, **kwargs: Any) -> None:
        super().restore_from_path(path, **kwargs)
        if folder := shards_in(path, kwargs.get("filesystem")):
            self.foreach_learner(LoadShards(folder))
        self._ask_version()

    def _ask_version(self) -> None:
        first = None if self.is_local else [0]
        (answer,) = self.foreach_learner(_version, remote_actor_ids=first)
        self._version = answer.get()


class LearnerActors(FaultTolerantActorManager):
    """Learners that all take part in a call, or none.

    RLlib's manager waits for all answers without a limit, and goes on with those that
    it got. The process group ends a collective call after ``timeout_s``; what no
    collective call ends (a stopped process, a call that waits for a dead one) ends
    here.

    Args:
        actors: The Learners, by rank.
        limits: Time limits of the calls.
        version: Returns the version of the weights before the call in progress.
        kwargs: RLlib's arguments.
    """

    def __init__(
        self,
        actors: list[Any],
        *,
        limits: _Limits,
        version: Callable[[], int],
        **kwargs: Any,
    ) -> None:
        super().__init__(actors, **kwargs)
        self._limits, self._version = limits, version

    @override(FaultTolerantActorManager)
    def foreach_actor(
        self,
        func: Any,
        *,
        kwargs: Any = None,
        remote_actor_ids: list[int] | None = None,
        timeout_seconds: float | None = None,
        return_obj_refs: bool = False,
        **options: Any,
    ) -> RemoteCallResults:
        """Call a function on Learners, and wait for all of them.

        Raises:
            LearnerError: If one has died, raised an error, or does not answer.
        """
        if timeout_seconds is not None or return_obj_refs or isinstance(func, list):
            return super().foreach_actor(
                func,
                kwargs=kwargs,
                remote_actor_ids=remote_actor_ids,
                timeout_seconds=timeout_seconds,
                return_obj_refs=return_obj_refs,
                **options,
            )
        ranks = remote_actor_ids or self.actor_ids()
        each = kwargs if isinstance(kwargs, list) else [kwargs or {}] * len(ranks)
        call = functools.partial(_call_method, func) if isinstance(func, str) else func
        actors = self.actors()
        pending = {
            actors[rank].apply.remote(call, **keywords): rank
            for rank, keywords in zip(ranks, each, strict=True)
        }
        name = name_of(func)
        limit = self._limits.of_call(name)
        answers, failures = self._wait(pending, limit)
        if failures or pending:
            within = "" if answers or failures else f" within {limit}"
            self._fail(name, failures, sorted(pending.values()), within)
        results = RemoteCallResults()
        for rank in ranks:
            results.add_result(rank, ResultOrError(result=answers[rank]), None)
        return results

    def _wait(
        self, pending: dict[Any, int], limit: TimeLimit
    ) -> tuple[dict[int, Any], dict[int, RayError]]:
        """Return answers and errors by rank; calls in progress stay in ``pending``."""
        answers: dict[int, Any] = {}
        failures: dict[int, RayError] = {}
        while pending:
            seconds = limit.seconds
            if failures:
                seconds = _GRACE_S
            elif answers:
                seconds = min(seconds, self._limits.collective_s)
            ready, _ = ray.wait(list(pending), timeout=seconds)
            if not ready:
                break
            rank = pending.pop(ready[0])
            try:
                answers[rank] = ray.get(ready[0])
            except RayError as error:
                failures[rank] = error
        return answers, failures

    def _fail(
        self,
        call: str,
        failures: dict[int, RayError],
        silent: list[int],
        within: str = "",
    ) -> None:
        """Raise the error of a call, and end Learners that can take part in no other.

        Args:
            call: Name of the call.
            failures: Errors by rank.
            silent: Ranks that have not answered.
            within: The time limit, if none has answered.
        """
        causes = [e.cause for e in failures.values() if isinstance(e, RayTaskError)]
        named = next((c for c in causes if isinstance(c, RLlibLLMError)), None)
        if named and not silent and len(causes) == len(failures):
            raise named
        for actor in self.actors().values():
            # A Learner that waits for a dead one would hold up the end of the run.
            ray.kill(actor)
        dead = [r for r, e in failures.items() if isinstance(e, RayActorError)]
        raised = [r for r in failures if r not in dead]
        number = self.num_actors()
        parts = [f"Learner {rank} of {number} died" for rank in dead]
        parts += [
            f"Learner {rank} of {number} does not answer{within}" for rank in silent
        ]
        parts += [
            f"Learner {rank} of {number} raised "
            f"{summarize(getattr(failures[rank], 'cause', None) or failures[rank])}"
            for rank in raised
        ]
        raise LearnerError(
            f"{call}() after weights version {self._version()}: {'; '.join(parts)}. "
            "Every call needs all Learners, so the run ends. tune.max_failures=1 or "
            "more restarts all of them from the newest checkpoint; rllib-llm train "
            "--resume RUN continues it later."
        ) from next(iter(failures.values()), None)


class _Limits:
    """Time limits of calls to Learners.

    Args:
        config: The algorithm's.
    """

    def __init__(self, config: LLMConfig) -> None:
        self._call, self._batch = config.call_limit, config.batch_limit
        self.collective_s: float = config.collective_timeout_s

    def of_call(self, name: str) -> TimeLimit:
        """Return the longest time until the first Learner answers a call."""
        return self._batch if name in _OF_BATCHES else self._call


@dataclasses.dataclass(frozen=True)
class _State:
    """A call on a Learner: return its state, on the first one alone."""

    components: Any
    not_components: Any
    options: dict[str, Any]
    leaves_out_moments: bool = False

    def __call__(self, learner: LLMLearnerMixin) -> dict[str, Any] | None:
        learner.leaves_out_moments = self.leaves_out_moments
        try:
            state = learner.get_state(
                self.components, not_components=self.not_components, **self.options
            )
        finally:
            learner.leaves_out_moments = False
        return state if is_first() else None


def _call_method(name: str, learner: Any, **kwargs: Any) -> Any:
    return getattr(learner, name)(**kwargs)


def _version(learner: LLMLearnerMixin) -> int:
    return learner._weights_seq_no
