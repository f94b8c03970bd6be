"""Exact values of secret_sum-v0 under tabular policies: the truth about credit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllib_llm.envs.games.secret_sum import answer_rewards


def exact_values(
    policies: Sequence[np.ndarray],
    secrets: Sequence[int],
    said: Sequence[int],
    partial: float = 0.0,
) -> np.ndarray:
    """Return the team's exact expected reward before and after each message.

    The value of the state in which all private numbers are known, under tabular
    policies and after the first k messages, by backward induction along the chain:
    U_k(h) = sum_a pi_k(a | h, s_k) U_{k+1}(a), with the graded answer at the end.

    Args:
        policies: One per agent: probabilities of messages given the number heard and
            the own number, [numbers, numbers, numbers]; the first agent hears 0.
        secrets: The private numbers.
        said: What was said, by as many agents as have spoken.
        partial: See :meth:`~rllib_llm.envs.games.secret_sum.SecretSum.start`.

    Returns:
        V_0 (nothing said) to V_k (all of ``said``). [len(said) + 1]
    """
    later = answer_rewards(secrets, policies[0].shape[-1], partial)
    after = [later]  # expected reward by the newest message, last agent first
    for policy, secret in zip(reversed(policies), reversed(secrets), strict=True):
        later = policy[:, secret] @ later
        after.append(later)
    after.reverse()
    heard = [0, *said]
    return np.array([after[k][h] for k, h in enumerate(heard)])


def exact_advantage(
    policies: Sequence[np.ndarray],
    secrets: Sequence[int],
    said: Sequence[int],
    partial: float = 0.0,
) -> np.ndarray:
    """Return what each message changed: V_k - V_{k-1} of :func:`exact_values`.

    The multi-agent advantage decomposition (Kuba et al. 2021, arXiv:2109.11251,
    lemma 1): the terms of an episode add up to its reward minus V_0. [len(said)]
    """
    return np.diff(exact_values(policies, secrets, said, partial))
