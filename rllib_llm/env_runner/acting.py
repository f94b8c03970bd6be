"""Policy side of the sampling loop: from observations to actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.core.columns import Columns

from rllib_llm.data.model_calls import ModelReply
from rllib_llm.data.types import Candidate, Turn
from rllib_llm.engines.base import Generation
from rllib_llm.env_runner.non_llm_policies import act_together
from rllib_llm.env_runner.recorder import AgentState
from rllib_llm.env_runner.scripted_policies import Script, scripted_turn
from rllib_llm.env_runner.slots import ActionSource, Slot
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

    from rllib_llm.env_runner.monitor import RolloutMonitor
    from rllib_llm.env_runner.scored_actions import ActionScorer

_NO_AGENT: tuple[None, None] = (None, None)  # in a session that has ended

Ready = list[tuple[Slot, AgentState]]


class Acting:
    """Renders the prompts of agents, samples their turns and returns their actions.

    The agents of all episodes that share a policy share its batches. The sampling seed
    of each request comes from its task, so the sampled tokens do not depend on the
    other running episodes.

    Args:
        action_sources: The ActionSource of each policy, by ModuleID.
        env_to_module: Renders observations (RLlib connector pipeline).
        module_to_env: Decodes actions (RLlib connector pipeline).
        module: The RLModule that the connectors receive.
        monitor: Is told of each finished turn.
        on_actions: Called with a slot when all its pending agents have acted.
        on_overflow: Called with a slot whose context cannot hold the next turn.

    Attributes:
        explore: Sample (True) or decode greedily (False).
        engines: The engines, each once.
    """

    def __init__(
        self,
        action_sources: Mapping[str, ActionSource],
        *,
        env_to_module: Callable[..., Any],
        module_to_env: Callable[..., Any],
        module: RLModule | MultiRLModule,
        monitor: RolloutMonitor,
        on_actions: Callable[[Slot], None],
        on_overflow: Callable[[Slot], None],
    ):
        self._action_sources = action_sources
        self._actors = {
            m: v.actor for m, v in action_sources.items() if v.actor is not None
        }
        engines = [v.engine for v in action_sources.values() if v.engine is not None]
        # By identity: several policies may share an engine, which must step once a
        # round.
        self.engines = list({id(e): e for e in engines}.values())
        self._env_to_module = env_to_module
        self._module_to_env = module_to_env
        self._module = module
        self._monitor = monitor
        self._on_actions, self._on_overflow = on_actions, on_overflow
        self._by_session: dict[Any, tuple[Slot, AgentState]] = {}
        self.explore = True

    @property
    def num_unfinished_turns(self) -> int:
        """Number of turns that the engines are generating."""
        return sum(engine.num_unfinished for engine in self.engines)

    def start_engines(self) -> None:
        """Start engines that do not run yet; vLLM takes minutes."""
        for engine in self.engines:
            engine.start()

    def step_engines(self) -> None:
        """Run one step of every engine that has work, and deliver finished turns."""
        for engine in self.engines:
            if engine.num_unfinished:
                self._deliver(engine.step())

    # Prompts -------------------------------------------------------------------------

    def prompt(self, ready: Ready) -> None:
        """Render the last observations of the agents and ask for their turns."""
        if not ready:
            return
        self.render([agent_state for _, agent_state in ready])
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
            ready, self._actors, self._seed, explore=self.explore
        ):
            self._record(slot, agent_state, turn)
            self._set_action(slot, agent_state, action)

    def render(self, agent_states: Iterable[AgentState]) -> None:
        """Render the last observations of the agents as prompts."""
        episodes = [s.episode for s in agent_states if s.module_id not in self._actors]
        if not episodes:
            return
        self._env_to_module(
            rl_module=self._module,
            batch={},
            episodes=episodes,
            explore=self.explore,
            shared_data={},
        )

    def _submit(
        self, slot: Slot, agent_state: AgentState, action_source: ActionSource
    ) -> None:
        # The generation keeps sessions of consecutive episodes in a slot apart.
        conversation = agent_state.data.conversation
        session = (slot.index, slot.generation, agent_state.index, conversation)
        unseen = 0
        if session not in self._by_session:
            # A fork has a history that this session lacks.
            unseen = len(agent_state.data.ids)
            action_source.engine.open(session, **action_source.open_settings)
            self._by_session[session] = (slot, agent_state)
            slot.sessions[session] = action_source.engine
        num_sampled = slot.recorder.num_sampled
        request_turn(
            action_source,
            agent_state,
            session,
            num_sampled=num_sampled,
            seed=self._seed(slot, agent_state, action_source),
            unseen=unseen,
            replaces=bool(agent_state.candidates),
        )

    def _choose(self, action_scorer: ActionScorer, waiting: Ready) -> None:
        """Choose among the admissible actions, for all waiting agents at once."""
        # Another agent's context overflow may have ended an episode meanwhile.
        waiting = [
            (slot, agent_state) for slot, agent_state in waiting if slot.waiting_for
        ]
        seeds = [self._seed(slot, agent_state) for slot, agent_state in waiting]
        agent_states = [agent_state for _, agent_state in waiting]
        turns = action_scorer.choose(agent_states, seeds, explore=self.explore)
        for (slot, agent_state), turn in zip(waiting, turns, strict=True):
            self._record(slot, agent_state, turn)
        self._act(waiting)

    def _seed(
        self,
        slot: Slot,
        agent_state: AgentState,
        action_source: ActionSource | None = None,
    ) -> int:
        candidate = None
        if action_source is not None and self._wants_more(agent_state, action_source):
            candidate = len(agent_state.candidates)
        return turn_seed(slot.recorder.task, slot.attempt, agent_state, candidate)

    def _wants_more(self, agent_state: AgentState, action_source: ActionSource) -> bool:
        """Return whether the next reply at this place is not the one to play."""
        # Greedy replies are all the same.
        wanted = action_source.candidates - 1 if self.explore else 0
        return len(agent_state.candidates) < wanted

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
        self._on_overflow(slot)

    def render_last(self, agent_states: Iterable[AgentState]) -> None:
        """Render the prompts that the critic of truncated episodes bootstraps from."""
        self.render(agent_states)
        for agent_state in agent_states:
            action_source = self._action_sources[agent_state.module_id]
            if (
                agent_state.data.prompt
                and prompt_length(agent_state) > action_source.max_context_tokens
            ):
                # Too long for the critic: it bootstraps from the state before it.
                agent_state.data.prompt = None

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
            action_source = self._action_sources[agent_state.module_id]
            turn = sampled_turn(result, agent_state)
            if self._wants_more(agent_state, action_source):
                turn.env_t = slot.recorder.env_t
                agent_state.candidates.append(turn)
                # Each reply has the whole time limit of a turn.
                slot.since = time.perf_counter()
                self._submit(slot, agent_state, action_source)
                continue
            self._keep_candidates(agent_state)
            self._record(slot, agent_state, turn)
            sampled.append((slot, agent_state))
        self._act(sampled)

    @staticmethod
    def _keep_candidates(agent_state: AgentState) -> None:
        """Store the replies that are not played, before the played one."""
        data = agent_state.data
        if agent_state.candidates:
            data.candidates[data.num_turns] = list(
                map(Candidate, agent_state.candidates)
            )
            agent_state.candidates = []

    def _act(self, sampled: Ready) -> None:
        """Decode the sampled turns and pass them on as actions."""
        if not sampled:
            return
        batch = self._module_to_env(
            rl_module=self._module,
            batch={},
            episodes=[agent_state.episode for _, agent_state in sampled],
            explore=self.explore,
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
        """Store an agent's action, and report when all agents have acted."""
        agent_state.action = action
        slot.num_pending -= 1
        if not slot.num_pending:
            self._on_actions(slot)

    # Sessions ------------------------------------------------------------------------

    def close_sessions(self, slot: Slot) -> None:
        """Close the engines' sessions of the slot's episode."""
        for session, engine in slot.sessions.items():
            del self._by_session[session]
            engine.close(session)
        slot.sessions.clear()

    def abort_requests(self, slot: Slot) -> None:
        """Cancel the unfinished turns of the slot's episode."""
        for agent_state in slot.recorder.agent_states:
            if agent_state.request_id is not None:
                self._action_sources[agent_state.module_id].engine.abort(
                    agent_state.request_id
                )
                agent_state.request_id = None
