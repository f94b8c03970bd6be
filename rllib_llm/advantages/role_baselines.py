"""Baselines per role for self-play, in numpy.

Roles of a game differ (the first player may win more often), so one baseline for all
roles would make every message of the weaker role less likely, and every message of the
stronger one more likely.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.advantages.gae import _discounted_sums
from rllib_llm.advantages.whitening import whiten
from rllib_llm.losses._checks import check_finite, check_same_shape, check_vector


class RoleBaselines:
    """Role-conditioned advantage estimation (RAE): a moving average per (game, role).

    SPIRAL (arXiv:2506.24119): ``A = R - b``, then ``b <- decay * b + (1 -
    decay) * R``, b from 0. The baseline is read *before* the update with the return;
    otherwise it would depend on the action and bias the gradient.

    The released code keeps one average per actor process, shared by all games; here
    there is one per game and role, over all EnvRunners, and it belongs in the
    checkpoint (:meth:`state_dict`): without it the baselines of a resumed run start
    from 0 again. SPIRAL also drops messages of advantage 0; that would change the
    loss's denominator and is a task for filters.

    Args:
        decay: Share of the old average that remains, in [0, 1).

    Example:
        >>> baselines = RoleBaselines(decay=0.5)
        >>> baselines.advantages([1.0, 1.0], ["kuhn", "kuhn"], [0, 0])
        array([1. , 0.5])
    """

    def __init__(self, decay: float = 0.95):
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}. It must lie in [0, 1). Use e.g. 0.95.")
        self.decay = decay
        self._baselines: dict[tuple[Hashable, Hashable], float] = {}

    def get(self, game: Hashable, role: Hashable) -> float:
        """Return the current baseline, 0.0 for an unseen role."""
        return self._baselines.get((game, role), 0.0)

    def advantages(
        self,
        returns: np.ndarray,
        games: Sequence[Hashable] | np.ndarray,
        roles: Sequence[Hashable] | np.ndarray,
    ) -> np.ndarray:
        """Return each player's advantage, and update the baselines with the returns.

        Entries are processed in order: the second one of a (game, role) already sees
        the first. Every message of the player gets the advantage undiscounted (the
        released default): pass it on with
        :func:`~rllib_llm.advantages.multi_agent_groups.broadcast_advantages`.

        Args:
            returns: Return of each player of each episode. [P]
            games: Game of each, strings or integers. [P]
            roles: Role of each. [P]

        Returns:
            Advantages. [P]

        Raises:
            ValueError: If shapes differ or a return is not finite; the baselines are
                then unchanged.
        """
        returns = np.asarray(returns, dtype=np.float64)
        games, roles = np.asarray(games), np.asarray(roles)
        check_vector("returns", returns)
        check_same_shape(returns=returns, games=games, roles=roles)
        check_finite("returns", returns, "Drop the failed episodes before this step.")
        advantages = np.empty_like(returns)
        keys = zip(games.tolist(), roles.tolist(), strict=True)
        # Sequential on purpose: each advantage uses the average before its own return.
        for i, (key, value) in enumerate(zip(keys, returns.tolist(), strict=True)):
            baseline = self.get(*key)
            advantages[i] = value - baseline
            self._baselines[key] = self.decay * baseline + (1 - self.decay) * value
        return advantages

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain lists and numbers."""
        baselines = [[*key, value] for key, value in self._baselines.items()]
        return {"decay": self.decay, "baselines": baselines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the baselines of :meth:`state_dict`.

        Raises:
            ValueError: If the decay differs from this object's.
        """
        if state["decay"] != self.decay:
            raise ValueError(
                f"The state has decay {state['decay']}, this object {self.decay}. They "
                "must be equal. Build it with the state's decay, or start anew."
            )
        self._baselines = {(g, r): value for g, r, value in state["baselines"]}


def per_player_advantages(
    rewards: np.ndarray,
    episodes: Sequence[Hashable] | np.ndarray,
    players: Sequence[Hashable] | np.ndarray,
    games: Sequence[Hashable] | np.ndarray,
    *,
    normalise: bool = True,
) -> np.ndarray:
    """Return turn-level advantages that are centred per player (MARSHAL).

    MARSHAL (arXiv:2510.15414): (1) subtract from each message's reward the mean
    over all messages of its (game, player); (2) sum from each message to the player's
    last of the episode; (3) subtract the (game, player) mean of these sums; (4)
    standardise over the batch.

    In the released code the mean of (3) runs over the *distinct* numbers of a token
    tensor, so that equal returns count once, and over all games together; and rewards
    may be whitened over tokens before (2), most of which have none. Here each message
    counts once in every statistic.

    Args:
        rewards: Reward of each message, in execution order. [M]
        episodes: Episode of each message. [M]
        players: Player of each message. [M]
        games: Game of each message. [M]
        normalise: Do step (4).

    Returns:
        Advantages; without step (4) they sum to 0 over each (game, player). [M]

    Raises:
        ValueError: If shapes differ or a reward is not finite.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    roles, agent_episodes = (
        combined_keys(games, players),
        combined_keys(episodes, players),
    )
    check_vector("rewards", rewards)
    check_same_shape(rewards=rewards, roles=roles, episodes=agent_episodes)
    check_finite("rewards", rewards, "Drop the failed episodes before this step.")
    if not len(rewards):
        return rewards.copy()
    centred = rewards - key_means(rewards, roles)[roles]  # step (1)
    # Stable: an agent's messages keep their order in time.
    in_order = np.argsort(agent_episodes, kind="stable")
    # 0 after the last message of each episode cuts the sum there.
    continues = np.append(np.diff(agent_episodes[in_order]) == 0, False)
    sums = np.empty_like(rewards)
    sums[in_order] = _discounted_sums(centred[in_order], continues.astype(np.float64))
    sums -= key_means(sums, roles)[roles]  # step (3)
    return whiten(sums, np.ones(len(sums), dtype=bool)) if normalise else sums
