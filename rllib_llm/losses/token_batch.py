"""Token batches: the inputs of loss components in the Learner, in torch.

A policy loss, a loss term or a token transform takes a :class:`TokenBatch`. In it
untrained entries are 0 and pass no gradient, so components need not mask them.

A *sequence* is one agent's part of an episode: all rows of equal ``episode_index``,
even if edited contexts split it into several. A *turn* is one message of it. Components
that compare tokens of a sequence are marked with ``@requires("sequences")``; their
micro-batches never split one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllib_llm.losses._checks import check_choice, check_mask
from rllib_llm.losses.action_distillation import ActionProbs
from rllib_llm.losses.surrogate import MAX_LOG_RATIO
from rllib_llm.upload import upload

LEVELS = ("token", "turn", "sequence")
NEEDS = (
    "actions",
    "causal",
    "expert",
    "reference",
    "scores",
    "sequences",
    "success",
    "unweighted",
)


def single_learner(values: Tensor) -> tuple[Tensor, int]:
    """Return the tokens of all Learners if there is only one. [N]"""
    return values, 0


def requires(
    *needs: str, when: Callable[[dict[str, Any]], bool] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark the inputs that a component needs beside the usual columns (decorator).

    Args:
        needs: "actions": ``actions``, which ``head="score"`` has and loss terms alone
            can read; "causal": ``causal_weights``, for which a scorer is trained;
            "expert": ``actions.expert``, which the environment reports; "reference":
            ``ref_logp``, which costs a further forward pass, and ``actions.reference``
            with "actions"; "scores": ``entropy_rank`` and ``covariance_rank`` over the
            iteration's batch, which cost one too, in iterations of a single optimiser
            step; "sequences": whole sequences; "success": ``success``; "unweighted":
            advantages without importance weights (``tis``), since its loss is not
            linear in them.
        when: Returns whether it needs them under given settings; None: always.
    """

    def mark(make: Callable[..., Any]) -> Callable[..., Any]:
        before = getattr(make, "needs", ())
        # An attribute of a function, which its type does not declare.
        make.needs = (*before, (frozenset(needs), when))  # type: ignore[attr-defined]
        return make

    return mark


@dataclasses.dataclass
class TokenBatch:
    """Rows of tokens with their probabilities and advantages.

    Attributes:
        logp: Log-probabilities under the policy being trained, in nats. [B, T]
        old_logp: The same tokens under the policy before the update. [B, T]
        advantages: Advantage of each token. [B, T]
        mask: True where the token is trained. [B, T]
        entropy: Entropy of each token's distribution, in nats: under the policy being
            trained in losses, under the one before the update in transforms. [B, T]
        turn_ids: Turn of each trained token in its episode. int64 [B, T]
        episode_index: Agent's episode of each row. int64 [B]
        ref_logp: Log-probabilities under the frozen reference policy. [B, T]
        success: 1 where the row's episode solved its task, 0 where not, NaN where that
            is not defined. [B]
        success_share: Solved episodes' share of the iteration's trained tokens.
        entropy_rank: Share of the iteration's trained tokens with a higher entropy
            before the update, in [0, 1). [B, T]
        covariance_rank: The same for the centred product of old log-probability and
            advantage. [B, T]
        causal_weights: Weight of each token by its effect on the action that the
            environment parsed, in [0, 1]. [B, T]
        actions: Probabilities of all admissible actions.
        update: Number of this update, from 0.
        seed: Seed for components that draw; it differs between iterations.
        host: Copies of ``mask``, ``turn_ids`` and ``episode_index`` in host memory;
            None: they are read from the device.
        pool: Takes one number per trained token [N] and returns those of all Learners
            [M] and the place of this one's first. None in micro-batches: they are
            parts.
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
    causal_weights: Tensor | None = None
    actions: ActionProbs | None = None
    update: int = 0
    seed: int = 0
    pool: Callable[[Tensor], tuple[Tensor, int]] | None = single_learner
    host: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def __post_init__(self) -> None:
        """Set untrained entries to 0, even NaN or infinite ones."""
        named = {
            name: getattr(self, name)
            for name in ("logp", "old_logp", "advantages", "entropy", "ref_logp")
            if getattr(self, name) is not None
        }
        check_mask(self.mask, turn_ids=self.turn_ids, **named)
        # Once, here, instead of in every component: a component is then correct for
        # padding even if it ignores the mask.
        for name, column in named.items():
            column = column.masked_fill(~self.mask, 0.0)
            # Gradients flow through the current policy only; advantages, old and
            # reference log-probabilities are constants of the surrogate.
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
        if level == "token":
            return values
        unit, lengths = self._units(level)
        # Masked values are 0 and add nothing to their unit, the first one.
        reduced = values.new_zeros(len(lengths))
        reduced = reduced.index_add(0, unit.flatten(), values.flatten())
        if how == "mean":
            reduced = reduced / lengths
        return reduced[unit].masked_fill(~self.mask, 0.0)

    def _units(self, level: str) -> tuple[Tensor, Tensor]:
        """Return the number of each token's unit [B, T], and the units' lengths [M]."""
        on_device = (self.mask, self.turn_ids, self.episode_index)
        mask, turns, episodes = self.host or (t.cpu().numpy() for t in on_device)
        # With level "sequence" all turns get key 0, so one key pair serves both levels.
        # Units by (episode, turn), not by row: rows of one episode belong together.
        keys = np.stack(
            [np.broadcast_to(episodes[:, None], mask.shape), turns * (level == "turn")]
        )
        _, unit_of_token = np.unique(keys[:, mask], axis=1, return_inverse=True)
        unit = np.zeros(mask.shape, np.int64)
        unit[mask] = unit_of_token.ravel()
        lengths = np.maximum(np.bincount(unit[mask], minlength=1), 1)
        device = self.mask.device
        return upload(unit, device), upload(lengths, device)

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and sample standard deviation over trained tokens; 0 without any.

        They are over the iteration's tokens of all Learners.

        Raises:
            ValueError: In a micro-batch.
        """
        # Over all Learners: moments of one shard would make the result depend on their
        # number.
        pooled, _ = self.from_all_learners(values[self.mask])
        if len(pooled) < 2:
            # A sample deviation needs two numbers; NaN would spread to all advantages.
            return pooled.sum(), pooled.sum() * 0.0
        return pooled.mean(), pooled.std()

    def from_all_learners(self, values: Tensor) -> tuple[Tensor, int]:
        """Return the numbers of all Learners' tokens.

        All Learners must call it equally often, even those whose batch has no rows.

        Args:
            values: One number per trained token, or per selected token. [N]

        Returns:
            All numbers [M], and the place of this Learner's first.

        Raises:
            ValueError: In a micro-batch.
        """
        if self.pool is None:
            raise ValueError(
                "Moments and ranks of a micro-batch would depend on how the batch is "
                "split. Compute them in a token_advantage_transform, which gets the "
                "iteration's tokens of all Learners."
            )
        return self.pool(values)


def rank_from_top(
    values: Tensor,
    mask: Tensor,
    pool: Callable[[Tensor], tuple[Tensor, int]] = single_learner,
) -> Tensor:
    """Return each unmasked entry's rank in descending order, as a share. [B, T]

    It is the share of unmasked entries before it, so those below ``share`` are the
    ``ceil(share * N)`` largest. Equal entries are ordered by their place. Masked
    entries get 1.

    Args:
        values: Numbers to rank. [B, T]
        mask: Entries to rank. bool [B, T]
        pool: See :class:`TokenBatch`; N counts its result.
    """
    pooled, start = pool(values[mask])
    # Stable: ties keep the order of tokens, so all Learners compute equal ranks.
    order = torch.argsort(pooled, descending=True, stable=True)
    # float32 cannot represent the ranks of more than 16.7 million tokens exactly.
    ranks = torch.empty_like(pooled, dtype=torch.float64)
    places = torch.arange(len(order), device=pooled.device, dtype=torch.float64)
    ranks[order] = places / max(1, len(order))
    local_ranks = ranks[start : start + int(mask.sum())]
    return torch.ones_like(values, dtype=torch.float64).masked_scatter(
        mask, local_ranks
    )


def example_batch(
    needs: frozenset[str] = frozenset(NEEDS), *, is_part: bool = False
) -> TokenBatch:
    """Return an example batch: four short rows of three episodes.

    Args:
        needs: Optional inputs that it contains; see :func:`requires`.
        is_part: Whether it is a micro-batch, as losses and terms get.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (4, 6)
    old_logp = -torch.rand(shape, generator=generator)
    advantages = torch.randn(shape, generator=generator)
    entropy = torch.rand(shape, generator=generator)
    mask = torch.ones(shape, dtype=torch.bool)
    # The first column is a prompt, so components are tried with masked entries, too.
    mask[:, 0] = False
    move = 0.1 * torch.randn(shape, generator=generator)
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
        causal_weights=torch.rand(shape, generator=generator)
        if "causal" in needs
        else None,
        actions=_example_actions(mask, generator) if "actions" in needs else None,
        pool=None if is_part else single_learner,
    )


def _example_actions(mask: Tensor, generator: torch.Generator) -> ActionProbs:
    """Return three actions at every trained token, of which the expert knows one."""
    rows, cols = mask.nonzero(as_tuple=True)
    scores = torch.randn((2, len(rows), 3), generator=generator).log_softmax(-1)
    expert = torch.tensor([0.0, -torch.inf, -torch.inf]).expand(len(rows), 3)
    logps, reference = scores
    return ActionProbs(logps.requires_grad_(), rows, cols, reference, expert)
