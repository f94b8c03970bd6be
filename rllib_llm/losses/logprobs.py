"""Log-probability and entropy of tokens from logits, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rllib_llm.losses._checks import check_positive, check_same_shape

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx


def token_logps_and_entropy(
    logits: Tensor,
    token_ids: Tensor,
    *,
    temperature: float = 1.0,
    loss_mask: Tensor | None = None,
    chunk: int = 256,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of the given tokens and entropies, in nats.

    Computed in float32 (float64 if the logits are), about ``chunk`` positions at a
    time; the backward pass computes each chunk anew and writes its part of the
    gradient in place. Beyond the logits and their gradient, memory is a few times
    ``chunk * V`` floats. The gradient is exact, through both results, and can be
    taken once (no second derivatives).

    Args:
        logits: Scores of the vocabulary; ``-inf`` forbids a token. Position t must
            hold the scores *for* token t, i.e. already be shifted. [..., T, V]
        token_ids: The token taken at each position, in [0, V). [..., T]
        temperature: Logits are divided by it, > 0: the one used for sampling.
        loss_mask: True where a token is trained; None for everywhere. Elsewhere both
            results and the gradient are 0, and logits and ids are ignored. [..., T]
        chunk: Positions computed at a time, >= 1 (but one column of all rows at
            least). Use e.g. 1024 where V is small.

    Returns:
        Log-probability [..., T] and entropy [..., T] at each position.

    Raises:
        ValueError: If shapes do not fit, the temperature or the chunk is out of range,
            or an id on the CPU is not in the vocabulary. On an accelerator the host
            would have to wait to look at ids, and torch refuses wrong ones.
    """
    check_positive("temperature", temperature, "Use 1.0 for unscaled logits.")
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}. It must be >= 1. Use e.g. 1024.")
    if token_ids.ndim < 1 or logits.shape[:-1] != token_ids.shape:
        raise ValueError(
            f"logits is {list(logits.shape)} and token_ids is {list(token_ids.shape)}. "
            "They must be [..., T, V] and [..., T]. Drop the logits of the last token."
        )
    ids = token_ids.long()
    if loss_mask is not None:
        check_same_shape(token_ids=token_ids, loss_mask=loss_mask)
        ids = ids.masked_fill(~loss_mask, 0)
    _check_ids(ids, logits.shape[-1])

    # `chunk` counts positions; a chunk is a slice of columns over all rows.
    columns = max(1, chunk // max(1, ids[..., :1].numel()))
    return _ChunkedLogps.apply(logits, ids, loss_mask, temperature, columns)


class _ChunkedLogps(torch.autograd.Function):
    """Loop over chunks that saves only its inputs and the entropy for the backward."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        logits: Tensor,
        ids: Tensor,
        mask: Tensor | None,
        temperature: float,
        columns: int,
    ) -> tuple[Tensor, Tensor]:
        # bfloat16 has 3 significant digits: differences of log-probabilities, i.e.
        # ratios, would be lost.
        dtype = torch.promote_types(logits.dtype, torch.float32)
        logp, entropy = (torch.zeros_like(ids, dtype=dtype) for _ in range(2))
        for scores, ids_here, keep, out, spread in _chunks(
            columns, logits, ids, mask, logp, entropy
        ):
            logps, finite_logps = _log_softmax(scores, keep, temperature)
            taken = logps.gather(-1, ids_here[..., None]).squeeze(-1)
            minus_entropy = logps.exp().mul_(finite_logps).sum(-1)
            for target, result in ((out, taken), (spread, minus_entropy.neg_())):
                target.copy_(result if keep is None else result.masked_fill_(~keep, 0))
        ctx.save_for_backward(logits, ids, mask, entropy)
        ctx.temperature, ctx.columns = temperature, columns
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: FunctionCtx, grad_logp: Tensor, grad_entropy: Tensor
    ) -> tuple[Any, ...]:
        logits, ids, mask, entropy = ctx.saved_tensors
        grad = torch.empty_like(logits)
        # With p = softmax(z) and entropy H: d log p_k / dz_i = [i = k] - p_i and
        # dH / dz_i = -p_i (log p_i + H).
        for scores, ids_here, keep, spread, g_logp, g_entropy, out in _chunks(
            ctx.columns, logits, ids, mask, entropy, grad_logp, grad_entropy, grad
        ):
            logps, finite_logps = _log_softmax(scores, keep, ctx.temperature)
            g_logp = (g_logp / ctx.temperature)[..., None]
            # Without an entropy bonus its gradient is 0 everywhere, and one pass is
            # saved.
            if not _is_cheap(g_entropy) or g_entropy.any():
                g_entropy = (g_entropy / ctx.temperature)[..., None]
                part = finite_logps.add(spread[..., None]).mul_(g_entropy).add_(g_logp)
                part = part.mul_(logps.exp_()).neg_()
            else:
                part = logps.exp_().mul_(g_logp.neg())
            part.scatter_add_(-1, ids_here[..., None], g_logp)
            if keep is not None:
                part.masked_fill_(~keep[..., None], 0.0)
            out.copy_(part)
        return grad, None, None, None, None


def _chunks(columns: int, *tensors: Tensor | None) -> Iterator[tuple[Any, ...]]:
    """Yield views of ``columns`` positions, from [..., T, V] and [..., T] alike.

    The second tensor has the shape [..., T]; one that is None yields None.
    """
    # Columns rather than flattened positions: shifted logits are not contiguous, and
    # flattening would copy them.
    ids = tensors[1]
    assert ids is not None
    dim = ids.ndim - 1
    parts = [None if t is None else t.split(columns, dim=dim) for t in tensors]
    for index in range(math.ceil(ids.shape[dim] / columns)):
        yield tuple(None if p is None else p[index] for p in parts)


def _log_softmax(
    logits: Tensor, mask: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return log p, and log p with 0 for forbidden tokens (their p log p is 0)."""
    # Each of these passes over [..., columns, V] costs about as much as the softmax.
    scores = logits if mask is None else logits.masked_fill(~mask[..., None], 0.0)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if temperature != 1.0:
        scores = scores / temperature
    logps = torch.log_softmax(scores, dim=-1)  # [..., columns, V]
    if not logps.numel() or (_is_cheap(logps) and logps.min() > -torch.inf):
        return logps, logps
    return logps, logps.masked_fill(logps == -torch.inf, 0.0)


def _is_cheap(tensor: Tensor) -> bool:
    """Return whether looking at values costs less than a pass that may be spared."""
    # Elsewhere the host would wait for the device, at each chunk.
    return tensor.device.type == "cpu"


def _check_ids(ids: Tensor, vocabulary: int) -> None:
    # On an accelerator the caller has checked them; gather refuses others there, too.
    if not ids.numel() or not _is_cheap(ids):
        return
    low, high = torch.stack(torch.aminmax(ids)).tolist()
    if low < 0 or high >= vocabulary:
        raise ValueError(
            f"token_ids spans [{low}, {high}]. Ids must lie in [0, {vocabulary}), the "
            "size of the logits. Mask padding ids with loss_mask, or check that "
            "the tokenizer belongs to the model."
        )
