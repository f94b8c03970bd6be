"""Ratios of whole messages, and sequential updates of agents, in torch.

The ratio of a message, ``prod_j pi(w_j) / pi_old(w_j)``, is a product of hundreds of
factors; its length-normalised form, the geometric mean over its trained tokens, stays
near 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from rllib_llm.losses._checks import check_mask, check_same_shape
from rllib_llm.losses.surrogate import _masked_log_ratio


def message_log_ratios(
    logp: Tensor,
    old_logp: Tensor,
    loss_mask: Tensor,
    messages: Tensor,
    count: int,
    *,
    length_normalised: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return ``log pi(message) - log pi_old(message)``, per token or in total.

    Length-normalised it is GSPO's sequence ratio (arXiv:2507.18071) of one
    message, and ReMA's turn-level ratio; else MARFT-A's ``sum`` (arXiv:2504.16129).

    Args:
        logp: Log-probabilities under the current policy, in nats. [B, T]
        old_logp: The same tokens under the policy before this update. [B, T]
        loss_mask: True where the token is trained. [B, T]
        messages: Message of each token, 0..count-1; masked entries may hold anything.
            A message may span rows. [B, T]
        count: Number of messages, M.
        length_normalised: Divide by the message's number of trained tokens.

    Returns:
        Log-ratios, in nats, 0 for a message without trained tokens [M], and whether a
        message has any (bool [M]).

    Raises:
        ValueError: If shapes differ or a message is out of range.
    """
    check_mask(loss_mask, logp=logp, old_logp=old_logp, messages=messages)
    log_ratio = _masked_log_ratio(logp, old_logp, loss_mask).flatten()
    # Masked tokens add 0 to message 0. [B * T]
    owner = messages.masked_fill(~loss_mask, 0).flatten()
    is_on_cpu = owner.device.type == "cpu"  # elsewhere torch refuses wrong indices
    if is_on_cpu and loss_mask.any() and not (owner.min() >= 0 and owner.max() < count):
        raise ValueError(
            f"messages lie in [{owner.min()}, {owner.max()}] with count {count}. They "
            "must lie in [0, count). Pass the number of messages in the batch."
        )
    # Summed by message, not by row: under `row_per_turn` a message is a row, otherwise
    # a row holds several, and an edited context can split one over rows.
    size = max(count, 1)  # for the 0 of masked tokens
    sums = log_ratio.new_zeros(size).index_add(0, owner, log_ratio)[:count]
    lengths = owner.new_zeros(size).index_add(0, owner, loss_mask.flatten().long())
    lengths = lengths[:count]
    if length_normalised:
        sums = sums / lengths.clamp(min=1)
    return sums, lengths > 0


def sequential_factors(
    log_ratios: Tensor,
    steps: Tensor,
    agents: Tensor,
    updated: Iterable[int],
    *,
    ratio_clip: float = 0.2,
    factor_clip: float = 0.5,
) -> Tensor:
    """Return the factor of the advantages of the agents that are updated next.

    HAPPO (Kuba et al. 2022, arXiv:2109.11251): agents are updated one after another,
    and the next one maximises its surrogate of ``M * A``, with M the product of the
    updated agents' new-to-old ratios for the same joint action. For text each ratio is
    the length-normalised one of a message, clipped to [1 - ratio_clip, 1 +
    ratio_clip], and M is clipped to [1 - factor_clip, 1 + factor_clip]; HARL's code
    does neither, since its agents have one small action each. M is clipped after the
    whole product, so that it does not depend on the order of the updated agents.

    Args:
        log_ratios: From :func:`message_log_ratios`: the policies after the updates so
            far against those that sampled. [M]
        steps: Joint action of each message, >= 0: its episode and round, numbered by
            :func:`~rllib_llm.advantages.column_keys.combined_keys`. [M]
        agents: Agent of each message, integers. [M]
        updated: The agents already updated.
        ratio_clip: Clip of each ratio, in (0, 1).
        factor_clip: Clip of the product, in (0, 1).

    Returns:
        M per message, without gradient; all 1 if no agent was updated. Use it for
        agents that are not in ``updated``. [M]

    Raises:
        ValueError: If shapes differ or a clip is outside (0, 1).
    """
    check_same_shape(log_ratios=log_ratios, steps=steps, agents=agents)
    for name, clip in (("ratio_clip", ratio_clip), ("factor_clip", factor_clip)):
        if not 0 < clip < 1:
            raise ValueError(
                f"{name} is {clip}. It must lie in (0, 1), so that no ratio becomes 0. "
                "Use e.g. 0.2."
            )
    # In log space, where the product over agents is a sum; log1p gives the clip range.
    clipped = log_ratios.detach().clamp(math.log1p(-ratio_clip), math.log1p(ratio_clip))
    before = torch.isin(agents, agents.new_tensor(list(updated)))  # [M]
    size = int(steps.max()) + 1 if len(steps) else 0
    # One factor per joint action: the updated agents' ratios add to the step that they
    # share with the agent that is updated next. [steps]
    log_factors = clipped.new_zeros(size).index_add(
        0, steps, clipped.masked_fill(~before, 0.0)
    )
    return log_factors.exp().clamp(1 - factor_clip, 1 + factor_clip)[steps]
