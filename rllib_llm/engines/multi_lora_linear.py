"""Linear layers with the same input as one product, with the adapters of all rows.

A batch may hold rows of several policies that share base weights. Their LoRA matrices
stand side by side: ``x A`` is computed for all adapters at once, what is not the row's
own is zeroed, and one product with the stacked ``B`` adds the rest. For the small ranks
of adapters that costs less than taking the batch apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rllib_llm import compat
from rllib_llm.engines.fused_layout import is_plain

# With other dtypes every operation rounds as transformers' own do. Fusing them would be
# more accurate, but the learner is to find the log-probabilities that were sampled.
PRECISE = (torch.float32, torch.float64)


class MultiLoRALinear:
    """One or more linear layers that read the same input.

    Args:
        linears: For each layer, what stands for it in each model: all share the base
            weights of the first model and may have a LoRA adapter of their own.

    Attributes:
        called: Layers that are neither plain nor plainly adapted; they run themselves
            (possible with one model only).
    """

    def __init__(self, linears: Sequence[Sequence[nn.Module]]) -> None:
        """Look at the layers; nothing is copied yet."""
        self._variants = linears
        self._parts = [[compat.lora_parts(v) for v in each] for each in linears]
        firsts = [each[0] for each in linears]
        is_known = [
            is_plain(f) or p[0] for f, p in zip(firsts, self._parts, strict=True)
        ]
        self.called = [
            f for f, known in zip(firsts, is_known, strict=True) if not known
        ]
        self._bases = [
            f.get_base_layer() if parts[0] else f
            for f, parts in zip(firsts, self._parts, strict=True)
        ]
        biases = {getattr(base, "bias", None) is None for base in self._bases}
        self._can_join = not self.called and len(biases) == 1
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._down: Tensor | None = None  # all A, transposed [in, R]
        self._up: Tensor | None = None  # all B times scale, transposed [R, sum of out]
        self._owner: Tensor | None = (
            None  # model of each rank, if there are several [R]
        )

    @property
    def num_bytes(self) -> int:
        """Memory a joined copy takes."""
        if not self._can_join or len(self._bases) == 1:
            return 0
        weights = [base.weight for base in self._bases]
        return sum(w.numel() * w.element_size() for w in weights)

    def prepare(self, *, join: bool) -> None:
        """Copy what is computed with; once per version of the weights.

        Args:
            join: Put several base weights into one matrix.
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

    def __call__(self, x: Tensor, who: Tensor | None) -> Tensor:
        """Return the outputs side by side. [N, sum of output sizes]

        Args:
            x: Inputs. [N, in]
            who: Which model's adapters each input is computed with; None where there
                is one model. [N]
        """
        if self.called:
            return torch.cat([each[0](x) for each in self._variants], dim=-1)
        if self._weight is not None:
            y = functional.linear(x, self._weight, self._bias)
        else:
            y = torch.cat([base(x) for base in self._bases], dim=-1)
        if self._down is None:
            return y
        inner = x.to(self._down.dtype) @ self._down
        if who is not None:
            inner = inner * (who[:, None] == self._owner)
        if y.dtype == self._up.dtype:
            return torch.addmm(y, inner, self._up)
        return (y + inner @ self._up).to(y.dtype)

    def add(self, residual: Tensor, x: Tensor, who: Tensor | None) -> Tensor:
        """Return ``residual + self(x)``. [N, out]"""
        plain = self._weight is not None and self._bias is None and self._down is None
        if plain and x.dtype in PRECISE:
            return torch.addmm(residual, x, self._weight.t())
        return residual + self(x, who)
