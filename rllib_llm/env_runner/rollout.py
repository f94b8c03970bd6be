"""The sampling loop: slots of concurrent episodes around one engine."""

from __future__ import annotations

import logging
import math
import queue
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_llm import columns
from rllib_llm.connectors.episode_data import episode_data
from rllib_llm.engines.base import Generation, GenerationEngine, SamplingParams
from rllib_llm.env_runner.env_worker import EnvReply, EnvWorker
from rllib_llm.env_runner.slots import RolloutLimits, Slot, exceeds, stop_reason
from rllib_llm.env_runner.tasks import stable_seed
from rllib_llm.errors import EnvContractError
from rllib_llm.types import StopPolicy, StopReason, Task, Turn

logger = logging.getLogger("rllib_llm")

_POLL_S = 0.05  # how long to wait for an environment before looking at time limits


class Rollout:
    """Plays tasks to the end, all slots at once.

    Environment calls run in the slots' threads while the engine decodes; an episode
    never waits for another one. Each request's sampling seed comes from its task, so
    what is sampled does not depend on which episodes run beside it.

    Args:
        make_env: Builds one environment.
        engine: Samples turns.
        env_to_module: Renders observations (RLlib connector pipeline).
        module_to_env: Decodes actions (RLlib connector pipeline).
        num_slots: Concurrent episodes.
        limits: Bounds of an episode.
        sampling: Keyword arguments of SamplingParams except seed and length.
        module: The RLModule, handed to connectors.
        on_event: Called as ``on_event(name, episode)`` for RLlib's callbacks.
    """

    def __init__(
        self,
        *,
        make_env: Callable[[], Any],
        engine: GenerationEngine,
        env_to_module: Callable[..., Any],
        module_to_env: Callable[..., Any],
        num_slots: int,
        limits: RolloutLimits,
        sampling: dict[str, Any],
        module: Any,
        on_event: Callable[[str, SingleAgentEpisode], None],
    ):
        self._make_env = make_env
        self._engine = engine
        self._env_to_module = env_to_module
        self._module_to_env = module_to_env
        self._limits = limits
        self._sampling = sampling
        self._module = module
        self._on_event = on_event
        self._replies: queue.SimpleQueue[EnvReply] = queue.SimpleQueue()
        self._slots = [
            Slot(i, EnvWorker(make_env, self._replies)) for i in range(num_slots)
        ]
        self._by_session: dict[Any, Slot] = {}
        self._next_check = 0.0
        self.failures: list[str] = []

    def close(self) -> None:
        """Close all environments."""
        for slot in self._slots:
            slot.worker.close()

    def run(
        self, tasks: list[Task], *, explore: bool, spaces: tuple[Any, Any]
    ) -> list[SingleAgentEpisode]:
        """Play every task once and return the episodes in the order of ``tasks``.

        Tasks that keep failing are retried ``max_retries`` times, then left out and
        counted in ``self.failures``.

        Raises:
            EnvContractError: If more than ``max_failed_fraction`` of the tasks failed.
        """
        self.failures = []
        self._spaces = spaces
        self._explore = explore
        self._todo: deque[tuple[int, Task, int]] = deque(
            (i, task, 0) for i, task in enumerate(tasks)
        )
        self._order: dict[int, int] = {}
        self._done: dict[int, SingleAgentEpisode] = {}
        self._num_tasks = len(tasks)
        try:
            while self._todo or any(s.waiting_for for s in self._slots):
                self._fill_slots()
                self._prompt_ready(self._collect_replies())
                if self._engine.num_unfinished:
                    self._deliver(self._engine.step())
                self._check_time_limits()
        except BaseException:
            self._give_up()
            raise
        return [self._done[i] for i in sorted(self._done)]

    # Starting episodes ---------------------------------------------------------------

    def _fill_slots(self) -> None:
        for slot in self._slots:
            if not self._todo:
                return
            if slot.waiting_for is None:
                index, slot.task, slot.attempt = self._todo.popleft()
                self._order[slot.index] = index
                slot.episode = SingleAgentEpisode(
                    observation_space=self._spaces[0], action_space=self._spaces[1]
                )
                slot.data = episode_data(slot.episode)
                slot.data.task = slot.task
                slot.started = time.perf_counter()
                self._on_event("on_episode_created", slot.episode)
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

    def _collect_replies(self) -> list[Slot]:
        """Take what environments have answered; wait only if the engine is idle."""
        ready: list[Slot] = []
        block = not self._engine.num_unfinished and any(
            s.waiting_for in ("reset", "step") for s in self._slots
        )
        while True:
            try:
                reply = self._replies.get(block=block, timeout=_POLL_S)
            except queue.Empty:
                return ready
            block = False
            index, generation = reply.token
            slot = self._slots[index]
            if slot.generation == generation:
                self._on_reply(slot, reply, ready)

    def _on_reply(self, slot: Slot, reply: EnvReply, ready: list[Slot]) -> None:
        if reply.error is not None:
            self._fail(slot, StopReason.ENV_ERROR, repr(reply.error), reply.error)
        elif slot.waiting_for == "reset":
            observation, info = reply.value
            slot.episode.add_env_reset(observation=observation, infos=info)
            self._on_event("on_episode_start", slot.episode)
            ready.append(slot)
        else:
            self._record_step(slot, *reply.value)
            if slot.episode.is_done:
                self._finish(slot, ready)
            else:
                ready.append(slot)

    def _record_step(
        self,
        slot: Slot,
        observation: str,
        reward: float,
        terminated: bool,
        truncated: bool,
        info: dict[str, Any],
    ) -> None:
        if not math.isfinite(reward):
            raise EnvContractError(
                f"The environment gave the reward {reward!r} at turn "
                f"{len(slot.episode) + 1} of seed {slot.task.seed}; rewards must be "
                "finite. Run `rllib-llm check` on it."
            )
        data = slot.data
        ended_by_limit, data.stop_reason = stop_reason(
            slot, self._limits, terminated, truncated, info.get("stop_reason")
        )
        data.invalid_actions += bool(info.get("invalid_action"))
        data.success = info.get("success")
        data.metrics = dict(info.get("metrics") or {})
        slot.episode.add_env_step(
            observation=observation,
            action=slot.action,
            reward=reward,
            infos=info,
            terminated=terminated,
            truncated=truncated or ended_by_limit,
            extra_model_outputs={columns.TURN: slot.turn},
        )
        self._on_event("on_episode_step", slot.episode)

    # Prompts -------------------------------------------------------------------------

    def _prompt_ready(self, ready: list[Slot]) -> None:
        if not ready:
            return
        self._render(ready)
        for slot in ready:
            data = slot.data
            prompt, history = data.prompt, len(data.ids)
            length = len(prompt.ids) + (history if prompt.extends else 0)
            if length + 1 > self._limits.max_context_tokens:
                self._overflow(slot, length)
                continue
            self._submit(slot, length)

    def _render(self, slots: list[Slot]) -> None:
        self._env_to_module(
            rl_module=self._module,
            batch={},
            episodes=[s.episode for s in slots],
            explore=self._explore,
            shared_data={},
        )

    def _submit(self, slot: Slot, length: int) -> None:
        data = slot.data
        session = (slot.index, slot.generation)
        if not data.ids:
            self._engine.open(session)
            self._by_session[session] = slot
        budget = self._limits.turn_budget(length, data.num_sampled)
        seed = stable_seed(
            slot.task.seed, slot.task.rollout, slot.attempt, len(slot.episode)
        )
        slot.request_id = self._engine.submit(
            session,
            data.prompt.ids,
            SamplingParams(max_new_tokens=budget, seed=seed, **self._sampling),
            extends=data.prompt.extends,
        )
        slot.waiting_for, slot.since = "engine", time.perf_counter()

    def _overflow(self, slot: Slot, length: int) -> None:
        if len(slot.episode) == 0:
            raise EnvContractError(
                f"The first prompt of seed {slot.task.seed} has {length} tokens; "
                f"max_context_tokens={self._limits.max_context_tokens} leaves no room "
                "to answer. Raise max_context_tokens or shorten the prompt."
            )
        # The observation cannot be shown; the critic bootstraps before it.
        slot.data.prompt = None
        slot.data.stop_reason = StopReason.CONTEXT_OVERFLOW
        slot.episode.is_truncated = True
        self._close_episode(slot)

    # Engine results ------------------------------------------------------------------

    def _deliver(self, generations: list[Generation]) -> None:
        slots = []
        for result in generations:
            slot = self._by_session.get(result.session_id)
            if slot is None or slot.request_id != result.request_id:
                continue
            data = slot.data
            prompt = data.prompt
            slot.turn = Turn(
                prompt_ids=np.asarray(prompt.ids, np.int32),
                extends=prompt.extends,
                action_ids=result.token_ids,
                action_logps=result.logps,
                finish=result.finish,
                weights_seq_no=result.weights_version,
                seconds=result.seconds,
            )
            data.record(slot.turn)
            slot.request_id = None
            slots.append(slot)
        if not slots:
            return
        batch = self._module_to_env(
            rl_module=self._module,
            batch={},
            episodes=[s.episode for s in slots],
            explore=self._explore,
            shared_data={},
        )
        for slot, text in zip(slots, batch[Columns.ACTIONS], strict=True):
            slot.action = text
            self._ask_env(slot, "step", text)

    # Endings -------------------------------------------------------------------------

    def _finish(self, slot: Slot, ready: list[Slot]) -> None:
        if slot.episode.is_truncated:
            self._render([slot])  # what the critic would have seen next
        self._close_episode(slot)

    def _close_episode(self, slot: Slot) -> None:
        data = slot.data
        data.stop_policy = self._limits.stop_policies[data.stop_reason]
        data.seconds = time.perf_counter() - slot.started
        if data.stop_policy is StopPolicy.DROP:
            self._retry(slot, f"stop reason {data.stop_reason.value}")
            return
        self._done[self._order[slot.index]] = slot.episode
        self._on_event("on_episode_end", slot.episode)
        self._free(slot)

    def _fail(
        self,
        slot: Slot,
        reason: StopReason,
        why: str,
        error: Exception | None = None,
    ) -> None:
        """Give an episode up because the environment failed or a limit passed."""
        if isinstance(error, EnvContractError):
            raise error  # a bug of the environment, not an accident
        self._replace_env(slot)  # the old one may even hang
        slot.data.stop_reason = reason
        policy = self._limits.stop_policies[reason]
        if policy is StopPolicy.DROP or len(slot.episode) == 0:
            self._retry(slot, why)
        else:
            slot.episode.is_truncated = True
            self._close_episode(slot)

    def _retry(self, slot: Slot, why: str) -> None:
        index, task = self._order[slot.index], slot.task
        reason = slot.data.stop_reason.value
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
        self.failures.append(reason)
        allowed = self._limits.max_failed_fraction * self._num_tasks
        if len(self.failures) > allowed:
            raise EnvContractError(
                f"{len(self.failures)} of {self._num_tasks} episodes failed even after "
                f"{self._limits.max_retries} retries, more than max_failed_fraction="
                f"{self._limits.max_failed_fraction} allows. Last reason: {reason}: "
                f"{why}"
            )

    def _free(self, slot: Slot) -> None:
        session = (slot.index, slot.generation)
        if self._by_session.pop(session, None) is not None:
            self._engine.close(session)
        slot.generation += 1
        slot.waiting_for = slot.request_id = slot.turn = slot.episode = None

    def _give_up(self) -> None:
        """Forget all running episodes after an error; the slots can be used again."""
        for slot in self._slots:
            if slot.waiting_for in ("reset", "step"):
                self._replace_env(slot)
            if slot.waiting_for is not None:
                self._free(slot)

    def _replace_env(self, slot: Slot) -> None:
        """Take a new environment: the state of the old one is unknown."""
        slot.worker.close()
        slot.worker = EnvWorker(self._make_env, self._replies)

    def _check_time_limits(self) -> None:
        limits, now = self._limits, time.perf_counter()
        if now < self._next_check:
            return
        self._next_check = now + _POLL_S
        for slot in self._slots:
            if slot.waiting_for is None:
                continue
            waited, lasted = now - slot.since, now - slot.started
            if slot.waiting_for == "engine":
                late = exceeds(waited, limits.turn_timeout_s)
            else:
                late = exceeds(waited, limits.step_timeout_s)
            if late or exceeds(lasted, limits.episode_timeout_s):
                if slot.request_id is not None:
                    self._engine.abort(slot.request_id)
                    slot.request_id = None
                why = f"{slot.waiting_for} after {waited:.1f} s, episode {lasted:.1f} s"
                self._fail(slot, StopReason.TIMEOUT, why)
