"""A running episode: who must answer now, and how what happens is recorded.

A *play* hides from the sampling loop whether one agent or several are at work. RLlib's
episodes are the record; a :class:`AgentState` is an agent's place in one of them.
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
from rllib_llm.data.types import StopPolicy, Task, Turn
from rllib_llm.env_runner.limits import RolloutLimits, stop_reason
from rllib_llm.errors import EnvContractError


@dataclasses.dataclass(slots=True, eq=False)
class AgentState:
    """One agent's place in a running episode.

    Attributes:
        agent_id: The agent.
        module_id: The policy that acts for it.
        index: Its number in the environment's declared order.
        episode: Its part of the record; None until it has seen anything.
        data: Its conversation.
        turn: The turn sampled last.
        action: That turn's text (or numbers), as the environment reads it.
        recorded: That turn's action in RLlib's record, where it is another.
        outputs: What an RLModule put out with it, for RLlib's record.
        request_id: Its unfinished request at the engine.
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

    def seed_parts(self) -> tuple[int, ...]:
        """Return what tells the seeds of this seat's turns from those of others."""
        turns = (self.data.num_turns,)
        return (*turns, self.index) if self.index else turns


class SingleAgentRecorder:
    """One agent in a Gymnasium environment; the record is a SingleAgentEpisode.

    Args:
        task: What is played.
        spaces: The environment's observation and action space.
    """

    def __init__(self, task: Task, spaces: tuple[Any, Any]) -> None:
        self.task = task
        self.episode = SingleAgentEpisode(
            observation_space=spaces[0], action_space=spaces[1]
        )
        self.data = episode_data(self.episode)
        self.data.task = task
        self._agent_state = AgentState(
            DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, episode=self.episode, data=self.data
        )

    @property
    def agent_states(self) -> list[AgentState]:
        """All seats taken so far."""
        return [self._agent_state]

    @property
    def has_turns(self) -> bool:
        """Whether there is anything to learn from."""
        return len(self.episode) > 0

    @property
    def num_sampled(self) -> int:
        """Tokens sampled so far."""
        return self.data.num_sampled

    @property
    def env_t(self) -> int:
        """Environment steps so far."""
        return len(self.episode)

    def begin(self, reply: tuple[str, dict[str, Any]]) -> list[AgentState]:
        """Record what ``env.reset`` answered; return the seats that must act."""
        observation, info = reply
        self.data.first_texts = {DEFAULT_AGENT_ID: observation}
        self.episode.add_env_reset(observation=observation, infos=info)
        return [self._agent_state]

    def action(self) -> str:
        """Return what ``env.step`` gets."""
        return self._agent_state.action

    def advance(
        self,
        reply: tuple[str, float, bool, bool, dict[str, Any]],
        limits: RolloutLimits,
    ) -> list[AgentState]:
        """Record what ``env.step`` answered; return the seats that must act."""
        observation, reward, terminated, truncated, info = reply
        check_reward(reward, self._agent_state, self.task)
        data, agent_state = self.data, self._agent_state
        by_limit, data.stop_reason = stop_reason(
            limits,
            self.task,
            turns=len(self.episode) + 1,
            num_sampled=data.num_sampled,
            last_finish=data.last_finish,
            terminated=terminated,
            truncated=truncated,
            given=info.get("stop_reason"),
        )
        agent_state.turn.invalid = bool(info.get("invalid_action"))
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

    def cut(self) -> None:
        """End the episode where it stands."""
        self.episode.is_truncated = True

    def unread(self) -> list[AgentState]:
        """Return the seats whose last observation the critic shall still see."""
        return [self._agent_state] if self.episode.is_truncated else []

    def close(self, policy: Callable[[Any], StopPolicy], seconds: float) -> None:
        """Write the verdict."""
        self.data.stop_policy = policy(self.data.stop_reason)
        self.data.seconds = seconds


def checked_success(success: Any, task: Task) -> Any:
    """Return what an environment says of success if it is None, a truth or a share.

    Raises:
        EnvContractError: If it is anything else.
    """
    is_number = isinstance(success, bool | int | float | np.bool_ | np.number)
    if success is None or (is_number and 0 <= success <= 1):
        return success
    raise EnvContractError(
        f"The environment played seed {task.seed} and told success={success!r}; it "
        "must be True, False, None, or a number in [0, 1]."
    )


def check_reward(reward: Any, agent_state: AgentState, task: Task) -> None:
    """Refuse a reward that is not a finite number.

    Raises:
        EnvContractError: If it is not.
    """
    if not math.isfinite(reward):
        raise EnvContractError(
            f"The environment gave {agent_state.agent_id} the reward {reward!r} "
            "at turn "
            f"{agent_state.data.num_turns} of seed {task.seed}; rewards must be "
            "finite. Run "
            "`rllib-llm check` on it."
        )
