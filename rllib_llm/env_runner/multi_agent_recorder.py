"""Several agents in one episode; the record is RLlib's MultiAgentEpisode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import FinishReason, StopPolicy, StopReason, Task
from rllib_llm.env_runner.limits import RolloutLimits, stop_reason
from rllib_llm.env_runner.recorder import AgentState, check_reward, checked_success
from rllib_llm.envs.multi_agent_adapter import MultiAgentStep
from rllib_llm.errors import ConfigError, EnvContractError

_FINISHED = (StopReason.TERMINATED, StopReason.PARSE_ERROR)


class MultiAgentRecorder:
    """Agents of a PettingZoo environment, each with its own conversation.

    RLlib's episode drops rewards of agents that hold no pending action, and mixes up
    endings where some agents terminate and others are truncated. So all rewards go to
    a ledger first (``custom_data["rewards"]``: environment step, agent, reward), every
    agent's end is told when the episode is over, and then the ledger decides what each
    turn earned: a reward belongs to the agent's last turn before it, one that came
    before its first turn to the first.

    Args:
        task: What is played.
        agents: All agents the environment declares, in its order.
        module_for: The policy of an agent in an episode.
        module_ids: All policies there are.
        encoders: What classic RLModules read of an agent's observation, by ModuleID;
            other policies read text.
    """

    def __init__(
        self,
        task: Task,
        agents: list[str],
        module_for: Callable[[str, Any], str],
        module_ids: tuple[str, ...],
        encoders: Mapping[str, Callable[[Any, str], Any]] | None = None,
    ) -> None:
        self.task = task
        self._agents, self._module_ids = agents, module_ids
        self._encoders = encoders or {}
        self.episode = MultiAgentEpisode(agent_to_module_mapping_fn=module_for)
        self.data = episode_data(self.episode)
        self.data.task = task
        self._reward_log: list[tuple[int, str, float]] = []
        self.episode.custom_data[columns.REWARD_LOG] = self._reward_log
        self._agent_states: dict[str, AgentState] = {}
        self._acting: list[AgentState] = []
        self.env_t = 0
        self._ended: dict[str, bool] = {}  # agent to whether it was truncated
        self._last_words: dict[str, Any] = {}  # final observations of such agents
        self._unread: set[str] = set()

    @property
    def agent_states(self) -> list[AgentState]:
        """All seats taken so far, in declared order."""
        return sorted(self._agent_states.values(), key=lambda s: s.index)

    @property
    def has_turns(self) -> bool:
        """Whether there is anything to learn from."""
        return self.env_t > 0  # a turn that was never answered is not in the record

    def begin(self, reply: MultiAgentStep) -> list[AgentState]:
        """Record what ``env.reset`` answered; return the seats that must act."""
        if not reply.observations:
            raise EnvContractError(
                f"After reset() with seed {self.task.seed} nobody is there to act. "
                "An episode needs at least one agent and its observation."
            )
        self._take_progress_lines(reply)
        texts = {a: o for a, o in reply.observations.items() if isinstance(o, str)}
        self.data.first_texts = texts
        self.episode.add_env_reset(
            observations=self._as_read(reply.observations), infos=self._infos(reply)
        )
        self._acting = [self._agent_state(agent) for agent in reply.observations]
        return self._acting

    def action(self) -> dict[str, Any]:
        """Return what ``env.step`` gets."""
        return {
            agent_state.agent_id: agent_state.action for agent_state in self._acting
        }

    def advance(self, reply: MultiAgentStep, limits: RolloutLimits) -> list[AgentState]:
        """Record what ``env.step`` answered; return the seats that must act."""
        acted = self._acting
        self.env_t += 1
        for agent_state in acted:
            info = reply.infos.get(agent_state.agent_id, {})
            agent_state.turn.invalid = bool(info.get("invalid_action"))
        self._take_progress_lines(reply)
        data = self.data
        cut_off = any(s.data.last_finish is FinishReason.LENGTH for s in acted)
        by_limit, data.stop_reason = stop_reason(
            limits,
            self.task,
            turns=self.env_t,
            num_sampled=self.num_sampled,
            last_finish=FinishReason.LENGTH if cut_off else None,
            terminated=reply.is_over and not any(self._ended.values()),
            truncated=reply.is_over and any(self._ended.values()),
            given=reply.stop_reason,
        )
        is_over = reply.is_over or by_limit
        observations = self._as_read(reply.observations)
        if is_over:
            observations |= self._last_words
            self._unread = set(observations)
        self.episode.add_env_step(
            observations=observations,
            actions={
                s.agent_id: s.action if s.recorded is None else s.recorded
                for s in acted
            },
            rewards=dict.fromkeys(self.action(), 0.0),
            infos=self._infos(reply),
            terminateds={"__all__": is_over},
            extra_model_outputs={
                s.agent_id: {columns.TURN: s.turn, **s.outputs} for s in acted
            },
        )
        if is_over:
            self._end(is_cut=by_limit)
            return []
        self._acting = [self._agent_state(agent) for agent in reply.observations]
        return self._acting

    @property
    def num_sampled(self) -> int:
        """Tokens sampled by all agents."""
        return sum(s.data.num_sampled for s in self._agent_states.values())

    def cut(self) -> None:
        """End the episode where it stands."""
        # Agents whose action was never answered lose it, as a single agent would.
        self.episode.add_env_step(
            observations={}, actions={}, rewards={}, terminateds={"__all__": True}
        )
        self._end(is_cut=True)

    def unread(self) -> list[AgentState]:
        """Return the seats whose last observation the critic shall still see."""
        return [
            agent_state
            for agent, agent_state in self._agent_states.items()
            if agent in self._unread and agent_state.data.num_turns
            if agent_state.episode.is_truncated
        ]

    def close(self, policy: Callable[[Any], StopPolicy], seconds: float) -> None:
        """Write the verdict, for the episode and for each agent."""
        data = self.data
        data.stop_policy, data.seconds = policy(data.stop_reason), seconds
        data.num_sampled = self.num_sampled
        for agent_state in self._agent_states.values():
            own = agent_state.data
            own.task, own.stop_reason = data.task, data.stop_reason
            own.stop_policy, own.success = data.stop_policy, data.success
            cut_early = data.stop_reason in _FINISHED and self._ended.get(
                agent_state.agent_id
            )
            if cut_early and policy(StopReason.MAX_TURNS) is StopPolicy.BOOTSTRAP:
                own.stop_reason = StopReason.MAX_TURNS
                own.stop_policy = StopPolicy.BOOTSTRAP

    def _take_progress_lines(self, reply: MultiAgentStep) -> None:
        for agent, reward in reply.rewards:
            if agent not in self._agents:
                raise EnvContractError(
                    f"The environment rewards {agent!r}, which it does not declare; "
                    f"its possible_agents are {', '.join(self._agents)}."
                )
            check_reward(reward, self._agent_state(agent), self.task)
            if reward:
                self._reward_log.append((self.env_t, agent, float(reward)))
        self._ended |= dict.fromkeys(reply.terminated, False)
        self._ended |= dict.fromkeys(reply.truncated, True)
        self._last_words |= self._as_read(reply.final_observations)
        if reply.success is not None:
            self.data.success = checked_success(reply.success, self.task)
        if reply.metrics:
            self.data.metrics = dict(reply.metrics)

    def _as_read(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the agents' policies read: text, or encoded numbers."""
        read = {}
        for agent, observation in observations.items():
            module_id = self._agent_state(agent).module_id
            if module_id in self._encoders:
                read[agent] = self._encoders[module_id](observation, agent)
                continue
            if not isinstance(observation, str):
                raise EnvContractError(
                    f"{agent!r} observes {observation!r}, but its policy {module_id!r} "
                    "reads text. Map it to an RLModule, or let it observe text."
                )
            read[agent] = observation
        return read

    def _infos(self, reply: MultiAgentStep) -> dict[str, Any]:
        return {a: reply.infos.get(a, {}) for a in reply.observations}

    def _agent_state(self, agent: str) -> AgentState:
        """Return the agent's seat; it sits down when it is first heard of."""
        agent_state = self._agent_states.get(agent)
        if agent_state is None:
            if agent not in self._agents:
                raise EnvContractError(
                    f"{agent!r} must act, but the environment's possible_agents are "
                    f"{', '.join(self._agents)}."
                )
            module_id = self.episode.module_for(agent)
            if module_id not in self._module_ids:
                raise ConfigError(
                    f"policy_mapping_fn maps {agent!r} to {module_id!r}; policies are "
                    f"{', '.join(self._module_ids)}. Map it to one of these, or add "
                    "that one to multi_agent(policies=...)."
                )
            agent_state = AgentState(agent, module_id, self._agents.index(agent))
            agent_state.data.agent_index = agent_state.index
            self._agent_states[agent] = agent_state
        if agent_state.episode is None and agent in self.episode.agent_episodes:
            agent_state.episode = self.episode.agent_episodes[agent]
            agent_state.episode.custom_data[columns.EPISODE_DATA] = agent_state.data
        return agent_state

    def _end(self, *, is_cut: bool) -> None:
        """Set every agent's flags, and its turns' rewards from the ledger."""
        for agent, part in self.episode.agent_episodes.items():
            truncated = self._ended.get(agent, is_cut)
            part.is_terminated, part.is_truncated = not truncated, truncated
            turns = part.get_extra_model_outputs(columns.TURN) if len(part) else []
            if len(turns):
                paid = [(t, r) for t, a, r in self._reward_log if a == agent]
                part.set_rewards(new_data=rewards_of_turns(turns, paid))
        flags = [part.is_truncated for part in self.episode.agent_episodes.values()]
        self.episode.is_truncated = any(flags)
        self.episode.is_terminated = not any(flags)


def rewards_of_turns(turns: Any, paid: list[tuple[int, float]]) -> list[float]:
    """Return what each turn earned.

    Args:
        turns: An agent's Turn records in time order, at least one.
        paid: Pairs of environment step and reward: what is paid with the answer to
            step ``t`` (1 is the first, 0 the reset) belongs to the last turn taken
            in a step before ``t``.
    """
    earned = [0.0] * len(turns)
    for env_t, reward in paid:
        before = sum(turn.env_t < env_t for turn in turns)
        earned[max(0, before - 1)] += reward
    return earned
