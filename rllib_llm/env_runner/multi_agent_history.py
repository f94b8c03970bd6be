"""History of an episode with several agents, whose places other episodes begin at."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rllib_llm.data.places import Context, Move, MultiAgentPlace, Path, messages_before
from rllib_llm.errors import ConfigError
from rllib_llm.pictures.contract import IMAGES

if TYPE_CHECKING:
    from rllib_llm.data.episode_data import EpisodeData
    from rllib_llm.env_runner.recorder import AgentState
    from rllib_llm.envs.multi_agent_adapter import MultiAgentStep


class History:
    """The environment's replies and the agents' moves, in order."""

    def __init__(self) -> None:
        self._replies: list[MultiAgentStep] = []
        self._moves: list[dict[str, Move]] = []

    def add_reply(self, reply: MultiAgentStep) -> None:
        """Add the result of a reset or step."""
        # Copies: environments may draw into one array again and again.
        infos = {
            agent: copy.deepcopy(info) if info.get(IMAGES) else info
            for agent, info in reply.infos.items()
        }
        self._replies.append(dataclasses.replace(reply, infos=infos))

    def add_moves(self, acted: Sequence[AgentState]) -> None:
        """Add what the agents of a step did."""
        self._moves.append({state.agent_id: _move(state) for state in acted})

    def place(
        self, turn: int, data: Mapping[str, EpisodeData], path: Path, consecutive: int
    ) -> MultiAgentPlace:
        """Return the place before a step of the environment.

        Args:
            turn: Number of the step.
            data: Record of each agent, by AgentID.
            path: Branches that sampled the steps before.
            consecutive: Number of places in a row that were forked, this one included.
        """
        acted = Counter(agent for moves in self._moves[:turn] for agent in moves)
        contexts = {
            agent: Context(
                messages_before(data[agent], turns),
                data[agent].system,
                data[agent].tools,
            )
            for agent, turns in acted.items()
        }
        return MultiAgentPlace(
            path=path,
            replies=tuple(self._replies[: turn + 1]),
            moves=tuple(self._moves[:turn]),
            contexts=contexts,
            consecutive=consecutive,
        )


def repeat(move: Move, agent_state: AgentState) -> None:
    """Let an agent do what it did in the episode forked.

    Raises:
        ConfigError: If it has another policy now.
    """
    if move.turn.module_id != agent_state.module_id:
        raise ConfigError(
            f"policy_mapping_fn maps {agent_state.agent_id!r} to "
            f"{agent_state.module_id!r} in a fork, and to {move.turn.module_id!r} in "
            "the episode in which it begins. Map agents by what the rollouts of a "
            "group have in common, or leave fork out."
        )
    agent_state.turn, agent_state.action = move.turn, move.action
    agent_state.recorded, agent_state.outputs = move.recorded, move.outputs
    agent_state.data.record(move.turn)


def _move(agent_state: AgentState) -> Move:
    assert agent_state.turn is not None, "The agent has not acted."
    return Move(
        turn=agent_state.turn,
        action=agent_state.action,
        recorded=agent_state.recorded,
        outputs=agent_state.outputs,
    )
