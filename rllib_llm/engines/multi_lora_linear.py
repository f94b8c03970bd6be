"""Joined linear layers with the LoRA adapters of several models.

A batch may hold rows of several policies that share base weights. Their LoRA matrices
are concatenated: ``x A`` is computed for all adapters at once, the results of other
rows' adapters are set to zero, and one product with the concatenated ``B`` adds the
remainder. For the small ranks of adapters this is faster than splitting the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rllib_llm import compat
from rllib_llm.engines.fused_layout import is_plain

# Operations are fused for these dtypes only. In lower precision fusing would be more
# accurate, but every operation must round as in transformers, so that the Learner
# computes the log-probabilities that were sampled with.
PRECISE = (torch.float32, torch.float64)
_LEAST_ROWS = 16  # those of a tile of the matrix units


def pad_rows(x: Tensor) -> Tensor:
    """Add rows of zeros up to one of few counts, in low precision on a CPU.

    There every product of a new shape is compiled, which takes longer than the product
    itself, and passes have any number of tokens.

    Args:
        x: Inputs of a linear layer. [N, in]

    Returns:
        The inputs, at least [N, in], with at most an eighth more rows or a tile's.
    """
    if x.device.type != "cpu" or x.dtype in PRECISE:
        return x
    step = max(_LEAST_ROWS, 2 ** (len(x).bit_length() - 4))
    return functional.pad(x, (0, 0, 0, -len(x) % step))


class MultiLoRALinear:
    """One or more linear layers that read the same input.

    Args:
        linears: For each layer, its module in each model. All share the base weights
            of the first model and may have a LoRA adapter.

    Attributes:
        called: Layers that are neither plain linear layers nor plain LoRA layers; their
            modules are called (possible with one model only).
    """

    def __init__(self, linears: Sequence[Sequence[nn.Module]]) -> None:
        """Inspect the layers without copying weights."""
        self._variants = linears
        self._parts = [[compat.lora_parts(v) for v in each] for each in linears]
        firsts = [each[0] for each in linears]
        self.called = [
            f
            for f, parts in zip(firsts, self._parts, strict=True)
            if not (is_plain(f) or parts[0])
        ]
        self._bases = [
            f.get_base_layer() if parts[0] else f
            for f, parts in zip(firsts, self._parts, strict=True)
        ]
        # One product needs a bias in all layers or in none.
        biases = {getattr(base, "bias", None) is None for base in self._bases}
        self._can_join = not self.called and len(biases) == 1
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._down: Tensor | None = None  # all A, transposed [in, R]
        self._up: Tensor | None = None  # all B times scale, transposed [R, sum of out]
        # Model of each rank; None with one model. [R]
        self._owner: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of a joined copy, in bytes."""
        if not self._can_join or len(self._bases) == 1:
            return 0
        weights = [base.weight for base in self._bases]
        return sum(w.numel() * w.element_size() for w in weights)

    def prepare(self, *, join: bool) -> None:
        """Copy base weights and adapters, once per version of the weights.

        Args:
            join: Join several base weights into one matrix.
        """
        if join and self._can_join:
            weights = [base.weight for base in self._bases]
            self._weight = torch.cat(weights) if len(weights) > 1 else weights[0]
            biases = [base.bias for base in self._bases]
            if biases[0] is not None:
                self._bias = torch.cat(biases) if len(biases) > 1 else biases[0]
        if not self.called:
            self._stack_adapters()

    def _stack_adapters(self) -> None:
        downs, ups, owners, place = [], [], [], 0
        width = sum(base.weight.shape[0] for base in self._bases)
        for base, parts in zip(self._bases, self._parts, strict=True):
            out = base.weight.shape[0]
            for model, part in enumerate(parts):
                if part is None:
                    continue
                a, b, scale = part
                # Zero outside this layer's columns, so that one product serves all.
                up = b.new_zeros(b.shape[1], width)
                up[:, place : place + out] = b.t() * scale
                downs.append(a)
                ups.append(up)
                owners += [model] * len(a)
            place += out
        if downs:
            self._down, self._up = torch.cat(downs).t().contiguous(), torch.cat(ups)
        if len(self._variants[0]) > 1:
            self._owner = torch.tensor(owners, device=self._bases[0].weight.device)

    def __call__(self, x: Tensor, adapters: Tensor | None) -> Tensor:
        """Return the concatenated outputs. [N, sum of output sizes]

        Args:
            x: Inputs. [N, in]
            adapters: Index of the model whose adapters each input uses; None with one
                model. [N]
        """
        if self.called:
            return torch.cat([each[0](x) for each in self._variants], dim=-1)
        padded = pad_rows(x)
        if self._weight is not None:
            y = functional.linear(padded, self._weight, self._bias)[: len(x)]
        else:
            y = torch.cat([base(padded)[: len(x)] for base in self._bases], dim=-1)
        if self._down is None or self._up is None:
            return y
        inner = x.to(self._down.dtype) @ self._down
        if adapters is not None:
            inner = inner * (adapters[:, None] == self._owner)
        if y.dtype == self._up.dtype:
            return torch.addmm(y, inner, self._up)
        return (y + inner @ self._up).to(y.dtype)

    def add(self, residual: Tensor, x: Tensor, adapters: Tensor | None) -> Tensor:
        """Return ``residual + self(x)``. [N, out]"""
        weight, is_plain = self._weight, self._bias is None and self._down is None
        if weight is not None and is_plain and x.dtype in PRECISE:
            return torch.addmm(residual, x, weight.t())
        return residual + self(x, adapters)
