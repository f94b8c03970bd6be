"""The sampling loop: slots of concurrent episodes around the engines."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ray.rllib.core.columns import Columns

from rllib_llm.data.types import StopPolicy, StopReason, Task, Turn
from rllib_llm.engines.base import Generation
from rllib_llm.env_runner.env_worker import EnvReply, EnvWorker
from rllib_llm.env_runner.limits import RolloutLimits, exceeds
from rllib_llm.env_runner.monitor import RolloutMonitor
from rllib_llm.env_runner.non_llm_policies import act_together
from rllib_llm.env_runner.recorder import AgentState
from rllib_llm.env_runner.scripted_policies import scripted_turn
from rllib_llm.env_runner.slots import ActionSource, Slot
from rllib_llm.env_runner.turns import (
    prompt_length,
    request_turn,
    sampled_turn,
    turn_seed,
)
from rllib_llm.errors import EnvContractError

logger = logging.getLogger("rllib_llm")

_POLL_S = 0.05  # how long to wait for an environment before looking at time limits

Ready = list[tuple[Slot, AgentState]]


class Rollout:
    """Plays tasks to the end, all slots at once.

    Environment calls run in the slots' threads while the engines decode; an episode
    never waits for another one, and the agents of all episodes that share a policy
    share its batches. Each request's sampling seed comes from its task, so what is
    sampled does not depend on which episodes run beside it.

    Args:
        make_env: Builds one environment.
        make_recorder: Starts the record of a task (a SingleAgentRecorder or a
            MultiAgentRecorder).
        voices: How each policy makes turns, by ModuleID.
        env_to_module: Renders observations (RLlib connector pipeline).
        module_to_env: Decodes actions (RLlib connector pipeline).
        num_slots: Concurrent episodes.
        limits: Bounds of an episode.
        module: The RLModule, handed to connectors.
        on_event: Called as ``on_event(name, episode)`` for RLlib's callbacks.
        monitor: Says how far sampling is, and what it waits for.

    Attributes:
        slots: Places of running episodes.
        num_tasks: How many are being played.
        failures: Tasks that were left out, and why.
        abandoned: Workers whose environments were replaced and may hang for ever.
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
        module: Any,
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
        self._engines = list({id(e): e for e in engines}.values())
        self._env_to_module = env_to_module
        self._module_to_env = module_to_env
        self._limits = limits
        self._module = module
        self._on_event = on_event
        self._monitor = monitor or RolloutMonitor()
        self._replies: queue.SimpleQueue[EnvReply] = queue.SimpleQueue()
        self.slots = [
            Slot(i, EnvWorker(make_env, self._replies)) for i in range(num_slots)
        ]
        self.abandoned: list[EnvWorker] = []
        self._done: dict[int, Any] = {}
        self.num_tasks = 0
        self._by_session: dict[Any, tuple[Slot, AgentState]] = {}
        self._next_check = 0.0
        self.failures: list[tuple[Task, str]] = []

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

        Tasks that keep failing are retried ``max_retries`` times, then left out and
        named in ``self.failures`` with the last stop reason.

        Args:
            tasks: What to play.
            explore: Sample, or take the most likely tokens.
            max_failed_fraction: In place of the limits' own.

        Raises:
            EnvContractError: If more than ``max_failed_fraction`` of the tasks failed.
        """
        self.failures = []
        if max_failed_fraction is None:
            max_failed_fraction = self._limits.max_failed_fraction
        self._max_failed_fraction = max_failed_fraction
        self._explore = explore
        self._todo: deque[tuple[int, Task, int]] = deque(
            (i, task, 0) for i, task in enumerate(tasks)
        )
        self._order: dict[int, int] = {}
        self._done = {}
        self.num_tasks = len(tasks)
        for engine in self._engines:
            engine.start()  # before the monitor's clock: vLLM takes minutes
        try:
            with self._monitor.watching(self):
                while self._todo or any(s.waiting_for for s in self.slots):
                    self._fill_slots()
                    self._prompt_ready(self._collect_replies())
                    for engine in self._engines:
                        if engine.num_unfinished:
                            self._deliver(engine.step())
                    self._check_time_limits()
        except BaseException:
            self._give_up()
            raise
        return [self._done[i] for i in sorted(self._done)]

    @property
    def num_done(self) -> int:
        """Episodes finished since :meth:`run` began."""
        return len(self._done)

    @property
    def num_unfinished_turns(self) -> int:
        """Turns that engines are asked for."""
        return sum(engine.num_unfinished for engine in self._engines)

    # Starting episodes ---------------------------------------------------------------

    def _fill_slots(self) -> None:
        for slot in self.slots:
            if not self._todo:
                return
            if slot.waiting_for is None:
                index, slot.task, slot.attempt = self._todo.popleft()
                self._order[slot.index] = index
                slot.play = self._make_recorder(slot.task)
                slot.started = time.perf_counter()
                self._on_event("on_episode_created", slot.play.episode)
                self._ask_env(
                    slot,
                    "reset",
                    seed=slot.task.seed,
                    options=dict(slot.task.options),
                )

    def _ask_env(self, slot: Slot, method: str, *args: Any, **kwargs: Any) -> None:
        slot.waiting_for, slot.since = method, time.perf_counter()
        slot.worker.call((slot.index, slot.generation), method, *args, **kwargs)

    # Environment replies -------------------------------------------------------------

    def _collect_replies(self) -> Ready:
        """Take what environments have answered; wait only if the engines are idle."""
        ready: Ready = []
        block = not any(e.num_unfinished for e in self._engines) and any(
            s.waiting_for in ("reset", "step") for s in self.slots
        )
        while True:
            try:
                reply = self._replies.get(block=block, timeout=_POLL_S)
            except queue.Empty:
                return ready
            block = False
            index, generation = reply.token
            slot = self.slots[index]
            if slot.generation == generation:
                self._on_reply(slot, reply, ready)

    def _on_reply(self, slot: Slot, reply: EnvReply, ready: Ready) -> None:
        if reply.error is not None:
            self._fail(slot, StopReason.ENV_ERROR, repr(reply.error), reply.error)
            return
        play = slot.play
        if slot.waiting_for == "reset":
            agent_states = play.begin(reply.value)
            self._on_event("on_episode_start", play.episode)
        else:
            agent_states = play.advance(reply.value, self._limits)
            self._on_event("on_episode_step", play.episode)
        if play.episode.is_done:
            self._finish(slot)
            return
        slot.waiting_for, slot.num_silent = "engine", len(agent_states)
        slot.since = time.perf_counter()
        ready += [(slot, agent_state) for agent_state in agent_states]

    # Prompts -------------------------------------------------------------------------

    def _prompt_ready(self, ready: Ready) -> None:
        if not ready:
            return
        self._render([agent_state for _, agent_state in ready])
        choosing: dict[str, Ready] = {}
        for slot, agent_state in ready:
            if slot.waiting_for is None or agent_state.module_id in self._actors:
                continue  # another agent's prompt has ended the episode, or see below
            action_source = self._action_sources[agent_state.module_id]
            if action_source.script is not None:
                self._act_by_script(slot, agent_state, action_source)
                continue
            length = prompt_length(agent_state)
            if (
                length + action_source.least_tokens(agent_state)
                > action_source.max_context_tokens
            ):
                self._overflow(slot, agent_state, length, action_source)
            elif action_source.action_scorer is not None:
                choosing.setdefault(agent_state.module_id, []).append(
                    (slot, agent_state)
                )
            else:
                self._submit(slot, agent_state, action_source)
        for module_id, waiting in choosing.items():
            self._choose(self._action_sources[module_id].action_scorer, waiting)
        for slot, agent_state, turn, action in act_together(
            ready, self._actors, self._seed, explore=self._explore
        ):
            self._record(slot, agent_state, turn)
            self._hear(slot, agent_state, action)

    def _render(self, agent_states: Iterable[AgentState]) -> None:
        readers = [s.episode for s in agent_states if s.module_id not in self._actors]
        if not readers:
            return
        self._env_to_module(
            rl_module=self._module,
            batch={},
            episodes=readers,
            explore=self._explore,
            shared_data={},
        )

    def _submit(
        self, slot: Slot, agent_state: AgentState, action_source: ActionSource
    ) -> None:
        session = (slot.index, slot.generation, agent_state.index)
        if session not in self._by_session:
            action_source.engine.open(session, **action_source.open_settings)
            self._by_session[session] = (slot, agent_state)
        num_sampled, seed = slot.play.num_sampled, self._seed(slot, agent_state)
        request_turn(
            action_source, agent_state, session, num_sampled=num_sampled, seed=seed
        )

    def _choose(self, action_scorer: Any, waiting: Ready) -> None:
        """Let a policy choose among admissible actions, for all seats at once."""
        # An episode that another agent's full context has ended waits for nobody.
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
        return turn_seed(slot.task, slot.attempt, agent_state)

    def _overflow(
        self,
        slot: Slot,
        agent_state: AgentState,
        length: int,
        action_source: ActionSource,
    ) -> None:
        if not agent_state.data.num_turns:
            raise EnvContractError(
                f"The first prompt of seed {slot.task.seed} has {length} tokens "
                f"or more; max_context_tokens={action_source.max_context_tokens} "
                "leaves no "
                "room to answer. Raise max_context_tokens or shorten the prompt."
            )
        # The observation cannot be shown; the critic bootstraps before it.
        agent_state.data.prompt = None
        slot.play.data.stop_reason = StopReason.CONTEXT_OVERFLOW
        self._abort_requests(slot)
        slot.play.cut()
        self._close_episode(slot)

    def _act_by_script(
        self, slot: Slot, agent_state: AgentState, action_source: ActionSource
    ) -> None:
        turn = scripted_turn(
            action_source.script, agent_state, self._seed(slot, agent_state)
        )
        self._record(slot, agent_state, turn)
        self._hear(slot, agent_state, turn.text)

    # Engine results ------------------------------------------------------------------

    def _deliver(self, generations: list[Generation]) -> None:
        spoken: Ready = []
        for result in generations:
            slot, agent_state = self._by_session.get(result.session_id, (None, None))
            if slot is None or agent_state.request_id != result.request_id:
                continue
            turn = sampled_turn(result, agent_state)
            self._record(slot, agent_state, turn)
            spoken.append((slot, agent_state))
        self._act(spoken)

    def _act(self, spoken: Ready) -> None:
        """Let the environments read what was sampled."""
        if not spoken:
            return
        batch = self._module_to_env(
            rl_module=self._module,
            batch={},
            episodes=[agent_state.episode for _, agent_state in spoken],
            explore=self._explore,
            shared_data={},
        )
        for (slot, agent_state), text in zip(
            spoken, batch[Columns.ACTIONS], strict=True
        ):
            self._hear(slot, agent_state, text)

    def _record(self, slot: Slot, agent_state: AgentState, turn: Turn) -> None:
        self._monitor.turn_finished()
        turn.env_t = slot.play.env_t
        agent_state.turn = turn
        agent_state.data.record(turn)

    def _hear(self, slot: Slot, agent_state: AgentState, action: Any) -> None:
        """Pass a turn's action on; the environment goes on when all have acted."""
        agent_state.action = action
        slot.num_silent -= 1
        if not slot.num_silent:
            self._ask_env(slot, "step", slot.play.action())

    # Endings -------------------------------------------------------------------------

    def _finish(self, slot: Slot) -> None:
        unread = slot.play.unread()
        if unread:
            self._render(unread)  # what the critic would have seen next
            for agent_state in unread:
                action_source = self._action_sources[agent_state.module_id]
                if (
                    agent_state.data.prompt
                    and prompt_length(agent_state) > action_source.max_context_tokens
                ):
                    agent_state.data.prompt = None  # the critic bootstraps before it
        self._close_episode(slot)

    def _close_episode(self, slot: Slot) -> None:
        play = slot.play
        play.close(
            self._limits.stop_policies.__getitem__, time.perf_counter() - slot.started
        )
        if play.data.stop_policy is StopPolicy.DROP:
            self._retry(slot, f"stop reason {play.data.stop_reason.value}")
            return
        self._done[self._order[slot.index]] = play.episode
        self._on_event("on_episode_end", play.episode)
        self._free(slot)

    def _fail(
        self,
        slot: Slot,
        reason: StopReason,
        why: str,
        error: BaseException | None = None,
    ) -> None:
        """Give an episode up because the environment failed or a limit passed."""
        if isinstance(error, EnvContractError):
            raise error  # a bug of the environment, not an accident
        self._replace_env(slot)  # the old one may even hang
        slot.play.data.stop_reason = reason
        policy = self._limits.stop_policies[reason]
        if policy is StopPolicy.DROP or not slot.play.has_turns:
            self._retry(slot, why)
        else:
            slot.play.cut()
            self._close_episode(slot)

    def _retry(self, slot: Slot, why: str) -> None:
        index, task = self._order[slot.index], slot.task
        reason = slot.play.data.stop_reason.value
        logger.warning(
            "Episode of seed %s dropped (%s, attempt %s): %s",
            task.seed,
            reason,
            slot.attempt + 1,
            why,
        )
        attempt = slot.attempt + 1
        self._free(slot)
        if attempt <= self._limits.max_retries:
            self._todo.append((index, task, attempt))
            return
        self.failures.append((task, reason))
        allowed = self._max_failed_fraction * self.num_tasks
        if len(self.failures) > allowed:
            raise EnvContractError(
                f"{len(self.failures)} of {self.num_tasks} episodes failed even after "
                f"{self._limits.max_retries} retries, more than max_failed_fraction="
                f"{self._max_failed_fraction} allows. Last reason: {reason}: "
                f"{why}"
            )

    def _free(self, slot: Slot) -> None:
        for agent_state in slot.play.agent_states:
            session = (slot.index, slot.generation, agent_state.index)
            if self._by_session.pop(session, None) is not None:
                self._action_sources[agent_state.module_id].engine.close(session)
        slot.generation += 1
        slot.waiting_for = slot.play = None

    def _abort_requests(self, slot: Slot) -> None:
        for agent_state in slot.play.agent_states:
            if agent_state.request_id is not None:
                self._action_sources[agent_state.module_id].engine.abort(
                    agent_state.request_id
                )
                agent_state.request_id = None

    def _give_up(self) -> None:
        """Forget all running episodes after an error; the slots can be used again."""
        for slot in self.slots:
            if slot.waiting_for in ("reset", "step"):
                self._replace_env(slot)
            if slot.waiting_for is not None:
                self._free(slot)

    def _replace_env(self, slot: Slot) -> None:
        """Take a new environment: the state of the old one is unknown."""
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
