"""What pieces in the Learner see of a batch: tokens and their probabilities, in torch.

A policy loss, a loss term or a token transform takes a :class:`TokenBatch`. Entries
that are not trained are 0 in it and pass no gradient, so that pieces need not care.

A *sequence* is what one agent did in one episode: all rows of equal ``episode_index``,
however many rows its edited context made of it. A *turn* is one message of it. Pieces
that compare tokens of a sequence are marked with ``@requires("sequences")``: their
micro-batches never cut one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rllib_llm.losses._checks import check_choice, check_mask
from rllib_llm.losses.functional import MAX_LOG_RATIO

LEVELS = ("token", "turn", "sequence")
NEEDS = ("reference", "scores", "sequences", "success", "unweighted")


def alone(values: Tensor) -> tuple[Tensor, int]:
    """Return the tokens of all Learners where there is but one. [N]"""
    return values, 0


def requires(
    *needs: str, when: Callable[[dict[str, Any]], bool] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark what a piece needs besides the columns that are always there (decorator).

    Args:
        needs: "reference": ``ref_logp``, which costs a forward pass more; "scores":
            ``entropy_rank`` and ``covariance_rank`` over the iteration's batch, which
            costs one, too, in iterations of a single optimiser step; "sequences":
            whole sequences; "success": ``success``; "unweighted": advantages without
            importance weights (``tis``), since its loss is not linear in them.
        when: Whether it needs them under these settings; None: always.
    """

    def mark(make: Callable[..., Any]) -> Callable[..., Any]:
        before = getattr(make, "asks", ())
        make.asks = (*before, (frozenset(needs), when))  # type: ignore[attr-defined]
        return make

    return mark


@dataclasses.dataclass
class TokenBatch:
    """Rows of tokens, what they were worth, and who sampled them.

    Attributes:
        logp: Log-probabilities under the policy being trained, in nats. [B, T]
        old_logp: The same tokens under the policy before the update. [B, T]
        advantages: Advantage of each token. [B, T]
        mask: True where the token is trained. [B, T]
        entropy: Of the distribution each token was taken from, in nats: the policy
            being trained in losses, the one before the update in transforms. [B, T]
        turn_ids: Turn of each trained token in its episode. int64 [B, T]
        episode_index: Agent's episode of each row. int64 [B]
        ref_logp: Under the frozen reference policy. [B, T]
        success: 1 where the row's episode solved its task, 0 where not, NaN where that
            is not defined. [B]
        success_share: Trained tokens of solved episodes among all of the iteration's.
        entropy_rank: Share of the iteration's trained tokens whose entropy was higher
            before the update, in [0, 1). [B, T]
        covariance_rank: The same for the centred product of old log-probability and
            advantage. [B, T]
        update: Number of this update, from 0.
        seed: For pieces that draw; another one in every iteration.
        pool: Takes one number per trained token [N] and returns those of all Learners
            [M] and where this one's begin. None in micro-batches, which hold a part.
    """

    logp: Tensor
    old_logp: Tensor
    advantages: Tensor
    mask: Tensor
    entropy: Tensor
    turn_ids: Tensor
    episode_index: Tensor
    ref_logp: Tensor | None = None
    success: Tensor | None = None
    success_share: float = 1.0
    entropy_rank: Tensor | None = None
    covariance_rank: Tensor | None = None
    update: int = 0
    seed: int = 0
    pool: Callable[[Tensor], tuple[Tensor, int]] | None = alone

    def __post_init__(self) -> None:
        """Blot out what is not trained, whatever it holds."""
        named = {
            name: getattr(self, name)
            for name in ("logp", "old_logp", "advantages", "entropy", "ref_logp")
            if getattr(self, name) is not None
        }
        check_mask(self.mask, turn_ids=self.turn_ids, **named)
        for name, column in named.items():
            column = column.masked_fill(~self.mask, 0.0)
            is_constant = name not in ("logp", "entropy")
            setattr(self, name, column.detach() if is_constant else column)

    @property
    def log_ratio(self) -> Tensor:
        """New over old log-probability, bounded so that exp stays finite. [B, T]"""
        return (self.logp - self.old_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def ratio(self) -> Tensor:
        """New over old probability. [B, T]"""
        return self.log_ratio.exp()

    def reduce(self, values: Tensor, level: str, how: str = "mean") -> Tensor:
        """Return the mean or sum over each token's turn or sequence, at every token.

        Args:
            values: Per token, 0 where masked. [B, T]
            level: "turn", "sequence", or "token", which changes nothing.
            how: "mean" or "sum", over trained tokens.

        Returns:
            0 where masked; differentiable. [B, T]
        """
        check_choice("level", level, LEVELS)
        check_choice("how", how, ("mean", "sum"))
        if level == "token" or not self.mask.any():
            return values
        episodes = self.episode_index[:, None].expand_as(self.mask)[self.mask]
        turns = self.turn_ids[self.mask] * (level == "turn")
        _, unit = torch.unique(
            torch.stack([episodes, turns]), dim=1, return_inverse=True
        )
        count = int(unit.max()) + 1
        found = values.new_zeros(count).index_add(0, unit, values[self.mask])
        if how == "mean":
            found = found / torch.bincount(unit, minlength=count)
        return torch.zeros_like(values).masked_scatter(self.mask, found[unit])

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and sample standard deviation over trained tokens; 0 of none.

        They are those of the iteration's tokens, of all Learners.

        Raises:
            ValueError: In a micro-batch.
        """
        bound, _ = self.everyone(values[self.mask])
        if len(bound) < 2:
            return bound.sum(), bound.sum() * 0.0
        return bound.mean(), bound.std()

    def everyone(self, values: Tensor) -> tuple[Tensor, int]:
        """Return the numbers of all Learners' tokens.

        All Learners must call it equally often, also those whose batch has no rows.

        Args:
            values: One number per trained token, or per token that matters. [N]

        Returns:
            All numbers [M], and where this Learner's begin.

        Raises:
            ValueError: In a micro-batch.
        """
        if self.pool is None:
            raise ValueError(
                "Moments and ranks of a micro-batch would depend on how the batch is "
                "cut. Take them in a token_advantage_transform, which sees the "
                "iteration's "
                "tokens of all Learners."
            )
        return self.pool(values)


def rank_from_top(
    values: Tensor,
    mask: Tensor,
    pool: Callable[[Tensor], tuple[Tensor, int]] = alone,
) -> Tensor:
    """Return the share of masked-in entries that stand before each in falling order.

    Those below ``share`` are the ``ceil(share * N)`` largest. Equal entries are ordered
    by their place. 1 where masked. [B, T]

    Args:
        values: What to rank. [B, T]
        mask: Which of them. bool [B, T]
        pool: See :class:`TokenBatch`; N counts what it returns.
    """
    bound, start = pool(values[mask])
    order = torch.argsort(bound, descending=True, stable=True)
    ranks = torch.empty_like(bound, dtype=torch.float64)
    places = torch.arange(len(order), device=bound.device, dtype=torch.float64)
    ranks[order] = places / max(1, len(order))
    ours = ranks[start : start + int(mask.sum())]
    return torch.ones_like(values, dtype=torch.float64).masked_scatter(mask, ours)


def example_batch(
    needs: frozenset[str] = frozenset(NEEDS), *, is_part: bool = False
) -> TokenBatch:
    """Return four short rows of three episodes, for trials.

    Args:
        needs: What is in it of what pieces may ask for.
        is_part: Whether it stands for a micro-batch, as losses and terms see.
    """
    draw = torch.Generator().manual_seed(0)
    shape = (4, 6)
    old_logp = -torch.rand(shape, generator=draw)
    advantages = torch.randn(shape, generator=draw)
    entropy = torch.rand(shape, generator=draw)
    mask = torch.ones(shape, dtype=torch.bool)
    mask[:, 0] = False
    move = 0.1 * torch.randn(shape, generator=draw)
    has_scores = "scores" in needs
    return TokenBatch(
        logp=(old_logp + move).requires_grad_(),
        old_logp=old_logp,
        advantages=advantages,
        mask=mask,
        entropy=entropy.requires_grad_(),
        turn_ids=torch.arange(6).expand(shape) // 3,
        episode_index=torch.tensor([0, 0, 1, 2]),
        ref_logp=old_logp - 0.1 if "reference" in needs else None,
        success=torch.tensor([1.0, 1.0, 0.0, torch.nan])
        if "success" in needs
        else None,
        success_share=0.5,
        entropy_rank=rank_from_top(entropy.detach(), mask) if has_scores else None,
        covariance_rank=rank_from_top(advantages, mask) if has_scores else None,
        pool=None if is_part else alone,
    )
