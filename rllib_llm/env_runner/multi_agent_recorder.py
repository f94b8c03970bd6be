"""Recorder of episodes with several agents, as RLlib's MultiAgentEpisode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.places import MultiAgentPlace, path_before
from rllib_llm.data.reward_log import rewards_of_turns
from rllib_llm.data.types import FinishReason, StopPolicy, StopReason, Task
from rllib_llm.env_runner.episode_limits import RolloutLimits, stop_reason
from rllib_llm.env_runner.multi_agent_history import History, repeat
from rllib_llm.env_runner.recorder import (
    AgentState,
    check_reward,
    checked_success,
    recorded,
)
from rllib_llm.envs.multi_agent_adapter import MultiAgentStep
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.pictures.contract import stored

_FINISHED = (StopReason.TERMINATED, StopReason.PARSE_ERROR)


class MultiAgentRecorder:
    """Records an episode of a PettingZoo environment, one conversation per agent.

    RLlib's episode drops rewards of agents without a pending action, and mixes up
    endings where some agents terminate and others are truncated. Therefore all rewards
    go to a reward log first (``custom_data["rewards"]``: environment step, agent,
    reward) and all agents end when the episode is over. The reward log then determines
    the reward of each turn: a reward belongs to the agent's last turn before it, or to
    its first turn if it came before that.

    Args:
        task: Task of the episode.
        agents: All agents that the environment declares, in its order.
        module_for: Returns the policy of an agent in an episode.
        module_ids: Names of all policies.
        encoders: Encoders of numeric observations for policies that are RLModules
            without a language model, by ModuleID; other policies read text.
        is_forked: Whether other episodes may begin at its places, which are kept.
    """

    def __init__(
        self,
        task: Task,
        agents: list[str],
        module_for: Callable[[str, Any], str],
        module_ids: tuple[str, ...],
        encoders: Mapping[str, Callable[[Any, str], Any]] | None = None,
        is_forked: bool = False,
    ) -> None:
        self.task = task
        self._agents, self._module_ids = agents, module_ids
        self._encoders = encoders or {}
        self.episode = MultiAgentEpisode(agent_to_module_mapping_fn=module_for)
        self.data = episode_data(self.episode)
        self.data.task = recorded(task)
        self._reward_log: list[tuple[int, str, float]] = []
        self.episode.custom_data[columns.REWARD_LOG] = self._reward_log
        self._agent_states: dict[str, AgentState] = {}
        self._acting: list[AgentState] = []
        self.env_t = 0
        self._ended: dict[str, bool] = {}  # agent to whether it was truncated
        self._final_observations: dict[str, Any] = {}  # of the agents in _ended
        self._final_infos: dict[str, Any] = {}
        self._observed_at_end: set[str] = set()
        self._history = History() if is_forked else None

    @property
    def agent_states(self) -> list[AgentState]:
        """States of the agents seen so far, in declared order."""
        return sorted(self._agent_states.values(), key=lambda s: s.index)

    @property
    def acting(self) -> list[AgentState]:
        """States of the agents that must act, or have just acted."""
        return self._acting

    @property
    def has_turns(self) -> bool:
        """True if the episode holds at least one turn to train on."""
        return self.env_t > 0  # a turn without the environment's reply is not recorded

    def begin(self, reply: MultiAgentStep) -> list[AgentState]:
        """Record the result of ``env.reset``; return the agents that must act."""
        if not reply.observations:
            raise EnvContractError(
                f"reset(seed={self.task.seed}) returned no active agents; at least "
                "one agent needs an observation."
            )
        if self._history is not None:
            self._history.add_reply(reply)
        self._record_step(reply)
        texts = {a: o for a, o in reply.observations.items() if isinstance(o, str)}
        self.data.first_texts = texts
        self.episode.add_env_reset(
            observations=self._encoded(reply.observations), infos=self._infos(reply)
        )
        self._acting = [self._agent_state(agent) for agent in reply.observations]
        return self._acting

    def place(self, turn: int, *, consecutive: int = 0) -> MultiAgentPlace:
        """Return the place before a step of the environment.

        Args:
            turn: Number of the step, at most that of the step that comes next.
            consecutive: Number of places in a row that were forked, this one included.
        """
        assert self._history is not None, "Nothing is forked."
        data = {s.agent_id: s.data for s in self._agent_states.values()}
        path = path_before(self.data, turn)
        return self._history.place(turn, data, path, consecutive)

    def resume(self, place: MultiAgentPlace) -> list[AgentState]:
        """Record the steps before a place; return the agents that must act."""
        acting = self.begin(place.replies[0])
        for moves, reply in zip(place.moves, place.replies[1:], strict=True):
            for agent_state in acting:
                repeat(moves[agent_state.agent_id], agent_state)
            acting = self._add_step(reply, by_limit=False)
        for agent, context in place.contexts.items():
            data = self._agent_states[agent].data
            data.messages = list(context.messages)
            data.system, data.tools = context.system, context.tools
            data.sampled = data.sampled_logps = None
            data.inherited_tokens = data.num_sampled
        self.data.inherited_tokens = self.num_sampled
        return acting

    def action(self) -> dict[str, Any]:
        """Return the argument of ``env.step``: each acting agent's action."""
        return {
            agent_state.agent_id: agent_state.action for agent_state in self._acting
        }

    def advance(self, reply: MultiAgentStep, limits: RolloutLimits) -> list[AgentState]:
        """Record the result of ``env.step``; return the agents that must act."""
        ended = {**self._ended, **_ends(reply)}
        cut_off = any(s.data.last_finish is FinishReason.LENGTH for s in self._acting)
        by_limit, self.data.stop_reason = stop_reason(
            limits,
            self.task,
            turns=self.env_t + 1,  # this step is not recorded yet
            num_sampled=self.num_sampled,
            last_finish=FinishReason.LENGTH if cut_off else None,
            terminated=reply.is_over and not any(ended.values()),
            truncated=reply.is_over and any(ended.values()),
            given=reply.stop_reason,
        )
        return self._add_step(reply, by_limit=by_limit)

    def _add_step(self, reply: MultiAgentStep, *, by_limit: bool) -> list[AgentState]:
        """Add a step to RLlib's episode; return the agents that must act."""
        acted = self._acting
        self.env_t += 1
        for agent_state in acted:
            agent_state.mark_turn(reply.infos.get(agent_state.agent_id, {}))
        if self._history is not None:
            self._history.add_moves(acted)
            self._history.add_reply(reply)
        self._record_step(reply)
        is_over = reply.is_over or by_limit
        observations = self._encoded(reply.observations)
        infos = self._infos(reply)
        if is_over:
            # Final observations of ended agents are held back until here, because all
            # agents end together in RLlib's record.
            observations |= self._final_observations
            infos |= self._final_infos
            self._observed_at_end = set(observations)
        self.episode.add_env_step(
            observations=observations,
            actions={
                s.agent_id: s.action if s.recorded is None else s.recorded
                for s in acted
            },
            rewards=dict.fromkeys(self.action(), 0.0),  # _end sets them from the log
            infos=infos,
            terminateds={"__all__": is_over},
            extra_model_outputs={
                s.agent_id: {columns.TURN: s.turn, **s.outputs} for s in acted
            },
        )
        if is_over:
            self._end(default_truncated=by_limit)
            return []
        self._acting = [self._agent_state(agent) for agent in reply.observations]
        return self._acting

    @property
    def num_sampled(self) -> int:
        """Number of tokens sampled by all agents."""
        return sum(s.data.num_sampled for s in self._agent_states.values())

    def truncate(self) -> None:
        """Truncate the episode at its current state."""
        # Actions without the environment's reply are not recorded, as with one agent.
        self.episode.add_env_step(
            observations={}, actions={}, rewards={}, terminateds={"__all__": True}
        )
        self._end(default_truncated=True)

    def needs_final_prompt(self) -> list[AgentState]:
        """Return the agents whose last observation the critic bootstraps from."""
        return [
            agent_state
            for agent, agent_state in self._agent_states.items()
            if agent in self._observed_at_end and agent_state.data.num_turns
            if agent_state.episode is not None and agent_state.episode.is_truncated
        ]

    def close(self, policy: Callable[[Any], StopPolicy], seconds: float) -> None:
        """Write stop reason and stop policy of the episode and of each agent."""
        data = self.data
        data.stop_policy, data.seconds = policy(data.stop_reason), seconds
        data.num_sampled = self.num_sampled
        for agent_state in self._agent_states.values():
            agent_data = agent_state.data
            # Every part carries the outcome: the Learner sees agents one by one.
            agent_data.path = data.path
            agent_data.task, agent_data.stop_reason = data.task, data.stop_reason
            agent_data.stop_policy = data.stop_policy
            agent_data.success = data.success
            # An agent may be truncated in an episode that terminates; its return then
            # needs a bootstrap value although the episode's does not.
            was_truncated = data.stop_reason in _FINISHED and self._ended.get(
                agent_state.agent_id
            )
            if was_truncated and policy(StopReason.MAX_TURNS) is StopPolicy.BOOTSTRAP:
                agent_data.stop_reason = StopReason.MAX_TURNS
                agent_data.stop_policy = StopPolicy.BOOTSTRAP

    def _record_step(self, reply: MultiAgentStep) -> None:
        """Record rewards, ends, success and metrics of an environment step."""
        for agent, reward in reply.rewards:
            if agent not in self._agents:
                raise EnvContractError(
                    f"The environment rewards {agent!r}, which it does not declare; "
                    f"its possible_agents are {', '.join(self._agents)}. Add the agent "
                    "to possible_agents, or reward another one."
                )
            check_reward(reward, self._agent_state(agent), self.task)
            # The log holds rewards that change something; zeros are the default.
            if reward:
                self._reward_log.append((self.env_t, agent, float(reward)))
        self._ended |= _ends(reply)
        self._final_observations |= self._encoded(reply.final_observations)
        self._final_infos |= self._stored(reply.infos, reply.final_observations)
        if reply.success is not None:
            self.data.success = checked_success(reply.success, self.task)
        self.data.error = reply.error
        if reply.metrics:
            self.data.metrics = dict(reply.metrics)

    def _encoded(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Return the observations as the agents' policies read them.

        Language models and scripts read text, other RLModules encoded numbers.
        """
        encoded = {}
        for agent, observation in observations.items():
            module_id = self._agent_state(agent).module_id
            if module_id in self._encoders:
                encoded[agent] = self._encoders[module_id](observation, agent)
                continue
            if not isinstance(observation, str):
                raise EnvContractError(
                    f"{agent!r} observes {observation!r}, but its policy {module_id!r} "
                    "reads text. Map the agent to an RLModule, or let it observe text."
                )
            encoded[agent] = observation
        return encoded

    def _infos(self, reply: MultiAgentStep) -> dict[str, Any]:
        return self._stored(reply.infos, reply.observations)

    def _stored(
        self, infos: Mapping[str, Any], agents: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return infos of agents, their pictures moved into each agent's own store."""
        return {
            agent: stored(self._agent_state(agent).data.pictures, infos.get(agent, {}))
            for agent in agents
        }

    def _agent_state(self, agent: str) -> AgentState:
        """Return the agent's state, created at its first observation or reward."""
        agent_state = self._agent_states.get(agent)
        if agent_state is None:
            if agent not in self._agents:
                raise EnvContractError(
                    f"{agent!r} must act, but the environment's possible_agents are "
                    f"{', '.join(self._agents)}. Add the agent to possible_agents."
                )
            module_id = self.episode.module_for(agent)
            if module_id not in self._module_ids:
                raise ConfigError(
                    f"policy_mapping_fn maps {agent!r} to {module_id!r}; policies are "
                    f"{', '.join(self._module_ids)}. Map the agent to one of these, or "
                    f"add {module_id!r} to multi_agent(policies=...)."
                )
            agent_state = AgentState(agent, module_id, self._agents.index(agent))
            agent_state.data.agent_index = agent_state.index
            source = self.task.prompt_text
            if source is not None and (not source.agents or agent in source.agents):
                agent_state.data.text_source = source
            self._agent_states[agent] = agent_state
        # RLlib creates the agent's part of the episode at its first observation.
        if agent_state.episode is None and agent in self.episode.agent_episodes:
            agent_state.episode = self.episode.agent_episodes[agent]
            agent_state.episode.custom_data[columns.EPISODE_DATA] = agent_state.data
        return agent_state

    def _end(self, *, default_truncated: bool) -> None:
        """Set every agent's flags, and its turns' rewards from the reward log.

        Args:
            default_truncated: Flag of the agents that the environment did not end.
        """
        for agent, part in self.episode.agent_episodes.items():
            truncated = self._ended.get(agent, default_truncated)
            part.is_terminated, part.is_truncated = not truncated, truncated
            turns = part.get_extra_model_outputs(columns.TURN) if len(part) else []
            if len(turns):
                rewards = [(t, r) for t, a, r in self._reward_log if a == agent]
                # At the end, since a reward may come after the agent's last turn.
                part.set_rewards(new_data=rewards_of_turns(turns, rewards))
        flags = [part.is_truncated for part in self.episode.agent_episodes.values()]
        self.episode.is_truncated = any(flags)
        self.episode.is_terminated = not any(flags)


def _ends(reply: MultiAgentStep) -> dict[str, bool]:
    """Return the agents that have ended in a step, and whether they were truncated."""
    return {
        **dict.fromkeys(reply.terminated, False),
        **dict.fromkeys(reply.truncated, True),
    }
