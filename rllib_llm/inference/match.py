"""A game between people, scripts and policies, with moves that can be taken back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rllib_llm.data.types import StopReason, Task
from rllib_llm.errors import (
    ConfigError,
    EnvContractError,
    EpisodeOverError,
    did_you_mean,
)
from rllib_llm.inference.game import Game
from rllib_llm.inference.policy import LLMPolicy

PERSON, POLICY, EXPERT, RANDOM = "person", "policy", "expert", "random"
_WITHOUT_RUN = (PERSON, EXPERT, RANDOM)


@dataclasses.dataclass(frozen=True)
class Move:
    """What one agent did in a step.

    Attributes:
        agent: Who.
        player: Who sits there: ``"person"``, ``"expert"``, ``"random"`` or a ModuleID.
        observation: What it was told.
        action: What it said or did.
    """

    agent: str
    player: str
    observation: Any
    action: Any


class Match:
    """One episode with a player on every seat.

    Policies and scripts answer the same when they are asked the same again, so a move
    is taken back by playing everything before it once more.

    Args:
        make_env: Builds the environment.
        task: What is played.
        seats: Who plays, by AgentID: ``"person"``, ``"expert"``, ``"random"``,
            ``"policy"`` (the one of training) or a ModuleID. See :func:`assign_agents`.
        ask: Called as ``ask(game, agent)`` for a person's action.
        policy: The run's policies, where one has a seat.
        greedy: Policies take the most likely tokens, or sample as in training.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        task: Task,
        players: Mapping[str, str],
        *,
        ask: Callable[[Game, str], Any],
        policy: LLMPolicy | None = None,
        greedy: bool = False,
    ):
        self._env, self._task, self._ask = make_env(), task, ask
        self.players, self._policy, self._greedy = dict(players), policy, greedy
        self._talk: Any = None
        self.moves: list[list[Move]] = []
        self._begin()

    @property
    def is_over(self) -> bool:
        """Whether nobody can act any more."""
        return self.game.is_over or self.stop_reason is not None

    def step(self) -> list[Move]:
        """Let everybody act who must; return what they did.

        A limit of the training run may end the episode before anybody acts
        (``stop_reason``); then nothing is returned.
        """
        game, actions = self.game, {}
        for agent in game.observations:  # who is asked does not see others' answers
            if self.players[agent] == PERSON:
                actions[agent] = self._ask(game, agent)
            elif self.players[agent] in _WITHOUT_RUN:
                actions[agent] = self._scripted(agent)
        try:
            actions |= self._policies_actions()
        except EpisodeOverError:
            self.stop_reason = self._talk.stop_reason
            return []
        moves = [
            Move(agent, self.player_of(agent), told, actions[agent])
            for agent, told in game.observations.items()
        ]
        game.step(actions)
        self.moves.append(moves)
        return moves

    def undo(self) -> bool:
        """Take back the last step in which a person acted, and all after it.

        Returns:
            Whether there was one.

        Raises:
            EnvContractError: If the environment does not repeat itself.
        """
        kept = len(self.moves)
        while kept and all(move.player != PERSON for move in self.moves[kept - 1]):
            kept -= 1
        if not kept:
            return False
        again, self.moves = self.moves[: kept - 1], []
        self._begin()
        for moves in again:
            self._repeat(moves)
        return True

    def player_of(self, agent: str) -> str:
        """Return who sits there; of policies the ModuleID, once it has spoken."""
        player = self.players[agent]
        if player == POLICY and self._talk is not None:
            return self._talk.policy_of(agent) or POLICY
        return player

    def close(self) -> None:
        """Close the environment."""
        self._end_talk()
        self._env.close()

    def _begin(self) -> None:
        self._end_talk()
        self.stop_reason: StopReason | None = None
        self.game = Game(self._env, self._task)

    def _end_talk(self) -> None:
        if self._talk is not None:
            self._talk.close()
            self._talk = None

    def _repeat(self, moves: list[Move]) -> None:
        told = {move.agent: move.observation for move in moves}
        if repr(told) != repr(self.game.observations):
            raise EnvContractError(
                "The move cannot be taken back: the environment said something else "
                "when it was played again with the same seed and actions. Run "
                "`rllib-llm check` on it."
            )
        self._policies_actions()
        self.game.step({move.agent: move.action for move in moves})
        self.moves.append(moves)

    def _policies_actions(self) -> dict[str, Any]:
        game = self.game
        told = {
            agent: observation
            for agent, observation in game.observations.items()
            if self.players[agent] not in _WITHOUT_RUN
        }
        if not told:
            return {}
        if self._talk is None:
            own = {a: s for a, s in self.players.items() if s not in _WITHOUT_RUN}
            named = {a: s for a, s in own.items() if s != POLICY}
            self._talk = self._policy.conversation(
                self._task,
                greedy=self._greedy,
                policies=self._usual(own) | named if named else None,
            )
        return self._talk.replies(told, {a: game.infos.get(a, {}) for a in told})

    def _usual(self, agents: Mapping[str, str]) -> dict[str, str]:
        """Return who acts for these agents in training."""
        from rllib_llm.policy_mapping import mapped_policies

        if self._task.assignment:  # self-play: each task says who plays whom
            return {agent: self._task.assignment[agent] for agent in agents}
        return mapped_policies(self._policy.config, list(agents))

    def _scripted(self, agent: str) -> Any:
        kind = self.players[agent]
        try:
            return self.game.move(kind, agent)
        except NotImplementedError as error:
            raise ConfigError(
                f"{agent!r} cannot be played by {kind!r}: {error} Give the seat to "
                "somebody else."
            ) from error


def assign_agents(
    agents: list[str], given: Mapping[str, str], policy: LLMPolicy | None
) -> dict[str, str]:
    """Return who plays each agent.

    Args:
        agents: All agents of the environment.
        given: What was asked for, by AgentID, its stem (``solver`` of ``solver_0``) or
            ``"*"``.
        policy: The run's policies, if there is a run: they take all other seats.
            Without one a person takes the first of them, and chance the rest.

    Raises:
        ConfigError: If an agent or player is unknown.
    """
    players = [*_WITHOUT_RUN]
    if policy is not None:
        players += [POLICY, *policy.policies]
    for name, player in given.items():
        known = {*agents, *(_stem(a) for a in agents), "*"} - {""}
        if name not in known:
            raise ConfigError(
                f"There is no agent {name!r} to seat. {did_you_mean(name, known)}"
            )
        if player not in players:
            needs_run = policy is None and player == POLICY
            hint = "Name a RUN." if needs_run else did_you_mean(player, players)
            raise ConfigError(f"Nobody called {player!r} can play {name!r}. {hint}")
    players, rest = {}, POLICY if policy is not None else PERSON
    for agent in agents:
        names = (agent, _stem(agent), "*")
        players[agent] = next((given[n] for n in names if n in given), rest)
        rest = POLICY if policy is not None else RANDOM
    return players


def _stem(agent: str) -> str:
    return agent.rpartition("_")[0]
