"""GAE over turns, GAE over turns and tokens, and the length-adaptive lambda, in numpy.

All take one episode's trained tokens in time order and the ends of turns, which come
from the turns themselves: a turn without a reward ends too.
"""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.gae import _discounted_sums, token_gae
from rllib_llm.losses._checks import check_positive, check_same_shape

GAE_LEVELS = ("token", "turn", "bilevel")


def length_adaptive_lambda(length: int, alpha: float) -> float:
    """Return ``1 - 1 / (alpha * length)``, at least 0.

    VAPO (arXiv:2504.05118) and UI-TARS-2 (arXiv:2509.02544): the coefficients
    ``lambda**k`` sum to ``alpha * length``, so credit assignment reaches back over the
    same share of long and of short answers.

    Args:
        length: Trained tokens of the episode.
        alpha: Share of the length that the coefficients cover, > 0, e.g. 0.05.

    Raises:
        ValueError: If ``alpha`` is not positive.
    """
    check_positive("alpha", alpha, "Use e.g. 0.05.")
    # Below 1 / alpha tokens the formula is negative; lambda must lie in [0, 1].
    return max(0.0, 1.0 - 1.0 / (alpha * length)) if length else 0.0


def turn_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    ends: np.ndarray,
    *,
    gamma: float,
    lambda_: float,
    lambda_critic: float | None = None,
    bootstrap_value: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and value targets with turns as steps, per token.

    A turn's value is that before its first token, its reward the sum over its tokens;
    all its tokens get its advantage (VL-DAC, arXiv:2508.04280; ArCHer's level).

    Args:
        rewards: Reward received after each token. [N]
        values: Critic's estimate before each token; only those before a turn are read.
            [N]
        ends: Whether a token is the last one of its turn. bool [N]
        gamma: Discount per turn.
        lambda_: GAE parameter per turn.
        lambda_critic: GAE parameter of the targets; ``lambda_`` if None.
        bootstrap_value: Value after the last turn, 0 if the episode terminated.

    Returns:
        Advantages and targets; use the targets at the first token of a turn. [N]

    Raises:
        ValueError: As :func:`~rllib_llm.advantages.gae.token_gae`.
    """
    turn, starts = _turns(rewards, values, ends)
    # token_gae over turns as its steps: one reward and one value per turn.
    advantages, targets = token_gae(
        np.bincount(turn, rewards, minlength=int(starts.sum())),
        np.asarray(values)[starts],
        gamma=gamma,
        lambda_=lambda_,
        lambda_critic=lambda_critic,
        bootstrap_value=bootstrap_value,
    )
    return advantages[turn], targets[turn]


def bilevel_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    ends: np.ndarray,
    *,
    gamma: float,
    lambda_: float,
    gamma_token: float = 1.0,
    lambda_token: float = 1.0,
    lambda_critic: float | None = None,
    bootstrap_value: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and value targets of GAE over turns, then inside them.

    RAGEN (arXiv:2504.20073) and VAGEN: over the last tokens of turns,
    ``A = r + gamma * V(next turn's last token) - V + gamma * lambda_ * A(next turn)``;
    inside a turn GAE with ``gamma_token`` and ``lambda_token`` starts from its last
    token's advantage. Their code assumes that a turn ends where a token has a reward;
    here turns without a reward count.

    Args:
        rewards: See :func:`turn_gae`. [N]
        values: See :func:`turn_gae`. [N]
        ends: See :func:`turn_gae`. bool [N]
        gamma: Discount between turns.
        lambda_: GAE parameter between turns.
        gamma_token: Discount inside a turn.
        lambda_token: GAE parameter inside a turn.
        lambda_critic: Replaces both GAE parameters for the targets; None: the same.
        bootstrap_value: See :func:`turn_gae`.

    Returns:
        Advantages [N] and value targets [N].

    Raises:
        ValueError: As :func:`~rllib_llm.advantages.gae.token_gae`.
    """
    _turns(rewards, values, ends)
    rewards, values = np.asarray(rewards, float), np.asarray(values, float)

    def two_levels(between: float, inside: float) -> np.ndarray:
        outer, _ = token_gae(
            rewards[ends],
            values[ends],
            gamma=gamma,
            lambda_=between,
            bootstrap_value=bootstrap_value,
        )
        terms = rewards + gamma_token * np.append(values[1:], 0.0) - values
        # The last token of a turn carries the turn's advantage into it.
        terms[ends] = outer
        # 0 at the ends: the next turn has entered through the outer level already.
        decay = np.where(ends, 0.0, gamma_token * inside)
        return _discounted_sums(terms, decay) if len(terms) else terms

    advantages = two_levels(lambda_, lambda_token)
    if lambda_critic is None:
        return advantages, values + advantages
    return advantages, values + two_levels(lambda_critic, lambda_critic)


def _turns(
    rewards: np.ndarray, values: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's turn, and the tokens that begin one."""
    check_same_shape(
        rewards=np.asarray(rewards), values=np.asarray(values), ends=np.asarray(ends)
    )
    if len(ends) and not ends[-1]:
        raise ValueError("The last token must end a turn. Omit prompt tokens.")
    # Cut to length: without tokens there is no first one.
    starts = np.append(True, ends[:-1])[: len(ends)]
    return starts.cumsum() - 1, starts
