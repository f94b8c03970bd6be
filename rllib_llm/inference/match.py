"""Match: a game between people, scripted policies and trained policies, with undo."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rllib_llm.data.types import StopReason, Task
from rllib_llm.errors import (
    ConfigError,
    EnvContractError,
    EpisodeOverError,
    did_you_mean,
)
from rllib_llm.inference.game import Game
from rllib_llm.inference.policy import LLMPolicy

if TYPE_CHECKING:
    from rllib_llm.inference.conversation import Conversation

PERSON, POLICY, EXPERT, RANDOM = "person", "policy", "expert", "random"
_WITHOUT_RUN = (PERSON, EXPERT, RANDOM)


@dataclasses.dataclass(frozen=True)
class Move:
    """Action of one agent in a step.

    Attributes:
        agent: The agent.
        player: Its player: ``"person"``, ``"expert"``, ``"random"`` or a ModuleID.
        observation: Its observation.
        action: Its action.
    """

    agent: str
    player: str
    observation: Any
    action: Any


class Match:
    """Plays one episode with one player per agent.

    Policies and scripts repeat their actions for the same observations, so undo()
    replays the episode up to the step before.

    Args:
        make_env: Builds the environment.
        task: Task of the episode.
        players: Player of each agent, by AgentID: ``"person"``, ``"expert"``,
            ``"random"``, ``"policy"`` (the agent's policy in training) or a ModuleID.
            See :func:`assign_agents`.
        ask: Called as ``ask(game, agent)`` for a person's action.
        policy: The run's policies, if one of them is a player.
        greedy: Whether policies decode greedily instead of sampling as in training.
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
        self._conversation: Conversation | None = None
        self.moves: list[list[Move]] = []
        self.stop_reason: StopReason | None = None
        self.game = Game(self._env, self._task)

    @property
    def is_over(self) -> bool:
        """True if no agent can act any more."""
        return self.game.is_over or self.stop_reason is not None

    def step(self) -> list[Move]:
        """Play one step of the game and return its moves.

        If a limit of the training run ends the episode (``stop_reason``), no agent acts
        and the list is empty.
        """
        game, actions = self.game, {}
        for agent in game.observations:  # simultaneous: no agent sees others' actions
            if self.players[agent] == PERSON:
                actions[agent] = self._ask(game, agent)
            elif self.players[agent] in _WITHOUT_RUN:
                actions[agent] = self._scripted(agent)
        try:
            actions |= self._policies_actions()
        except EpisodeOverError:
            assert self._conversation is not None  # it raised the error
            self.stop_reason = self._conversation.stop_reason
            return []
        moves = [
            Move(agent, self.player_of(agent), observation, actions[agent])
            for agent, observation in game.observations.items()
        ]
        game.step(actions)
        self.moves.append(moves)
        return moves

    def undo(self) -> bool:
        """Undo the last step in which a person acted, and all later steps.

        Returns:
            False if no person has acted.

        Raises:
            EnvContractError: If the environment is not reproducible.
        """
        count = len(self.moves)
        while count and all(move.player != PERSON for move in self.moves[count - 1]):
            count -= 1
        if not count:
            return False
        kept, self.moves = self.moves[: count - 1], []
        # Environments cannot step back: reset and replay the kept steps.
        self._begin()
        for moves in kept:
            self._repeat(moves)
        return True

    def player_of(self, agent: str) -> str:
        """Return an agent's player; for ``"policy"`` its ModuleID once it has acted."""
        player = self.players[agent]
        if player == POLICY and self._conversation is not None:
            return self._conversation.policy_of(agent) or POLICY
        return player

    def close(self) -> None:
        """Close the environment."""
        self._close_conversation()
        self._env.close()

    def _begin(self) -> None:
        self._close_conversation()
        self.stop_reason = None
        self.game = Game(self._env, self._task)

    def _close_conversation(self) -> None:
        if self._conversation is not None:
            self._conversation.close()
            self._conversation = None

    def _repeat(self, moves: list[Move]) -> None:
        expected = {move.agent: move.observation for move in moves}
        if repr(expected) != repr(self.game.observations):
            raise EnvContractError(
                "The move cannot be undone: with the same seed and actions the "
                "environment returned different observations. Run `rllib-llm check` on "
                "the environment."
            )
        # Not for the actions, which are those of the moves, but for the conversation's
        # state: the policies must have seen these observations.
        self._policies_actions()
        self.game.step({move.agent: move.action for move in moves})
        self.moves.append(moves)

    def _policies_actions(self) -> dict[str, Any]:
        game = self.game
        observations = {
            agent: observation
            for agent, observation in game.observations.items()
            if self.players[agent] not in _WITHOUT_RUN
        }
        if not observations:
            return {}
        if self._conversation is None:
            of_run = {a: p for a, p in self.players.items() if p not in _WITHOUT_RUN}
            named = {a: p for a, p in of_run.items() if p != POLICY}
            self._conversation = self._run_policy.conversation(
                self._task,
                greedy=self._greedy,
                policies=self._training_policies(of_run) | named if named else None,
            )
        infos = {a: game.infos.get(a, {}) for a in observations}
        return self._conversation.replies(observations, infos)

    @property
    def _run_policy(self) -> LLMPolicy:
        assert self._policy is not None, "Without a run no player needs its policies."
        return self._policy

    def _training_policies(self, agents: Mapping[str, str]) -> dict[str, str]:
        """Return the policies of these agents in training."""
        from rllib_llm.policy_mapping import mapped_policies

        if self._task.assignment:  # self-play: each task has its own assignment
            return {agent: self._task.assignment[agent] for agent in agents}
        return mapped_policies(self._run_policy.config, list(agents))

    def _scripted(self, agent: str) -> Any:
        kind = self.players[agent]
        try:
            return self.game.move(kind, agent)
        except NotImplementedError as error:
            raise ConfigError(
                f"{kind!r} cannot play {agent!r}: {error} Choose another player."
            ) from error


def assign_agents(
    agents: list[str], given: Mapping[str, str], policy: LLMPolicy | None
) -> dict[str, str]:
    """Return the player of each agent.

    Args:
        agents: All agents of the environment.
        given: Requested players, by AgentID, its stem (``solver`` of ``solver_0``) or
            ``"*"``.
        policy: The run's policies, which play all other agents. Without a run, a person
            plays the first of these and the random policy the others.

    Raises:
        ConfigError: If an agent or player does not exist.
    """
    allowed = [*_WITHOUT_RUN]
    if policy is not None:
        allowed += [POLICY, *policy.policies]
    for name, player in given.items():
        names = {*agents, *(_stem(a) for a in agents), "*"} - {""}
        if name not in names:
            raise ConfigError(
                f"The environment has no agent {name!r}. {did_you_mean(name, names)}"
            )
        if player not in allowed:
            needs_run = policy is None and player == POLICY
            hint = "Name a RUN." if needs_run else did_you_mean(player, allowed)
            raise ConfigError(f"{player!r} of {name!r} is not a player. {hint}")
    players, rest = {}, POLICY if policy is not None else PERSON
    for agent in agents:
        keys = (agent, _stem(agent), "*")
        players[agent] = next((given[k] for k in keys if k in given), rest)
        rest = POLICY if policy is not None else RANDOM
    return players


def _stem(agent: str) -> str:
    return agent.rpartition("_")[0]
