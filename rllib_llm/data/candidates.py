"""Candidates: replies that were sampled at a turn of an episode and not played."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, episode_data
from rllib_llm.data.types import Candidate

if TYPE_CHECKING:
    from rllib_llm.data.types import Message, Turn


class CandidateEpisode:
    """An episode up to one of its places, with a reply there as its last turn.

    It has what components, scorers, assistants, saved files and the Learner's pipeline
    read of a SingleAgentEpisode. The environment has not received the reply: its reward
    is 0, the observation after it is empty, and the info after it is the last one of
    the played episode, since only scores that may look ahead read it. Earlier turns are
    context and not trained.

    Args:
        episode: The finished SingleAgentEpisode.
        turn: Number of the place's turn.
        reply: The reply.
        number: Its number at the place.

    Attributes:
        turn: Number of the turn that the reply is.
    """

    def __init__(self, episode: Any, turn: int, reply: Candidate, number: int) -> None:
        data, self.turn = episode_data(episode), turn
        turns = list(episode.get_extra_model_outputs(columns.TURN)[:turn])
        self._turns = [*turns, reply.turn]
        self._rewards = [*map(float, episode.get_rewards()[:turn]), 0.0]
        self._actions = [*map(str, episode.get_actions()[:turn]), reply.action]
        observations = [str(o) for o in episode.get_observations()]
        self._observations = [*observations[: turn + 1], ""]
        infos = list(episode.get_infos())
        self._infos = [*infos[: turn + 1], infos[-1]]
        self.id_ = f"{episode.id_}-{turn}-{number}"
        self.agent_id, self.module_id = episode.agent_id, episode.module_id
        self.is_truncated = False
        record = EpisodeData(
            task=data.task,
            agent_index=data.agent_index,
            system=data.system,
            messages=[*_messages(data, turn), _message(reply.text)],
            tools=data.tools,
            stop_reason=data.stop_reason,
            success=data.success,
            metrics=data.metrics,
            masked_turns=frozenset(range(turn)),
            path=data.path,
            pictures=data.pictures,
        )
        for each in self._turns:
            record.record(each)
        self.custom_data: dict[str, Any] = {columns.EPISODE_DATA: record}

    def __len__(self) -> int:
        """Return the number of turns."""
        return len(self._turns)

    def env_steps(self) -> int:
        """Return the number of turns."""
        return len(self)

    def get_observations(self) -> list[str]:
        """Return the texts observed, and an empty one after the reply. [H+1]"""
        return self._observations

    def get_infos(self, indices: int | None = None) -> Any:
        """Return the environment's infos, or one of them. [H+1]"""
        return self._infos if indices is None else self._infos[indices]

    def get_actions(self, indices: int | None = None) -> Any:
        """Return the replies, or one of them. [H]"""
        return self._actions if indices is None else self._actions[indices]

    def get_rewards(self) -> list[float]:
        """Return the rewards of the turns; 0 for the reply. [H]"""
        return self._rewards

    def get_return(self) -> float:
        """Return the sum of the rewards."""
        return float(sum(self._rewards))

    def get_extra_model_outputs(self, key: str) -> list[Turn]:
        """Return the token records of the turns. [H]"""
        assert key == columns.TURN
        return self._turns


def candidate_episodes(episode: Any, turn: int) -> list[CandidateEpisode]:
    """Return the replies at a turn: those that were not played, then the played one.

    Args:
        episode: A finished episode. Without candidates at the turn the played reply is
            the only one.
        turn: Number of the turn.
    """
    data = episode_data(episode)
    played = Candidate(
        episode.get_extra_model_outputs(columns.TURN)[turn],
        data.messages[_replies(data)[turn]]["content"],
        str(episode.get_actions(turn)),
    )
    return [
        CandidateEpisode(episode, turn, reply, number)
        for number, reply in enumerate([*data.candidates.get(turn, ()), played])
    ]


def best_candidates(episode: Any) -> list[CandidateEpisode]:
    """Return the reply with the highest score at each place that has scores.

    Of equal ones the last counts, the played reply before all others. Places whose
    replies all have one score are left out: nothing is to be learned there.
    """
    chosen = []
    for turn, scores in sorted(episode_data(episode).candidate_scores.items()):
        if max(scores) > min(scores):
            best = max(range(len(scores)), key=lambda i: (scores[i], i))
            chosen.append(candidate_episodes(episode, turn)[best])
    return chosen


def _replies(data: EpisodeData) -> list[int]:
    """Return the index of each turn's reply in the conversation. [H]"""
    replies = [i for i, m in enumerate(data.messages) if m["role"] == "assistant"]
    # The last ones: an environment's opening may contain replies, too.
    return replies[len(replies) - data.num_turns :]


def _messages(data: EpisodeData, turn: int) -> list[Message]:
    """Return the conversation up to the observation that the turn answers."""
    return [dict(message) for message in data.messages[: _replies(data)[turn]]]


def _message(text: str) -> Message:
    return {"role": "assistant", "content": text}
