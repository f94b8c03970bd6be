"""Value head: one scalar per token position on top of a language model's trunk."""

from __future__ import annotations

import torch
from torch import nn

from rllib_llm.errors import ConfigError


class ValueHead(nn.Module):
    """Maps hidden states to values.

    The last layer starts at zero, so the untrained critic predicts 0. The head computes
    in float32 for any data type of the trunk.

    Args:
        hidden_size: Width of the language model.
        kind: ``"linear"`` or ``"mlp"`` (one hidden layer of the same width).
        detach: Whether to stop the critic's gradient before the trunk.
        trunk: A separate trunk of the critic, trained with the head; None means the
            policy's trunk.
        bias: Whether the last layer adds a constant.
    """

    def __init__(
        self,
        hidden_size: int,
        kind: str = "mlp",
        detach: bool = False,
        trunk: nn.Module | None = None,
        bias: bool = True,
    ):
        super().__init__()
        if kind not in ("linear", "mlp"):
            raise ConfigError(f"value_head={kind!r} must be 'linear' or 'mlp'.")
        # A separate trunk is trained by the value loss, so its hidden states need a
        # gradient.
        self.detach = detach and trunk is None
        self.trunk = trunk
        self.out = nn.Linear(hidden_size, 1, bias=bias)
        # Random initial values would be noise in the first advantages.
        nn.init.zeros_(self.out.weight)
        if bias:
            nn.init.zeros_(self.out.bias)
        self.body: nn.Module = nn.Identity()
        if kind == "mlp":
            self.body = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.GELU())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return one value per position. [B, T, D] -> [B, T]"""
        if self.detach:
            hidden = hidden.detach()
        # The head stays float32 in a bfloat16 model: returns need more than 3 digits.
        hidden = hidden.to(self.out.weight.dtype)
        return self.out(self.body(hidden)).squeeze(-1)
