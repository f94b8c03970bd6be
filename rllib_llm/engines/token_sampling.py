"""Sampling of the next token for a batch of requests, each with its own settings.

Each token uses one uniform number, drawn from the request's seed, and the inverse of
the cumulative distribution. The sampled tokens therefore do not depend on the other
requests of the batch, nor on any global random state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rllib_llm.engines.base import SamplingParams
from rllib_llm.upload import upload

_ALL = 2**62  # of a vocabulary of any size


def draw_uniforms(seed: int, count: int) -> np.ndarray:
    """Return the first random numbers of a request.

    Args:
        seed: The request's seed.
        count: Number of values; a longer draw starts with the shorter one.

    Returns:
        Uniform numbers in [0, 1). float64 [count]
    """
    return np.random.Generator(np.random.Philox(seed)).random(count)


class BatchSampler:
    """Samples one token per row, repeatedly for the same rows.

    Args:
        params: Sampling parameters of each row. [B]
        device: Device of the logits.
    """

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        """Convert the settings to tensors once."""
        scale = [p.temperature or 1.0 for p in params]
        self._scale: Tensor | None = None
        if any(t != 1.0 for t in scale):
            self._scale = upload(np.array(scale, np.float32), device)[:, None]
        is_cut = [
            p.temperature > 0.0 and (p.top_k > 0 or p.top_p < 1.0) for p in params
        ]
        self._params, self._device = params, device
        self._cut_rows: Tensor | None = None
        if any(is_cut):
            cut = [p for p, has_cut in zip(params, is_cut, strict=True) if has_cut]
            self._cut_rows = upload(np.flatnonzero(is_cut), device)
            self._top_k = upload(np.array([p.top_k or _ALL for p in cut]), device)
            # top_p = 1.0 must keep all: a rounded cumulative sum may reach 1 too early.
            top_p = [p.top_p if p.top_p < 1.0 else 2.0 for p in cut]
            self._top_p = upload(np.array(top_p, np.float32), device)
        greedy = [p.temperature == 0.0 for p in params]
        self._all_greedy = all(greedy)
        self._greedy: Tensor | None = None
        if any(greedy):
            self._greedy = upload(np.array(greedy), device)

    def repeated(self, counts: np.ndarray) -> BatchSampler:
        """Return a sampler of several tokens per row.

        Args:
            counts: Number of tokens of each row. int64 [B]
        """
        if self._scale is None and self._cut_rows is None and self._greedy is None:
            return self  # all rows have the default settings
        rows = np.repeat(np.arange(len(counts)), counts)
        return BatchSampler([self._params[row] for row in rows], self._device)

    def logps(self, logits: Tensor) -> Tensor:
        """Return log-probabilities after temperature, top-k and top-p.

        Args:
            logits: Next-token logits, any float type. [B, V]

        Returns:
            Log-probabilities, -inf for excluded tokens; the probabilities of each row
            sum to one. Greedy rows have temperature 1 without top-k and top-p.
            float32 [B, V]
        """
        logits = logits.float()
        if self._scale is not None:
            logits = logits / self._scale
        logps = torch.log_softmax(logits, dim=-1)
        if self._cut_rows is not None:
            rows = self._cut_rows
            logps[rows] = _cut_tails(logps[rows], self._top_k, self._top_p)
        return logps

    def __call__(
        self, logits: Tensor, uniforms: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sample one token per row.

        Args:
            logits: Next-token logits. [B, V]
            uniforms: One number in [0, 1) per row; unused by greedy rows. float64 [B]

        Returns:
            Tokens, int64 [B], and their log-probabilities under the distribution of
            :meth:`logps`, float32 [B].
        """
        logps = self.logps(logits)  # [B, V]
        if self._all_greedy:
            tokens = logps.argmax(dim=-1)
        else:
            tokens = _invert_cdf(logps, uniforms)
            if self._greedy is not None:
                tokens = torch.where(self._greedy, logps.argmax(dim=-1), tokens)
        chosen = logps.gather(1, tokens[:, None])[:, 0]
        # One copy to the host instead of two; float64 holds ids and log-probabilities
        # exactly.
        both = torch.stack((tokens.double(), chosen.double())).cpu().numpy()
        return both[0].astype(np.int64), both[1].astype(np.float32)


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return the smallest sets of most likely tokens with probability ``top_p``.

    Args:
        logits: Next-token logits, any float type. [B, V]
        top_p: Probability, in (0, 1).

    Returns:
        bool [B, V]
    """
    logps = torch.log_softmax(logits.float(), dim=-1)
    everything = torch.full((len(logps),), _ALL, device=logps.device)
    share = torch.full((len(logps),), top_p, device=logps.device)
    return _cut_tails(logps, everything, share) > -torch.inf


def _invert_cdf(logps: Tensor, uniforms: np.ndarray) -> Tensor:
    """Return the first token whose cumulative probability exceeds the uniform. [B]."""
    # float64: in float32 the sum over a large vocabulary loses rare tokens.
    cdf = logps.exp().cumsum(dim=-1, dtype=torch.float64)  # [B, V]
    total = cdf[:, -1]
    # total * (1 - 2**-53) can round up to the total, which selects the index after the
    # last token with positive probability; total * (1 - 2**-52) cannot.
    below_one = np.minimum(uniforms, 1.0 - 2.0**-52)
    target = total * upload(below_one, cdf.device)
    tokens = torch.searchsorted(cdf, target[:, None], right=True)[:, 0]
    # A row of NaN gives an index past the end. The clamp keeps it valid, and the NaN
    # log-probability makes the caller fail.
    return tokens.clamp_(max=logps.shape[1] - 1)


def _cut_tails(logps: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Keep the top-k, then the top-p tokens of each row and renormalise. [B, V]."""
    device, vocab = logps.device, logps.shape[1]
    ordered, order = logps.sort(dim=-1, descending=True, stable=True)
    keep = torch.arange(vocab, device=device) < top_k[:, None]
    probs = ordered.exp() * keep
    before = probs.cumsum(dim=-1) - probs  # mass of the more likely tokens
    keep &= before < top_p[:, None] * probs.sum(dim=-1, keepdim=True)
    ordered = ordered.masked_fill(~keep, -torch.inf)
    cut = torch.empty_like(logps).scatter_(1, order, ordered)
    return torch.log_softmax(cut, dim=-1)
