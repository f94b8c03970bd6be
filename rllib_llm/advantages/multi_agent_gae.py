"""Generalised advantage estimation over the messages of several agents, in numpy.

A *message* is one turn of one agent. Messages are numbered k = 0..M-1; those of an
episode form a sequence of *steps* in execution order, over all agents: the value after
a step is that of the **next agent**, so the trace crosses from agent to agent. A
truncated episode bootstraps from the next agent too.

**Simultaneous messages.** Messages of one episode with the same ``order`` do not see
each other; together they are one step, the joint action. The step's reward is the sum
of its members' rewards, the value before it the mean of its members' values (with a
central critic they are equal), the value after it that of the next step. All members
get the same one-step error and the same joint advantage. A step may have one message.

Every message here has a value. Agents without a critic (scripted, remote) are omitted;
the rewards after their messages belong to the message before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.advantages.gae import _discounted_sums
from rllib_llm.losses._checks import (
    check_finite,
    check_same_shape,
    check_unit_interval,
    check_vector,
)


def message_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    episodes: Sequence[Hashable] | np.ndarray,
    *,
    gamma: float,
    lambda_: float,
    order: np.ndarray | None = None,
    bootstrap_values: float | np.ndarray = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and value targets per message (MARFT-A).

    Liao et al. 2025 (arXiv:2504.16129), over steps s in execution order:
    ``d[s] = r[s] + gamma * V[s+1] - V[s]``, ``A[s] = d[s] + gamma * lambda_ * A[s+1]``,
    target ``V[s] + A[s]``.

    Depending on the arguments it is also *MAPPO* per step (arXiv:2103.01955), with the
    values of a central critic; *IPPO*, with ``episodes=combined_keys(episodes,
    agents)``, one sequence per agent; *IAC* and *MAAC* (arXiv:2601.21972), with
    ``lambda_=0`` and decentral or central values.

    AReaL-MARFT reads the next message's value at its first prompt token and does not
    carry the trace over; siiRL's version is correct for two agents only.

    Args:
        rewards: Reward received after each message. [M]
        values: Critic at the last token of each message's prompt. [M]
        episodes: Episode of each message, integers or strings. [M]
        gamma: Discount per step, in [0, 1].
        lambda_: GAE parameter per step, in [0, 1].
        order: Place of each message in its episode; equal places are simultaneous.
            None: messages are in execution order. [M]
        bootstrap_values: Value of the next agent (the mean, if several would act at
            once) after the last step of each episode, 0 where it terminated; one
            number, or an array in the order of the sorted distinct episodes. [E]

    Returns:
        Advantages [M] and value targets [M]. Both are empty if M is 0.

    Raises:
        ValueError: If shapes differ, an entry is not finite, or gamma or lambda_ is
            outside [0, 1].

    Example:
        >>> message_gae([0.0, 1.0], [0.0, 0.0], [0, 0], gamma=0.5, lambda_=1.0)[0]
        array([0.5, 1. ])
    """
    rewards, values = _finite("rewards", rewards), _finite("values", values)
    check_same_shape(rewards=rewards, values=values)
    return two_level_gae(
        rewards,
        values,
        np.arange(len(values)),
        episodes,
        gamma=gamma,
        lambda_=lambda_,
        order=order,
        bootstrap_values=bootstrap_values,
    )


def two_level_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    messages: np.ndarray,
    episodes: Sequence[Hashable] | np.ndarray,
    *,
    gamma: float,
    lambda_: float,
    gamma_token: float = 1.0,
    lambda_token: float = 1.0,
    order: np.ndarray | None = None,
    bootstrap_values: float | np.ndarray = 0.0,
    token_rewards: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return advantages and value targets per token, with two time scales (MARFT-T).

    Liao et al. 2025 (arXiv:2504.16129) with a discount inside messages that is
    separate from the one between them (POAD, arXiv:2405.15821). For token j of message
    k, L tokens long, ``d = gamma_token * V[k,j+1] - V[k,j]`` with trace factor
    ``gamma_token * lambda_token``; for its last token ``d = r[k] + gamma * V[next,1] -
    V[k,L]`` with trace factor ``gamma * lambda_``. With both token parameters 1 (the
    default) the first token's advantage is the one of :func:`message_gae`, ``A[k]``,
    and token j's is ``A[k] + V[k,1] - V[k,j]``, whatever the message's length. MARFT's
    code uses gamma and lambda for both, which leaves the first of 512 tokens 2e-14 of
    the final reward at 0.99 and 0.95.

    The tokens of simultaneous messages start from one shared value, the mean over the
    first tokens of the step; each message ends with the step's whole reward, and what
    the step passes back is the mean of its first tokens' advantages.

    Args:
        rewards: Reward received after each message. [M]
        values: Critic before each token; the first of a message is read at the last
            token of its prompt. [T]
        messages: Message of each token, 0..M-1; a message's tokens are in time order,
            and each message has at least one. [T]
        episodes: See :func:`message_gae`. [M]
        gamma: Discount between steps, in [0, 1].
        lambda_: GAE parameter between steps, in [0, 1].
        gamma_token: Discount inside messages, in [0, 1].
        lambda_token: GAE parameter inside messages, in [0, 1].
        order: See :func:`message_gae`. [M]
        bootstrap_values: See :func:`message_gae`. [E]
        token_rewards: Further rewards of single tokens, not shared in a step, e.g.
            minus a KL penalty; None for none. [T]

    Returns:
        Advantages [T] and value targets [T].

    Raises:
        ValueError: If shapes differ, an entry is not finite, a message has no token,
            or a discount or GAE parameter is outside [0, 1].
    """
    check_unit_interval(
        gamma=gamma, lambda_=lambda_, gamma_token=gamma_token, lambda_token=lambda_token
    )
    rewards, values = _finite("rewards", rewards), _finite("values", values)
    extra = 0.0 * values if token_rewards is None else token_rewards
    extra = _finite("token_rewards", extra)
    check_same_shape(values=values, messages=np.asarray(messages), token_rewards=extra)
    steps = _find_steps(rewards, episodes, order, bootstrap_values)
    tokens = _find_tokens(messages, len(rewards))
    if not len(rewards):
        return values.copy(), values.copy()

    # From here on, tokens are sorted by message.
    values, extra = values[tokens.sorted], extra[tokens.sorted]
    # Value before each step, the mean over its simultaneous messages. [S]
    before = key_means(values[tokens.first], steps.of_message)
    values[tokens.first] = before[steps.of_message]
    following = np.append(values[1:], 0.0)
    # The value after a message is the next step's; gains() adds it.
    following[tokens.last] = 0.0
    decay = gamma_token * lambda_token
    # The part of the advantage that depends on the message's own tokens only. [T]
    inside = tokens.discounted_sums(extra + gamma_token * following - values, decay)
    weight = decay**tokens.after  # of the rewards after the message, at each token
    gains = steps.gains(
        before, inside[tokens.first], weight[tokens.first], gamma=gamma, lambda_=lambda_
    )
    sums = inside + weight * gains[tokens.message]  # [T]
    # The inverse permutation: back to the order of the arguments.
    places = np.argsort(tokens.sorted)
    return sums[places], (values + sums)[places]


@dataclasses.dataclass(frozen=True)
class _Steps:
    """The S joint steps of all episodes, sorted by episode and order."""

    of_message: np.ndarray  # step of each message [M]
    rewards: np.ndarray  # sum over the step's messages [S]
    is_last: np.ndarray  # of its episode [S]
    bootstraps: np.ndarray  # of its episode [S]

    def gains(
        self,
        before: np.ndarray,
        inside: np.ndarray,
        weight: np.ndarray,
        *,
        gamma: float,
        lambda_: float,
    ) -> np.ndarray:
        """Return ``r[s] + gamma * (V[s+1] + lambda_ * A[s+1])`` of each message's step.

        ``A[s]``, the advantage a step passes back, is the mean over its messages of
        ``inside + weight * gain[s]``: the message's part before its first token, and
        the part of the step's gain that reaches that token.

        Args:
            before: Value before each step. [S]
            inside: Discounted errors inside each message, at its first token. [M]
            weight: Weight of the gain at that token. [M]
            gamma: Discount between steps.
            lambda_: GAE parameter between steps.

        Returns:
            Gains. [M]
        """
        # np.roll wraps around, but the last step of an episode never uses the next
        # entry.
        after = np.where(self.is_last, self.bootstraps, np.roll(before, -1))
        gains = self.rewards + gamma * after
        # 0 at the last step: the trace must not continue into the next episode.
        trace = np.where(self.is_last, 0.0, gamma * lambda_)
        weight = key_means(weight, self.of_message)
        inside = key_means(inside, self.of_message)
        # Linear in the gain, so the recursion over steps needs two numbers per message
        # and no loop over tokens. [S]
        passed_back = _discounted_sums(inside + weight * gains, weight * trace)
        return (gains + trace * np.append(passed_back[1:], 0.0))[self.of_message]


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """Positions of each message's tokens after sorting by message."""

    sorted: np.ndarray  # indices that sort the tokens by message [T]
    message: np.ndarray  # of each sorted token [T]
    lengths: np.ndarray  # tokens of each message [M]
    first: np.ndarray  # sorted place of each message's first token [M]
    last: np.ndarray  # sorted place of each message's last token [M]

    @property
    def after(self) -> np.ndarray:
        """Number of tokens that follow each token in its message. [T]"""
        return self.last[self.message] - np.arange(len(self.message))

    def discounted_sums(self, terms: np.ndarray, decay: float) -> np.ndarray:
        """Solve ``s[j] = terms[j] + decay * s[j+1]`` inside each message. [T]"""
        last = self.last[np.argsort(-self.lengths, kind="stable")]
        # at_least[n]: number of messages with n tokens or more, the first in ``last``.
        at_least = np.bincount(self.lengths)[::-1].cumsum()[::-1]
        sums = terms.copy()
        # One vector operation per token position, over all messages that are that long.
        for after in range(1, self.lengths.max()):
            places = last[: at_least[after + 1]] - after
            sums[places] += decay * sums[places + 1]
        return sums


def _finite(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, dtype=np.float64)
    check_vector(name, array)
    check_finite(name, array, "Mend its computation; a critic may have diverged.")
    return array


def _find_steps(
    rewards: np.ndarray,
    episodes: Sequence[Hashable] | np.ndarray,
    order: np.ndarray | None,
    bootstrap_values: float | np.ndarray,
) -> _Steps:
    episodes = np.asarray(episodes)
    order = np.arange(len(rewards)) if order is None else np.asarray(order)
    check_same_shape(rewards=rewards, episodes=episodes, order=order)
    of_message, episodes = combined_keys(episodes, order), combined_keys(episodes)
    _, first = np.unique(of_message, return_index=True)
    episode = episodes[first]  # of each step [S]
    count = len(np.unique(episode))
    bootstraps = np.asarray(bootstrap_values, dtype=np.float64)
    if bootstraps.shape not in ((), (count,)):
        raise ValueError(
            f"bootstrap_values has shape {list(bootstraps.shape)}. It must be one "
            f"number or [{count}], one entry per episode in sorted order. Pass 0 for "
            "episodes that terminated."
        )
    check_finite("bootstrap_values", bootstraps, "Pass 0 for terminated episodes.")
    return _Steps(
        of_message=of_message,
        rewards=np.bincount(of_message, rewards),
        # Steps are sorted by episode, so a change of episode marks the last one.
        is_last=np.diff(episode, append=-1) != 0,
        bootstraps=np.broadcast_to(bootstraps, (count,))[episode],
    )


def _find_tokens(messages: np.ndarray, count: int) -> _Tokens:
    messages = np.asarray(messages)
    if not messages.size:
        messages = messages.astype(np.int64)
    if messages.dtype.kind not in "iu" or messages.min(initial=0) < 0:
        raise ValueError(
            f"messages has dtype {messages.dtype} and least entry "
            f"{messages.min(initial=0)}. They must be integers from 0: the index of "
            "each token's message in rewards. Omit the tokens of prompts."
        )
    lengths = np.bincount(messages, minlength=count)
    if len(lengths) > count or not lengths.all():
        which = count if len(lengths) > count else int(np.argmin(lengths))
        raise ValueError(
            f"Message {which} has {lengths[which]} tokens and rewards has {count} "
            "entries. Each message needs one reward and at least one token. Omit "
            "messages that were not sampled, or add their end-of-turn token."
        )
    # Stable: tokens of a message keep their order.
    in_order = np.argsort(messages, kind="stable")
    ends = lengths.cumsum()
    return _Tokens(in_order, messages[in_order], lengths, ends - lengths, ends - 1)
