"""Sampling loop over slots of concurrent episodes."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.core.columns import Columns

from rllib_llm.data.model_calls import ModelReply
from rllib_llm.data.types import StopPolicy, StopReason, Task, Turn
from rllib_llm.engines.base import Generation
from rllib_llm.env_runner.env_worker import EnvReply, EnvWorker
from rllib_llm.env_runner.episode_limits import RolloutLimits, exceeds
from rllib_llm.env_runner.monitor import RolloutMonitor
from rllib_llm.env_runner.non_llm_policies import act_together
from rllib_llm.env_runner.recorder import AgentState
from rllib_llm.env_runner.scripted_policies import Script, scripted_turn
from rllib_llm.env_runner.slots import ActionSource, Slot
from rllib_llm.env_runner.task_queue import GroupsWanted, TaskQueue
from rllib_llm.env_runner.turns import (
    prompt_length,
    request_turn,
    sampled_turn,
    turn_seed,
)
from rllib_llm.errors import EnvContractError

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule

    from rllib_llm.env_runner.scored_actions import ActionScorer

_POLL_S = 0.05  # wait for an environment between two checks of the time limits
_QUICK_S = 0.002  # an environment's call that is shorter delays the engines
_IN_ENV = ("reset", "step")

_NO_AGENT: tuple[None, None] = (None, None)  # in a session that has ended

Ready = list[tuple[Slot, AgentState]]


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
    ):
        self._make_env = make_env
        self._make_recorder = make_recorder
        self._action_sources = action_sources
        self._actors = {
            m: v.actor for m, v in action_sources.items() if v.actor is not None
        }
        engines = [v.engine for v in action_sources.values() if v.engine is not None]
        # By identity: several policies may share an engine, which must step once a
        # round.
        self._engines = list({id(e): e for e in engines}.values())
        self._env_to_module = env_to_module
        self._module_to_env = module_to_env
        self._limits = limits
        self._module = module
        self._on_event = on_event
        self._monitor = monitor or RolloutMonitor()
        # One queue for all threads: the loop sleeps on a single object.
        self._replies: queue.SimpleQueue[EnvReply] = queue.SimpleQueue()
        self.slots = [
            Slot(i, EnvWorker(make_env, self._replies)) for i in range(num_slots)
        ]
        self.abandoned: list[EnvWorker] = []
        self._tasks = TaskQueue()
        self._by_session: dict[Any, tuple[Slot, AgentState]] = {}
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
        self._explore, self._paused = explore, None
        self._tasks = TaskQueue(tasks, self._limits.max_retries, max_failed_fraction)
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
            limits, self._explore = self._limits, True
            self._tasks = TaskQueue((), limits.max_retries, limits.max_failed_fraction)
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
        for engine in self._engines:
            # Before the monitor's clock starts: starting vLLM takes minutes.
            engine.start()
        try:
            with self._monitor.watching(self):
                while not self._tasks.has(wanted):
                    self._fill_slots()
                    self._prompt_ready(self._collect_replies())
                    for engine in self._engines:
                        if engine.num_unfinished:
                            self._deliver(engine.step())
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
        return sum(engine.num_unfinished for engine in self._engines)

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
                self._ask_env(
                    slot,
                    "reset",
                    seed=slot.task.seed,
                    # A copy: the task may be played again, and environments may write.
                    options=dict(slot.task.options),
                )

    def _ask_env(self, slot: Slot, method: str, *args: Any, **kwargs: Any) -> None:
        slot.waiting_for, slot.since = method, time.perf_counter()
        slot.worker.call((slot.index, slot.generation), method, *args, **kwargs)

    # Environment replies -------------------------------------------------------------

    def _collect_replies(self) -> Ready:
        """Process the environments' replies.

        Waits for any environment while the engines are idle, and for quick ones always:
        their next turns can then be decoded in the same batch.
        """
        ready: Ready = []
        is_idle = not any(e.num_unfinished for e in self._engines)
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
        recorder = slot.recorder
        if slot.waiting_for == "reset":
            agent_states = recorder.begin(reply.value)
            self._on_event("on_episode_start", recorder.episode)
        else:
            agent_states = recorder.advance(reply.value, self._limits)
            self._on_event("on_episode_step", recorder.episode)
        if recorder.episode.is_done:
            self._finish(slot)
            return
        # Agents that act at once: the environment steps when the last one has acted.
        slot.waiting_for, slot.num_pending = "engine", len(agent_states)
        slot.since = time.perf_counter()
        ready += [(slot, agent_state) for agent_state in agent_states]

    # Prompts -------------------------------------------------------------------------

    def _prompt_ready(self, ready: Ready) -> None:
        if not ready:
            return
        self._render([agent_state for _, agent_state in ready])
        # Scored and numeric policies act after the loop, one batch per policy.
        to_score: dict[str, Ready] = {}
        for slot, agent_state in ready:
            if slot.waiting_for is None or agent_state.module_id in self._actors:
                continue  # None: another agent's context overflow ended the episode
            action_source = self._action_sources[agent_state.module_id]
            if action_source.script is not None:
                self._act_by_script(slot, agent_state, action_source.script)
                continue
            length = prompt_length(agent_state)
            if (
                length + action_source.least_tokens(agent_state)
                > action_source.max_context_tokens
            ):
                self._overflow(slot, agent_state, length, action_source)
            elif action_source.action_scorer is not None:
                to_score.setdefault(agent_state.module_id, []).append(
                    (slot, agent_state)
                )
            else:
                self._submit(slot, agent_state, action_source)
        for module_id, waiting in to_score.items():
            self._choose(self._action_sources[module_id].action_scorer, waiting)
        for slot, agent_state, turn, action in act_together(
            ready, self._actors, self._seed, explore=self._explore
        ):
            self._record(slot, agent_state, turn)
            self._set_action(slot, agent_state, action)

    def _render(self, agent_states: Iterable[AgentState]) -> None:
        """Render the last observations of the agents as prompts."""
        episodes = [s.episode for s in agent_states if s.module_id not in self._actors]
        if not episodes:
            return
        self._env_to_module(
            rl_module=self._module,
            batch={},
            episodes=episodes,
            explore=self._explore,
            shared_data={},
        )

    def _submit(
        self, slot: Slot, agent_state: AgentState, action_source: ActionSource
    ) -> None:
        # The generation keeps sessions of consecutive episodes in a slot apart.
        conversation = agent_state.data.conversation
        session = (slot.index, slot.generation, agent_state.index, conversation)
        if session not in self._by_session:
            action_source.engine.open(session, **action_source.open_settings)
            self._by_session[session] = (slot, agent_state)
            slot.sessions[session] = action_source.engine
        num_sampled, seed = slot.recorder.num_sampled, self._seed(slot, agent_state)
        request_turn(
            action_source, agent_state, session, num_sampled=num_sampled, seed=seed
        )

    def _choose(self, action_scorer: ActionScorer, waiting: Ready) -> None:
        """Choose among the admissible actions, for all waiting agents at once."""
        # Another agent's context overflow may have ended an episode meanwhile.
        waiting = [
            (slot, agent_state) for slot, agent_state in waiting if slot.waiting_for
        ]
        seeds = [self._seed(slot, agent_state) for slot, agent_state in waiting]
        agent_states = [agent_state for _, agent_state in waiting]
        turns = action_scorer.choose(agent_states, seeds, explore=self._explore)
        for (slot, agent_state), turn in zip(waiting, turns, strict=True):
            self._record(slot, agent_state, turn)
        self._act(waiting)

    @staticmethod
    def _seed(slot: Slot, agent_state: AgentState) -> int:
        return turn_seed(slot.recorder.task, slot.attempt, agent_state)

    def _overflow(
        self,
        slot: Slot,
        agent_state: AgentState,
        length: int,
        action_source: ActionSource,
    ) -> None:
        if not agent_state.data.num_turns:
            raise EnvContractError(
                f"The first prompt of seed {slot.recorder.task.seed} has at least "
                f"{length} tokens; max_context_tokens="
                f"{action_source.max_context_tokens} leaves no room for a completion. "
                "Raise max_context_tokens or shorten the prompt."
            )
        # The observation does not fit in the context: the critic bootstraps from the
        # state before it.
        agent_state.data.prompt = None
        slot.recorder.data.stop_reason = StopReason.CONTEXT_OVERFLOW
        self._abort_requests(slot)
        slot.recorder.truncate()
        self._close_episode(slot)

    def _act_by_script(
        self, slot: Slot, agent_state: AgentState, script: Script
    ) -> None:
        turn = scripted_turn(script, agent_state, self._seed(slot, agent_state))
        self._record(slot, agent_state, turn)
        self._set_action(slot, agent_state, turn.text)

    # Engine results ------------------------------------------------------------------

    def _deliver(self, generations: list[Generation]) -> None:
        sampled: Ready = []
        for result in generations:
            slot, agent_state = self._by_session.get(result.session_id, _NO_AGENT)
            # An aborted request may still finish in the same engine step.
            if slot is None or agent_state is None:
                continue
            if agent_state.request_id != result.request_id:
                continue
            turn = sampled_turn(result, agent_state)
            self._record(slot, agent_state, turn)
            sampled.append((slot, agent_state))
        self._act(sampled)

    def _act(self, sampled: Ready) -> None:
        """Decode the sampled turns and pass them on as actions."""
        if not sampled:
            return
        batch = self._module_to_env(
            rl_module=self._module,
            batch={},
            episodes=[agent_state.episode for _, agent_state in sampled],
            explore=self._explore,
            shared_data={},
        )
        for (slot, agent_state), action in zip(
            sampled, batch[Columns.ACTIONS], strict=True
        ):
            if isinstance(action, ModelReply):
                agent_state.recorded = action.text
            self._set_action(slot, agent_state, action)

    def _record(self, slot: Slot, agent_state: AgentState, turn: Turn) -> None:
        self._monitor.turn_finished()
        # Set here, since engines do not know the environment's time.
        turn.env_t = slot.recorder.env_t
        agent_state.turn = turn
        agent_state.data.record(turn)

    def _set_action(self, slot: Slot, agent_state: AgentState, action: object) -> None:
        """Store an agent's action; step the environment once all agents have acted."""
        agent_state.action = action
        slot.num_pending -= 1
        if not slot.num_pending:
            self._ask_env(slot, "step", slot.recorder.action())

    # Endings -------------------------------------------------------------------------

    def _finish(self, slot: Slot) -> None:
        agent_states = slot.recorder.needs_final_prompt()
        if agent_states:
            # Truncated agents: the critic bootstraps from the prompt that would have
            # come next.
            self._render(agent_states)
            for agent_state in agent_states:
                action_source = self._action_sources[agent_state.module_id]
                if (
                    agent_state.data.prompt
                    and prompt_length(agent_state) > action_source.max_context_tokens
                ):
                    # Too long for the critic: it bootstraps from the state before it.
                    agent_state.data.prompt = None
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
        self._tasks.finish(slot.task_index, recorder.episode)
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
        if isinstance(error, EnvContractError):
            raise error  # a bug in the environment's code: a retry would not help
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
        for session, engine in slot.sessions.items():
            del self._by_session[session]
            engine.close(session)
        slot.sessions.clear()
        # A program that a limit has stopped would wait for its reply.
        slot.worker.end_episode()
        slot.generation += 1  # late replies of this episode are ignored from now on
        slot.waiting_for = slot.recorder = None

    def _abort_requests(self, slot: Slot) -> None:
        for agent_state in slot.recorder.agent_states:
            if agent_state.request_id is not None:
                self._action_sources[agent_state.module_id].engine.abort(
                    agent_state.request_id
                )
                agent_state.request_id = None

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
                self._abort_requests(slot)
                self._fail(slot, StopReason.TIMEOUT, why)
