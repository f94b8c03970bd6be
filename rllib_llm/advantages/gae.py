"""Generalised advantage estimation over the sampled tokens of one episode."""

from __future__ import annotations

import numpy as np

from rllib_llm.losses._checks import check_finite, check_same_shape, check_vector


def token_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    *,
    gamma: float | np.ndarray,
    lambda_: float | np.ndarray,
    lambda_critic: float | np.ndarray | None = None,
    bootstrap_value: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return generalised advantage estimates and value targets of one episode.

    Eq. (16) of Schulman et al. 2016 (arXiv:1506.02438), as the recursion
    ``A[i] = d[i] + gamma[i] * lambda_[i] * A[i+1]`` with the one-step error
    ``d[i] = rewards[i] + gamma[i] * values[i+1] - values[i]``. A separate
    ``lambda_critic`` is VC-PPO's decoupled GAE (arXiv:2503.01491).

    The arrays hold the *trained* tokens only, in time order: tokens of the prompt
    and of the environment are omitted, so the value after the last token of a turn
    is the one of the first token of the next turn.

    Args:
        rewards: Reward received after each token. [N]
        values: Critic's estimate before each token. [N]
        gamma: Discount in [0, 1]; a scalar, or the one applied to the transition
            after each token. [N]
        lambda_: GAE parameter in [0, 1] for the advantages; like ``gamma``.
        lambda_critic: GAE parameter for the targets; ``lambda_`` if None.
        bootstrap_value: Value of the state after the last token; 0 if the episode
            terminated, the critic's estimate if it was cut short.

    Returns:
        Advantages [N] and value targets [N] (values plus the advantages under
        ``lambda_critic``). Both are empty if N is 0.

    Raises:
        ValueError: If shapes differ, an entry is not finite, or gamma or a lambda
            is outside [0, 1].

    Example:
        >>> token_gae(np.array([0.0, 1.0]), np.zeros(2), gamma=1.0, lambda_=1.0)[0]
        array([1., 1.])
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    values = np.asarray(values, dtype=np.float64)
    check_vector("rewards", rewards)
    check_same_shape(rewards=rewards, values=values)
    check_finite("rewards", rewards, "Mend the environment or the reward function.")
    check_finite("values", values, "The critic diverged; lower its learning rate.")
    after_last = np.array([bootstrap_value], dtype=np.float64)
    check_finite("bootstrap_value", after_last, "Pass 0.0 if the episode terminated.")

    gamma = _per_token("gamma", gamma, len(rewards))
    lambda_ = _per_token("lambda_", lambda_, len(rewards))
    # delta of eq. 16. values[1:] is the next *trained* token, so observations between
    # two turns add neither discount nor decay.
    errors = rewards + gamma * np.append(values[1:], after_last) - values
    advantages = _discounted_sums(errors, gamma * lambda_)
    if lambda_critic is None:
        # TD(lambda) targets before whitening; RLlib's PPO uses the same.
        return advantages, values + advantages
    lambda_critic = _per_token("lambda_critic", lambda_critic, len(rewards))
    return advantages, values + _discounted_sums(errors, gamma * lambda_critic)


def _per_token(name: str, value: float | np.ndarray, count: int) -> np.ndarray:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in ((), (count,)):
        raise ValueError(
            f"{name} has shape {list(array.shape)}. It must be a scalar or [{count}], "
            "one entry per trained token. Omit the tokens that are not trained."
        )
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(
            f"{name} is {value}. It must lie in [0, 1]. Use e.g. 1.0 for tokens."
        )
    return np.broadcast_to(array, (count,))


def _discounted_sums(terms: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Solve ``s[i] = terms[i] + decay[i] * s[i+1]`` with ``s[N] = 0``."""
    sums, following = [], 0.0
    # Over Python's floats: a loop over entries of arrays takes several times as long,
    # and importing a filter longer than all loops of a run.
    for term, factor in zip(terms[::-1].tolist(), decay[::-1].tolist(), strict=True):
        following = term + factor * following
        sums.append(following)
    return np.array(sums[::-1], dtype=np.float64)
