"""Sampling loop over slots of concurrent episodes."""

from __future__ import annotations

import dataclasses
import queue
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rllib_llm.data.types import StopPolicy, StopReason, Task
from rllib_llm.env_runner.acting import Acting, Ready
from rllib_llm.env_runner.best_paths import (
    BestPaths,
    chooses_among_finished,
    chosen_places,
)
from rllib_llm.env_runner.env_worker import EnvReply, EnvWorker
from rllib_llm.env_runner.episode_limits import RolloutLimits, exceeds
from rllib_llm.env_runner.episode_tree import GroupTrees
from rllib_llm.env_runner.forks import ForkRule, begin_path, plan_forks
from rllib_llm.env_runner.monitor import RolloutMonitor
from rllib_llm.env_runner.slots import ActionSource, Slot
from rllib_llm.env_runner.task_queue import GroupsWanted, TaskQueue
from rllib_llm.envs.go_to import go_to, step_from_place
from rllib_llm.errors import ConfigError, EnvContractError, MissingExtraError

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule

_POLL_S = 0.05  # wait for an environment between two checks of the time limits
_QUICK_S = 0.002  # an environment's call that is shorter delays the engines
_IN_ENV = ("reset", "step")


class Rollout:
    """Plays tasks to the end, with concurrent episodes in slots.

    Environment calls run in the slots' threads while the engines decode. Episodes do
    not wait for each other, and the agents of all episodes that share a policy share
    its batches. The sampling seed of each request comes from its task, so the sampled
    tokens do not depend on the other running episodes.

    Args:
        make_env: Builds one environment.
        make_recorder: Builds the recorder of a task (a SingleAgentRecorder or a
            MultiAgentRecorder).
        action_sources: The ActionSource of each policy, by ModuleID.
        env_to_module: Renders observations (RLlib connector pipeline).
        module_to_env: Decodes actions (RLlib connector pipeline).
        num_slots: Number of concurrent episodes.
        limits: Limits of an episode.
        module: The RLModule that the connectors receive.
        on_event: Called as ``on_event(name, episode)`` for RLlib's callbacks.
        monitor: Reports progress and stalls.
        fork_rule: Decides where episodes of a group begin at places of others.

    Attributes:
        slots: Slots of running episodes.
        abandoned: Workers whose environment was replaced; their call may never return.
        idle_s: Seconds between the last two calls of :meth:`run_groups`; 0 before the
            second.
    """

    def __init__(
        self,
        *,
        make_env: Callable[[], Any],
        make_recorder: Callable[[Task], Any],
        action_sources: Mapping[str, ActionSource],
        env_to_module: Callable[..., Any],
        module_to_env: Callable[..., Any],
        num_slots: int,
        limits: RolloutLimits,
        module: RLModule | MultiRLModule,
        on_event: Callable[[str, Any], None],
        monitor: RolloutMonitor | None = None,
        fork_rule: ForkRule | None = None,
    ):
        self._make_env = make_env
        self._make_recorder = make_recorder
        self._limits = limits
        self._on_event = on_event
        self._fork_rule = fork_rule
        self._monitor = monitor or RolloutMonitor()
        self._acting = Acting(
            action_sources,
            env_to_module=env_to_module,
            module_to_env=module_to_env,
            module=module,
            monitor=self._monitor,
            on_actions=self._step_env,
            on_overflow=self._overflow,
        )
        # One queue for all threads: the loop sleeps on a single object.
        self._replies: queue.SimpleQueue[EnvReply] = queue.SimpleQueue()
        self.slots = [
            Slot(i, EnvWorker(make_env, self._replies)) for i in range(num_slots)
        ]
        self.abandoned: list[EnvWorker] = []
        self._tasks = TaskQueue()
        self._next_check = 0.0
        self._paused: float | None = None  # end of the last run_groups()
        self.idle_s = 0.0

    def close(self) -> None:
        """Close all environments."""
        for slot in self.slots:
            slot.worker.close()

    def run(
        self,
        tasks: list[Task],
        *,
        explore: bool,
        max_failed_fraction: float | None = None,
    ) -> list[Any]:
        """Play every task once and return the episodes in the order of ``tasks``.

        Failed tasks are retried ``max_retries`` times, then left out and listed in
        ``self.failures`` with the last stop reason.

        Args:
            tasks: The tasks.
            explore: Sample (True) or decode greedily (False).
            max_failed_fraction: In place of the value in ``limits``.

        Raises:
            EnvContractError: If more than ``max_failed_fraction`` of the tasks failed.
        """
        if max_failed_fraction is None:
            max_failed_fraction = self._limits.max_failed_fraction
        if any(slot.waiting_for for slot in self.slots):
            raise RuntimeError(
                "Episodes of run_groups() are still running in this rollout. Call "
                "run_groups() until it has returned all of them, or use another "
                "EnvRunner."
            )
        self._acting.explore, self._paused = explore, None
        limits = self._limits
        self._tasks = TaskQueue(
            tasks, limits.max_retries, max_failed_fraction, self._roots, self._places()
        )
        self._play_until(GroupsWanted(len(tasks)))
        return self._tasks.episodes

    def run_groups(
        self, tasks: list[Task], wanted: GroupsWanted
    ) -> tuple[dict[int, list[Any]], list[tuple[Task, str]]]:
        """Play tasks until enough groups are complete.

        The other episodes stay in their slots and go on in the next call, with the
        weights of that time. Their time limits do not count the time between.

        Args:
            tasks: Tasks to add to those of earlier calls.
            wanted: Groups to wait for.

        Returns:
            Episodes of the complete groups by group_id, and the tasks that failed, with
            the last stop reason.

        Raises:
            EnvContractError: If more than ``max_failed_fraction`` of the tasks failed.
        """
        self.idle_s = 0.0
        if self._paused is None:
            limits, self._acting.explore = self._limits, True
            self._tasks = TaskQueue(
                (),
                limits.max_retries,
                limits.max_failed_fraction,
                self._roots,
                self._places(),
            )
        else:
            self.idle_s = time.perf_counter() - self._paused
            self._resume(self.idle_s)
        self._tasks.add(tasks)
        self._play_until(wanted)
        self._paused = time.perf_counter()
        return self._tasks.pop_complete()

    def abort(self) -> None:
        """Discard the episodes and tasks that :meth:`run_groups` has left."""
        self._abort_all()
        self._tasks, self._paused = TaskQueue(), None

    def _resume(self, seconds: float) -> None:
        """Move the clocks of running episodes by the time between two calls."""
        for slot in self.slots:
            slot.since += seconds
            slot.started += seconds

    def _play_until(self, wanted: GroupsWanted) -> None:
        # Before the monitor's clock starts: starting vLLM takes minutes.
        self._acting.start_engines()
        try:
            with self._monitor.watching(self):
                while not self._tasks.has(wanted):
                    self._fill_slots()
                    self._acting.prompt(self._collect_replies())
                    self._acting.step_engines()
                    self._check_time_limits()
        except BaseException:
            # KeyboardInterrupt as well: the next run() needs idle slots.
            self.abort()
            raise

    @property
    def groups(self) -> frozenset[int]:
        """Ids of the groups that :meth:`run_groups` has not returned."""
        return self._tasks.groups

    @property
    def num_tasks(self) -> int:
        """Number of tasks of the current run."""
        return self._tasks.num_tasks

    @property
    def failures(self) -> list[tuple[Task, str]]:
        """Tasks without an episode, with the last stop reason."""
        return self._tasks.failures

    @property
    def num_done(self) -> int:
        """Number of episodes finished since the start of :meth:`run`."""
        return self._tasks.num_done

    @property
    def num_unfinished_turns(self) -> int:
        """Number of turns that the engines are generating."""
        return self._acting.num_unfinished_turns

    # Starting episodes ---------------------------------------------------------------

    def _fill_slots(self) -> None:
        for slot in self.slots:
            if not self._tasks.num_waiting:
                return
            if slot.waiting_for is None:
                slot.task_index, slot.task, slot.attempt = self._tasks.take()
                slot.recorder = self._make_recorder(slot.task)
                slot.started = time.perf_counter()
                self._on_event("on_episode_created", slot.recorder.episode)
                begin_path(slot)
                self._begin(slot, slot.task)

    def _begin(self, slot: Slot, task: Task) -> None:
        """Let the environment begin the task, at its place if it has one."""
        # A copy: the task may be played again, and environments may write.
        options, place = dict(task.options), task.place
        if place is None:
            self._ask_env(slot, "reset", seed=task.seed, options=options)
            return
        self._ask_env(
            slot,
            "reset",
            call=go_to,
            seed=task.seed,
            options=options,
            actions=place.actions,
            observations=place.observations,
            state=place.state,
        )

    def _ask_env(
        self,
        slot: Slot,
        method: str,
        *args: Any,
        call: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        slot.waiting_for, slot.since = method, time.perf_counter()
        token = (slot.index, slot.generation)
        slot.worker.call(token, call or method, *args, **kwargs)

    def _step_env(self, slot: Slot) -> None:
        """Step the environment, because all agents have acted."""
        rule = self._fork_rule
        if (
            rule is not None
            and self._acting.explore
            and not chooses_among_finished(rule)
        ):
            plan_forks(slot, rule, self._tasks.budget(slot.task_index))
        # The environment is copied before the step only where episodes are forked.
        call = step_from_place if slot.num_forks else None
        self._ask_env(slot, "step", slot.recorder.action(), call=call)

    def _fork(self, slot: Slot, state: bytes | None) -> None:
        """Let episodes begin at the place before the slot's last turn."""
        assert slot.place is not None
        place = dataclasses.replace(slot.place, state=state)
        self._tasks.fork(slot.task_index, slot.num_forks, place)
        slot.num_forks, slot.place = 0, None

    @property
    def _roots(self) -> int | None:
        """Number of a group's episodes that begin at the prompt; None: all."""
        if self._fork_rule is None or not self._acting.explore:
            return None
        return self._fork_rule.roots

    def _places(self) -> GroupTrees | BestPaths | None:
        """Return what chooses places if the rule does so among finished episodes."""
        if self._roots is None or not chooses_among_finished(self._fork_rule):
            return None
        return chosen_places(self._fork_rule)

    # Environment replies -------------------------------------------------------------

    def _collect_replies(self) -> Ready:
        """Process the environments' replies.

        Waits for any environment while the engines are idle, and for quick ones always:
        their next turns can then be decoded in the same batch.
        """
        ready: Ready = []
        is_idle = not self._acting.num_unfinished_turns
        while (reply := self._next_reply(is_idle)) is not None:
            is_idle = False
            index, generation = reply.token
            slot = self.slots[index]
            # Replies of an abandoned environment carry an older generation.
            if slot.generation == generation:
                slot.is_quick = reply.seconds < _QUICK_S
                self._on_reply(slot, reply, ready)
        return ready

    def _next_reply(self, is_idle: bool) -> EnvReply | None:
        """Return a reply, or None if the engines should not wait for one."""
        try:
            return self._replies.get_nowait()
        except queue.Empty:
            pass
        in_env = [s for s in self.slots if s.waiting_for in _IN_ENV]
        quick = [s for s in in_env if s.is_quick]
        if not (quick or (is_idle and in_env)):
            return None
        try:
            return self._replies.get(timeout=_POLL_S if is_idle else _QUICK_S)
        except queue.Empty:
            # Not again during the same calls: they are longer than the last ones were.
            for slot in quick:
                slot.is_quick = False
            return None

    def _on_reply(self, slot: Slot, reply: EnvReply, ready: Ready) -> None:
        if reply.error is not None:
            self._fail(slot, StopReason.ENV_ERROR, repr(reply.error), reply.error)
            return
        recorder, value = slot.recorder, reply.value
        if slot.waiting_for == "reset":
            place = recorder.task.place
            agent_states = (
                recorder.begin(value) if place is None else recorder.resume(place)
            )
            self._on_event("on_episode_start", recorder.episode)
        else:
            if slot.num_forks:
                state, value = value
                self._fork(slot, state)
            agent_states = recorder.advance(value, self._limits)
            self._on_event("on_episode_step", recorder.episode)
        if recorder.episode.is_done:
            self._finish(slot)
            return
        # Agents that act at once: the environment steps when the last one has acted.
        slot.waiting_for, slot.num_pending = "engine", len(agent_states)
        slot.since = time.perf_counter()
        ready += [(slot, agent_state) for agent_state in agent_states]

    # Endings -------------------------------------------------------------------------

    def _finish(self, slot: Slot) -> None:
        agent_states = slot.recorder.needs_final_prompt()
        if agent_states:
            # Truncated agents: the critic bootstraps from the prompt that would have
            # come next.
            self._acting.render_last(agent_states)
        self._close_episode(slot)

    def _overflow(self, slot: Slot) -> None:
        """End an episode whose next prompt does not fit in the context."""
        slot.recorder.data.stop_reason = StopReason.CONTEXT_OVERFLOW
        self._acting.abort_requests(slot)
        slot.recorder.truncate()
        self._close_episode(slot)

    def _close_episode(self, slot: Slot) -> None:
        recorder = slot.recorder
        recorder.close(
            self._limits.stop_policies.__getitem__, time.perf_counter() - slot.started
        )
        if recorder.data.stop_policy is StopPolicy.DROP:
            why = (
                recorder.data.error or f"stop reason {recorder.data.stop_reason.value}"
            )
            self._retry(slot, why)
            return
        self._tasks.finish(slot.task_index, recorder.episode, recorder)
        self._on_event("on_episode_end", recorder.episode)
        self._free(slot)

    def _fail(
        self,
        slot: Slot,
        reason: StopReason,
        why: str,
        error: BaseException | None = None,
    ) -> None:
        """End an episode whose environment failed or exceeded a time limit."""
        # A bug in the environment's code, a setting or a missing package: a retry
        # would fail as well.
        if isinstance(error, EnvContractError | ConfigError | MissingExtraError):
            raise error
        self._replace_env(slot)  # its state is undefined, and its call may hang
        slot.recorder.data.stop_reason = reason
        policy = self._limits.stop_policies[reason]
        # Without a turn there is nothing to train on, whatever the stop policy says.
        if policy is StopPolicy.DROP or not slot.recorder.has_turns:
            self._retry(slot, why)
        else:
            slot.recorder.truncate()
            self._close_episode(slot)

    def _retry(self, slot: Slot, why: str) -> None:
        recorder, attempt = slot.recorder, slot.attempt
        self._free(slot)
        reason = recorder.data.stop_reason
        self._tasks.drop(slot.task_index, recorder.task, attempt, reason, why)

    def _free(self, slot: Slot) -> None:
        self._acting.close_sessions(slot)
        slot.num_forks, slot.place = 0, None
        # A program that a limit has stopped would wait for its reply.
        slot.worker.end_episode()
        slot.generation += 1  # late replies of this episode are ignored from now on
        slot.waiting_for = slot.recorder = None

    def _abort_all(self) -> None:
        """Discard all running episodes after an error and free their slots."""
        for slot in self.slots:
            if slot.waiting_for in _IN_ENV:
                self._replace_env(slot)
            if slot.waiting_for is not None:
                self._free(slot)

    def _replace_env(self, slot: Slot) -> None:
        """Replace the environment, whose state is undefined after a failed call."""
        slot.worker.abandon()
        self.abandoned = [w for w in (*self.abandoned, slot.worker) if w.is_running]
        slot.worker = EnvWorker(self._make_env, self._replies)

    def _check_time_limits(self) -> None:
        limits, now = self._limits, time.perf_counter()
        if now < self._next_check:
            return
        self._next_check = now + _POLL_S
        for slot in self.slots:
            if slot.waiting_for is None:
                continue
            waited, lasted = now - slot.since, now - slot.started
            if slot.waiting_for == "engine":
                late = exceeds(waited, limits.turn_timeout_s)
            else:
                late = exceeds(waited, limits.step_timeout_s)
            if late or exceeds(lasted, limits.episode_timeout_s):
                why = f"{slot.waiting_for} after {waited:.1f} s, episode {lasted:.1f} s"
                self._acting.abort_requests(slot)
                self._fail(slot, StopReason.TIMEOUT, why)
