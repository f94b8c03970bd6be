"""One episode as the policies see it: observations in, texts out, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

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

_numbers = itertools.count()


class Conversation:
    """The policies' side of one episode; whoever holds it plays the environment.

    Everything between an observation and the text is that of the training run:
    connectors, chat template, history, tools, engine, sampling parameters, limits, and
    the seeds of the turns. So a task that is played with its own seed goes as it would
    in :func:`rllib_llm.evaluation.outcomes.play_tasks`.

    Made by :meth:`rllib_llm.inference.policy.LLMPolicy.conversation`.

    Args:
        runner: The LLMEnvRunner that holds the policies.
        task: What is played; seeds the turns.
        greedy: Take the most likely tokens, or sample as in training.
        assignment: Policies that sit on other seats than in training.
        system: System message in place of the settings' and the environment's.
    """

    def __init__(
        self,
        runner: Any,
        task: Task,
        *,
        greedy: bool = False,
        assignment: build.PolicyAssignment | None = None,
        system: str | None = None,
    ):
        config = runner.config
        self._runner, self._explore, self._system = runner, not greedy, system
        self._play = build.recorder_factory(config, assignment)(task)
        self._limits = build.limits(config)
        self._action_sources = build.action_sources(
            config, runner.engines, runner.actors, runner.action_scorers, assignment
        )
        for module_id in runner.engines:
            own = config.get_config_for_module(module_id)
            sampling = own.sampling_params(explore=self._explore)
            self._action_sources[module_id].sampling = sampling
        self._number = next(_numbers)
        self._seen: dict[int, int] = {}  # ids that the engine knows, by seat
        self._begun = self._over = False

    # What a user does ----------------------------------------------------------------

    def reply(
        self,
        observation: Any,
        info: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
    ) -> Any:
        """Return the answer to what the environment said.

        Args:
            observation: What ``env.reset`` or ``env.step`` said.
            info: What it returned beside it (tools and their results, admissible
                actions).
            agent: Who is told, where there are several agents.

        Returns:
            The text as the environment reads it, without thinking. Of an agent of
            numbers its action.

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
        """Return the answers of all agents that act in this step of the environment.

        Args:
            observations: What each of them is told, by AgentID.
            infos: What the environment returned beside it, by AgentID.

        Raises:
            EpisodeOverError: If a limit of the training run has ended the episode.
        """
        agent_states = self._listen(observations, infos or {})
        asked = []
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
                asked.append(agent_state)
        self._sample(asked)
        self._act(asked)
        return {
            agent_state.agent_id: agent_state.action for agent_state in agent_states
        }

    def recite(
        self,
        observation: Any,
        reply: str,
        info: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
    ) -> None:
        """Take note of a turn that someone else made in the policy's place.

        Its text is encoded anew: tokens that a policy sampled for it may differ.

        Args:
            observation: What the agent was told.
            reply: What it is supposed to have said.
            info: As in :meth:`reply`.
            agent: As in :meth:`reply`.

        Raises:
            ConfigError: If the agent is not played by a language model.
        """
        agent = self._agent(agent)
        (agent_state,) = self._listen({agent: observation}, {agent: info or {}})
        renderer = self._runner.config.chat_renderers()[agent_state.module_id]
        if renderer is None:
            raise ConfigError(
                f"{agent!r} is played by {agent_state.module_id!r}, which is no "
                "language "
                "model: what it says cannot be recited."
            )
        prompt, ids = agent_state.data.prompt, renderer.encode_reply(reply)
        turn = Turn(
            prompt_ids=np.asarray(prompt.ids, np.int32),
            extends=prompt.extends,
            action_ids=np.asarray(ids, np.int32),
            action_logps=np.zeros(len(ids), np.float32),
            finish=FinishReason.STOP,
            module_id=agent_state.module_id,
        )
        if not prompt.extends:
            self._seen[agent_state.index] = 0
        self._record(agent_state, turn)
        self._act([agent_state])

    @property
    def stop_reason(self) -> StopReason | None:
        """Which limit has ended the episode; None while it can go on."""
        return self._play.data.stop_reason if self._over else None

    @property
    def messages(self) -> list[Message]:
        """The conversation as the policy sees it, thinking included (one agent)."""
        return self.messages_of(self._agent(None))

    def messages_of(self, agent: str) -> list[Message]:
        """The same of one of several agents; empty before it was told anything."""
        found = (
            s.data.messages for s in self._play.agent_states if s.agent_id == agent
        )
        return next(found, [])

    def policy_of(self, agent: str) -> str | None:
        """Return the ModuleID that acts for an agent; None before it was told any."""
        found = (s.module_id for s in self._play.agent_states if s.agent_id == agent)
        return next(found, None)

    def close(self) -> None:
        """Let the engines forget it."""
        for agent_state in self._play.agent_states:
            if self._seen.pop(agent_state.index, None) is not None:
                self._action_sources[agent_state.module_id].engine.close(
                    self._session(agent_state)
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Steps ---------------------------------------------------------------------------

    def _agent(self, given: str | None) -> str:
        if isinstance(self._play, SingleAgentRecorder):
            if given not in (None, DEFAULT_AGENT_ID):
                raise ConfigError(
                    f"There is no agent {given!r}: the environment has a single one. "
                    "Leave agent out."
                )
            return DEFAULT_AGENT_ID
        if given is None:
            raise ConfigError(
                "The environment has several agents: say which is told, with "
                "reply(observation, agent=...) or replies({agent: observation})."
            )
        return given

    def _listen(
        self, observations: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> Sequence[AgentState]:
        """Take note of a step of the environment; return who must act, prompts due."""
        self._refuse_if_over()
        play = self._play
        if isinstance(play, SingleAgentRecorder):
            agent = self._agent(next(iter(observations), None))
            told: Any = (observations[agent], dict(infos.get(agent) or {}))
            if self._begun:  # what was earned is not the policies' business
                told = (told[0], 0.0, False, False, told[1])
        else:
            given = {a: dict(info) for a, info in infos.items()}
            told = MultiAgentStep(observations=dict(observations), infos=given)
        if self._begun:
            agent_states = play.advance(told, self._limits)
        else:
            agent_states, self._begun = play.begin(told), True
        self._over = bool(play.episode.is_done)
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
                f"The episode has ended ({self._play.data.stop_reason.value}): the "
                "training run's limits (rollouts.max_turns, max_tokens_per_episode, "
                "generation.max_context_tokens) hold here, too. Begin a new "
                "conversation."
            )

    def _render(self, agent_states: Sequence[AgentState]) -> None:
        if agent_states:
            self._runner._env_to_module(
                rl_module=self._runner.module,
                batch={},
                episodes=[agent_state.episode for agent_state in agent_states],
                explore=self._explore,
                shared_data={},
            )

    def _require_room(self, agent_state: AgentState, action_source: Any) -> None:
        if (
            prompt_length(agent_state) + action_source.least_tokens(agent_state)
            > action_source.max_context_tokens
        ):
            self._play.data.stop_reason = StopReason.CONTEXT_OVERFLOW
            self._over = True
            self._refuse_if_over()

    def _sample(self, agent_states: Sequence[AgentState]) -> None:
        """Let language models make the seats' turns, all at once."""
        choosing: dict[str, list[AgentState]] = {}
        engines: dict[int, Any] = {}
        for agent_state in agent_states:
            action_source = self._action_sources[agent_state.module_id]
            if action_source.action_scorer is not None:
                choosing.setdefault(agent_state.module_id, []).append(agent_state)
            else:
                self._submit(agent_state, action_source)
                engines[id(action_source.engine)] = action_source.engine
        for module_id, group in choosing.items():
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
                    self._seen[agent_state.index] = len(agent_state.data.ids)

    def _submit(self, agent_state: AgentState, action_source: Any) -> None:
        if agent_state.index not in self._seen:
            action_source.engine.open(
                self._session(agent_state), **action_source.open_settings
            )
            self._seen[agent_state.index] = 0
        request_turn(
            action_source,
            agent_state,
            self._session(agent_state),
            num_sampled=self._play.num_sampled,
            seed=self._seed(agent_state),
            unseen=len(agent_state.data.ids) - self._seen[agent_state.index],
        )

    def _act(self, agent_states: Sequence[AgentState]) -> None:
        """Make texts of what was sampled."""
        if not agent_states:
            return
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
        turn.env_t = self._play.env_t
        agent_state.turn = turn
        agent_state.data.record(turn)

    def _seed(self, agent_state: AgentState) -> int:
        return turn_seed(self._play.task, 0, agent_state)

    def _session(self, agent_state: AgentState) -> tuple[str, int, int]:
        return ("conversation", self._number, agent_state.index)
