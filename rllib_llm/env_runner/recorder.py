"""Recorder of a running episode with one agent, and the state of an agent in it.

Recorders give the sampling loop one interface for one and for several agents. They
write RLlib's episodes; an :class:`AgentState` belongs to one agent of an episode.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, episode_data
from rllib_llm.data.places import Place, place_of
from rllib_llm.data.types import StopPolicy, Task, Turn
from rllib_llm.env_runner.episode_limits import RolloutLimits, stop_reason
from rllib_llm.errors import EnvContractError
from rllib_llm.pictures.contract import stored


@dataclasses.dataclass(slots=True, eq=False)
class AgentState:
    """State of one agent in a running episode.

    Attributes:
        agent_id: The agent.
        module_id: The policy that acts for it.
        index: Its number in the environment's declared order.
        episode: Its part of the RLlib episode; None before its first observation.
        data: Its conversation.
        turn: The turn sampled last.
        action: That turn's action as the environment receives it: text or numbers.
        recorded: That turn's action in RLlib's record if it differs from ``action``
            (before clipping or scaling), otherwise None.
        outputs: Extra model outputs of that turn, for RLlib's record.
        request_id: Its unfinished request at the engine.
        candidates: Replies at the current place that will not be played.
    """

    agent_id: str
    module_id: str
    index: int = 0
    episode: SingleAgentEpisode | None = None
    data: EpisodeData = dataclasses.field(default_factory=EpisodeData)
    turn: Turn | None = None
    action: Any = ""
    recorded: Any = None
    outputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    request_id: int | None = None
    candidates: list[Turn] = dataclasses.field(default_factory=list)

    def mark_turn(self, info: dict[str, Any]) -> None:
        """Note on the turn whether its action was invalid, as ``info`` says."""
        assert self.turn is not None, "The agent has not acted."
        self.turn.invalid = bool(info.get("invalid_action"))

    def seed_parts(self) -> tuple[int, ...]:
        """Return the parts of a turn's seed that identify the turn and the agent."""
        turns = (self.data.num_turns,)
        # Without the index for agent 0, so that one agent alone keeps its seeds.
        return (*turns, self.index) if self.index else turns


class SingleAgentRecorder:
    """Records an episode of a Gymnasium environment as a SingleAgentEpisode.

    Args:
        task: Task of the episode.
        spaces: The environment's observation and action space.
    """

    def __init__(self, task: Task, spaces: tuple[Any, Any]) -> None:
        self.task = task
        self.episode = SingleAgentEpisode(
            observation_space=spaces[0], action_space=spaces[1]
        )
        self.data = episode_data(self.episode)
        self.data.task, self.data.text_source = recorded(task), task.prompt_text
        self._agent_state = AgentState(
            DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, episode=self.episode, data=self.data
        )

    @property
    def agent_states(self) -> list[AgentState]:
        """State of the only agent."""
        return [self._agent_state]

    @property
    def acting(self) -> list[AgentState]:
        """States of the agents that must act, or have just acted."""
        return [self._agent_state]

    @property
    def has_turns(self) -> bool:
        """True if the episode holds at least one turn to train on."""
        return len(self.episode) > 0

    @property
    def num_sampled(self) -> int:
        """Number of tokens sampled so far."""
        return self.data.num_sampled

    @property
    def env_t(self) -> int:
        """Number of environment steps so far."""
        return len(self.episode)

    def begin(self, reply: tuple[str, dict[str, Any]]) -> list[AgentState]:
        """Record the result of ``env.reset``; return the agents that must act."""
        observation, info = reply[0], stored(self.data.pictures, reply[1])
        self.data.first_texts = {DEFAULT_AGENT_ID: observation}
        self.episode.add_env_reset(observation=observation, infos=info)
        return [self._agent_state]

    def resume(self, place: Place) -> list[AgentState]:
        """Record the turns before a place; return the agents that must act."""
        data, observations = self.data, place.observations
        data.first_texts = {DEFAULT_AGENT_ID: observations[0]}
        data.system, data.tools = place.system, place.tools
        data.messages, data.pictures = list(place.messages), dict(place.pictures)
        self.episode.add_env_reset(observation=observations[0], infos=place.infos[0])
        for number, turn in enumerate(place.turns):
            data.record(turn)
            self.episode.add_env_step(
                observation=observations[number + 1],
                action=place.actions[number],
                reward=place.rewards[number],
                infos=place.infos[number + 1],
                extra_model_outputs={columns.TURN: turn},
            )
        data.sampled = data.sampled_logps = None
        data.inherited_tokens = data.num_sampled
        return [self._agent_state]

    def place(self, turn: int, *, consecutive: int = 0) -> Place:
        """Return the place before a turn; see :func:`place_of`."""
        return place_of(self.episode, self.data, turn, consecutive=consecutive)

    def action(self) -> str:
        """Return the argument of ``env.step``."""
        return self._agent_state.action

    def advance(
        self,
        reply: tuple[str, float, bool, bool, dict[str, Any]],
        limits: RolloutLimits,
    ) -> list[AgentState]:
        """Record the result of ``env.step``; return the agents that must act."""
        observation, reward, terminated, truncated, info = reply
        info = stored(self.data.pictures, info)
        # Before anything is recorded: a NaN reward would reach all advantages of the
        # batch.
        check_reward(reward, self._agent_state, self.task)
        data, agent_state = self.data, self._agent_state
        by_limit, data.stop_reason = stop_reason(
            limits,
            self.task,
            turns=len(self.episode) + 1,  # this step is not recorded yet
            num_sampled=data.num_sampled,
            last_finish=data.last_finish,
            terminated=terminated,
            truncated=truncated,
            given=info.get("stop_reason"),
        )
        # The turn object is shared with RLlib's record, so the note reaches the
        # Learner.
        agent_state.mark_turn(info)
        data.success = checked_success(info.get("success"), self.task)
        data.metrics = dict(info.get("metrics") or {})
        self.episode.add_env_step(
            observation=observation,
            action=agent_state.action,
            reward=reward,
            infos=info,
            terminated=terminated,
            truncated=truncated or by_limit,
            extra_model_outputs={columns.TURN: agent_state.turn},
        )
        return [agent_state]

    def truncate(self) -> None:
        """Truncate the episode at its current state."""
        self.episode.is_truncated = True

    def needs_final_prompt(self) -> list[AgentState]:
        """Return the agents whose last observation the critic bootstraps from."""
        return [self._agent_state] if self.episode.is_truncated else []

    def close(self, policy: Callable[[Any], StopPolicy], seconds: float) -> None:
        """Write the stop policy and the duration into the episode's data."""
        self.data.stop_policy = policy(self.data.stop_reason)
        self.data.seconds = seconds


def recorded(task: Task) -> Task:
    """Return the task as the episode keeps it.

    It is without the place and the texts, which would stay in memory.
    """
    if task.place is None and task.prompt_text is None:
        return task
    return dataclasses.replace(task, place=None, prompt_text=None)


def checked_success(success: Any, task: Task) -> Any:
    """Check an environment's ``success`` and return it.

    Raises:
        EnvContractError: If it is not None, a bool or a number in [0, 1].
    """
    is_number = isinstance(success, bool | int | float | np.bool_ | np.number)
    if success is None or (is_number and 0 <= success <= 1):
        return success
    raise EnvContractError(
        f"The environment reported success={success!r} for seed {task.seed}; success "
        "must be True, False, None, or a number in [0, 1]. Correct "
        "info['success'] of its step()."
    )


def check_reward(reward: float, agent_state: AgentState, task: Task) -> None:
    """Check that a reward is a finite number.

    Raises:
        EnvContractError: If it is infinite or NaN.
    """
    if not math.isfinite(reward):
        raise EnvContractError(
            f"The environment gave {agent_state.agent_id} the reward {reward!r} at "
            f"turn {agent_state.data.num_turns} of seed {task.seed}; rewards must be "
            "finite. Run `rllib-llm check` on the environment."
        )
