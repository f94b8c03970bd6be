"""Conversation: one episode from observations to actions, step by step."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID
from ray.rllib.core.columns import Columns

from rllib_llm.data.types import FinishReason, Message, StopReason, Task, Turn
from rllib_llm.env_runner import build
from rllib_llm.env_runner.recorder import AgentState, SingleAgentRecorder
from rllib_llm.env_runner.scripted_policies import scripted_turn
from rllib_llm.env_runner.turns import (
    prompt_length,
    request_turn,
    sampled_turn,
    turn_seed,
)
from rllib_llm.envs.multi_agent_adapter import MultiAgentStep
from rllib_llm.errors import ConfigError, EpisodeOverError

if TYPE_CHECKING:
    from rllib_llm.engines.base import GenerationEngine
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.env_runner.slots import ActionSource

_Session = tuple[str, int, int, int]

_numbers = itertools.count()


class Conversation:
    """Computes the policies' actions in one episode; the caller steps the environment.

    Everything between an observation and the action is as in the training run:
    connectors, chat template, history, tools, engine, sampling parameters, limits, and
    the seeds of the turns. A task with its own seed therefore gives the same episode
    as :func:`rllib_llm.evaluation.outcomes.play_tasks`.

    :meth:`rllib_llm.inference.policy.LLMPolicy.conversation` creates conversations.

    Args:
        runner: The LLMEnvRunner that holds the policies.
        task: Task of the episode; seeds the turns.
        greedy: Decode greedily, or sample as in training.
        assignment: Policies of agents in place of the training run's mapping.
        system: System message in place of the config's and the environment's.
        engines: Engine of each policy in place of the runner's.
        lock: Held while connectors run, if conversations run in several threads.
    """

    def __init__(
        self,
        runner: LLMEnvRunner,
        task: Task,
        *,
        greedy: bool = False,
        assignment: build.PolicyAssignment | None = None,
        system: str | None = None,
        engines: Mapping[str, Any] | None = None,
        lock: contextlib.AbstractContextManager[Any] | None = None,
    ):
        config = runner.config
        self._runner, self._explore, self._system = runner, not greedy, system
        self._lock = lock or contextlib.nullcontext()
        self._recorder = build.recorder_factory(config, assignment)(task)
        self._limits = build.limits(config)
        engines = runner.engines if engines is None else engines
        self._action_sources = build.action_sources(
            config, engines, runner.actors, runner.action_scorers, assignment
        )
        for module_id in engines:
            policy_config = config.get_config_for_module(module_id)
            sampling = policy_config.sampling_params(explore=self._explore)
            self._action_sources[module_id].sampling = sampling
        self._number = next(_numbers)
        # Number of ids in each open session of the engines, and its engine.
        self._in_engine: dict[_Session, int] = {}
        self._engines: dict[_Session, GenerationEngine] = {}
        self._begun = self._over = False

    # Public methods ------------------------------------------------------------------

    def reply(
        self,
        observation: object,
        info: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
    ) -> Any:
        """Return the agent's action for an observation.

        Args:
            observation: The observation of ``env.reset`` or ``env.step``.
            info: Its info (tools and their results, admissible actions).
            agent: The observing agent, with several agents.

        Returns:
            The text for the environment, without thinking; for an agent with numeric
            spaces its action.

        Raises:
            EpisodeOverError: If a limit of the training run has ended the episode.
        """
        agent = self._agent(agent)
        return self.replies({agent: observation}, {agent: info or {}})[agent]

    def replies(
        self,
        observations: Mapping[str, Any],
        infos: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Return the actions of all agents that act in this step of the environment.

        Args:
            observations: Their observations, by AgentID.
            infos: The environment's infos, by AgentID.

        Raises:
            EpisodeOverError: If a limit of the training run has ended the episode.
        """
        agent_states = self._observe(observations, infos or {})
        to_sample = []
        for agent_state in agent_states:
            action_source = self._action_sources[agent_state.module_id]
            if action_source.actor is not None:
                seed = self._seed(agent_state)
                acted = action_source.actor.act(
                    [agent_state], [seed], explore=self._explore
                )
                ((turn, agent_state.action),) = acted
                self._record(agent_state, turn)
            elif action_source.script is not None:
                turn = scripted_turn(
                    action_source.script, agent_state, self._seed(agent_state)
                )
                self._record(agent_state, turn)
                agent_state.action = turn.text
            else:
                self._require_room(agent_state, action_source)
                to_sample.append(agent_state)
        self._sample(to_sample)
        self._act(to_sample)
        return {
            agent_state.agent_id: agent_state.action for agent_state in agent_states
        }

    def append_turn(
        self,
        observation: object,
        reply: str,
        info: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
    ) -> None:
        """Append a turn with a given reply instead of sampling one.

        The reply is encoded from its text: if a policy once sampled it, its tokens may
        have been different.

        Args:
            observation: The agent's observation.
            reply: The agent's reply to it.
            info: As in :meth:`reply`.
            agent: As in :meth:`reply`.

        Raises:
            ConfigError: If the agent's policy is not a language model.
        """
        agent = self._agent(agent)
        (agent_state,) = self._observe({agent: observation}, {agent: info or {}})
        renderer = self._runner.config.chat_renderers()[agent_state.module_id]
        if renderer is None:
            raise ConfigError(
                f"append_turn() needs an agent with a language model; {agent!r} has "
                f"the policy {agent_state.module_id!r}. Call reply() for this agent."
            )
        prompt, ids = agent_state.data.due_prompt, renderer.encode_reply(reply)
        turn = Turn(
            prompt_ids=np.asarray(prompt.ids, np.int32),
            images=prompt.images,
            extends=prompt.extends,
            action_ids=np.asarray(ids, np.int32),
            action_logps=np.zeros(len(ids), np.float32),
            finish=FinishReason.STOP,
            module_id=agent_state.module_id,
            conversation=agent_state.data.conversation,
        )
        if not prompt.extends:  # the engine's session is no prefix of the history
            self._in_engine[self._session(agent_state)] = 0
        self._record(agent_state, turn)
        self._act([agent_state])

    @property
    def stop_reason(self) -> StopReason | None:
        """Stop reason of the limit that ended the episode; None while it runs."""
        return self._recorder.data.stop_reason if self._over else None

    @property
    def num_tokens(self) -> tuple[int, int]:
        """Tokens of all agents: of their prompts, and sampled ones."""
        sampled = self._recorder.num_sampled
        every = sum(len(state.data.ids) for state in self._recorder.agent_states)
        return every - sampled, sampled

    @property
    def messages(self) -> list[Message]:
        """Messages of the only agent as its policy reads them, with its thinking."""
        return self.messages_of(self._agent(None))

    def messages_of(self, agent: str) -> list[Message]:
        """Return the messages of one agent; empty before its first observation."""
        messages = (
            s.data.messages for s in self._recorder.agent_states if s.agent_id == agent
        )
        return next(messages, [])

    def policy_of(self, agent: str) -> str | None:
        """Return the ModuleID of an agent's policy; None before its observation."""
        policies = (
            s.module_id for s in self._recorder.agent_states if s.agent_id == agent
        )
        return next(policies, None)

    def close(self) -> None:
        """Close the conversation's sessions at the engines."""
        for session, engine in self._engines.items():
            engine.close(session)
        self._engines.clear()
        self._in_engine.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Steps ---------------------------------------------------------------------------

    def _agent(self, given: str | None) -> str:
        if isinstance(self._recorder, SingleAgentRecorder):
            if given not in (None, DEFAULT_AGENT_ID):
                raise ConfigError(
                    f"agent={given!r} does not exist: the environment has one agent. "
                    "Leave the argument out."
                )
            return DEFAULT_AGENT_ID
        if given is None:
            raise ConfigError(
                "The environment has several agents, so the observing agent must be "
                "named: call reply(observation, agent=...) or "
                "replies({agent: observation})."
            )
        return given

    def _observe(
        self, observations: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> Sequence[AgentState]:
        """Record an environment step; return the agents that must act, with prompts."""
        self._refuse_if_over()
        recorder = self._recorder
        if isinstance(recorder, SingleAgentRecorder):
            agent = self._agent(next(iter(observations), None))
            step: Any = (observations[agent], dict(infos.get(agent) or {}))
            if self._begun:  # policies do not read rewards, so 0 is good enough
                step = (step[0], 0.0, False, False, step[1])
        else:
            info_dicts = {a: dict(info) for a, info in infos.items()}
            step = MultiAgentStep(observations=dict(observations), infos=info_dicts)
        if self._begun:
            agent_states = recorder.advance(step, self._limits)
        else:
            agent_states, self._begun = recorder.begin(step), True
        self._over = bool(recorder.episode.is_done)
        self._refuse_if_over()
        for agent_state in agent_states:
            agent_state.data.system = self._system
        self._render(
            [s for s in agent_states if self._action_sources[s.module_id].actor is None]
        )
        return agent_states

    def _refuse_if_over(self) -> None:
        if self._over:
            raise EpisodeOverError(
                f"The episode has ended ({self._recorder.data.stop_reason.value}): the "
                "training run's limits (rollouts.max_turns, max_tokens_per_episode, "
                "generation.max_context_tokens) apply here as well. Start a new "
                "conversation."
            )

    def _render(self, agent_states: Sequence[AgentState]) -> None:
        if not agent_states:
            return
        with self._lock:
            self._runner._env_to_module(
                rl_module=self._runner.module,
                batch={},
                episodes=[agent_state.episode for agent_state in agent_states],
                explore=self._explore,
                shared_data={},
            )

    def _require_room(
        self, agent_state: AgentState, action_source: ActionSource
    ) -> None:
        if (
            prompt_length(agent_state) + action_source.least_tokens(agent_state)
            > action_source.max_context_tokens
        ):
            self._recorder.data.stop_reason = StopReason.CONTEXT_OVERFLOW
            self._over = True
            self._refuse_if_over()

    def _sample(self, agent_states: Sequence[AgentState]) -> None:
        """Sample the agents' turns with language models, in shared batches."""
        to_score: dict[str, list[AgentState]] = {}
        engines: dict[int, Any] = {}
        for agent_state in agent_states:
            action_source = self._action_sources[agent_state.module_id]
            if action_source.action_scorer is not None:
                to_score.setdefault(agent_state.module_id, []).append(agent_state)
            else:
                self._submit(agent_state, action_source)
                engines[id(action_source.engine)] = action_source.engine
        for module_id, group in to_score.items():
            action_scorer, seeds = (
                self._action_sources[module_id].action_scorer,
                map(self._seed, group),
            )
            turns = action_scorer.choose(group, list(seeds), explore=self._explore)
            for agent_state, turn in zip(group, turns, strict=True):
                self._record(agent_state, turn)
        waiting = {
            self._session(s): s for s in agent_states if s.request_id is not None
        }
        for engine in engines.values():
            while engine.num_unfinished:
                for result in engine.step():
                    agent_state = waiting[result.session_id]
                    self._record(agent_state, sampled_turn(result, agent_state))
                    self._in_engine[result.session_id] = len(agent_state.data.ids)

    def _submit(self, agent_state: AgentState, action_source: ActionSource) -> None:
        session = self._session(agent_state)
        if session not in self._engines:
            action_source.engine.open(session, **action_source.open_settings)
            self._engines[session] = action_source.engine
            # append_turn() may have set it: then the engine has none of the ids.
            self._in_engine.setdefault(session, 0)
        request_turn(
            action_source,
            agent_state,
            session,
            num_sampled=self._recorder.num_sampled,
            seed=self._seed(agent_state),
            unseen=len(agent_state.data.ids) - self._in_engine[session],
        )

    def _act(self, agent_states: Sequence[AgentState]) -> None:
        """Decode the sampled turns into actions."""
        if not agent_states:
            return
        with self._lock:
            batch = self._runner._module_to_env(
                rl_module=self._runner.module,
                batch={},
                episodes=[agent_state.episode for agent_state in agent_states],
                explore=self._explore,
                shared_data={},
            )
        for agent_state, text in zip(agent_states, batch[Columns.ACTIONS], strict=True):
            agent_state.action = text

    def _record(self, agent_state: AgentState, turn: Turn) -> None:
        turn.env_t = self._recorder.env_t
        agent_state.turn = turn
        agent_state.data.record(turn)

    def _seed(self, agent_state: AgentState) -> int:
        return turn_seed(self._recorder.task, 0, agent_state)

    def _session(self, agent_state: AgentState) -> _Session:
        conversation = agent_state.data.conversation
        return ("conversation", self._number, agent_state.index, conversation)
