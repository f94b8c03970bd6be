"""Exact values and advantages of secret_sum-v0 under tabular policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllib_llm.envs.games.secret_sum import answer_rewards


def exact_values(
    policies: Sequence[np.ndarray],
    secrets: Sequence[int],
    messages: Sequence[int],
    partial: float = 0.0,
) -> np.ndarray:
    """Return the team's exact expected reward before and after each message.

    The value of the state with known private numbers, under tabular policies and after
    the first k messages, by backward induction along the chain:
    U_k(h) = sum_a pi_k(a | h, s_k) U_{k+1}(a), with the reward of the answer at the
    end.

    Args:
        policies: One per agent: probabilities of messages given the received number and
            the own number, [numbers, numbers, numbers]; the first agent receives 0.
        secrets: The private numbers.
        messages: The messages so far.
        partial: See :meth:`~rllib_llm.envs.games.secret_sum.SecretSum.start`.

    Returns:
        V_0 (before any message) to V_k (after all of ``messages``) [len(messages) + 1].
    """
    later = answer_rewards(secrets, policies[0].shape[-1], partial)
    after = [later]  # expected reward by the newest message, last agent first
    for policy, secret in zip(reversed(policies), reversed(secrets), strict=True):
        later = policy[:, secret] @ later
        after.append(later)
    after.reverse()
    received = [0, *messages]
    return np.array([after[k][h] for k, h in enumerate(received)])


def exact_advantage(
    policies: Sequence[np.ndarray],
    secrets: Sequence[int],
    messages: Sequence[int],
    partial: float = 0.0,
) -> np.ndarray:
    """Return the change of the value by each message: V_k - V_{k-1} [len(messages)].

    The multi-agent advantage decomposition (Kuba et al. 2021, arXiv:2109.11251,
    lemma 1): the terms of an episode add up to its reward minus V_0.
    """
    return np.diff(exact_values(policies, secrets, messages, partial))
