"""Action distribution over tokens for RLlib's PPO loss.

Its inputs are ``[log-prob of the sampled token, entropy]`` per position. With it, the
unmodified ``PPOTorchLearner.compute_loss_for_module`` is masked token-level PPO.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core.distribution.torch.torch_distribution import TorchDistribution
from ray.rllib.utils.annotations import override

if TYPE_CHECKING:
    import gymnasium as gym


class TokenLogps(TorchDistribution):
    """Log-probability and entropy of tokens that were already sampled.

    Args:
        inputs: ``[..., 0]`` log-probability of the sampled token in nats, ``[..., 1]``
            entropy of the distribution that it was sampled from, in nats. [B, T, 2]
    """

    def __init__(self, inputs: torch.Tensor):
        self.inputs = inputs
        super().__init__()

    @override(TorchDistribution)
    def _get_torch_distribution(self, *args: Any, **kwargs: Any) -> None:
        return None

    @classmethod
    def from_logits(cls, logits: torch.Tensor, **kwargs: Any) -> TokenLogps:
        """Wrap the ``action_dist_inputs`` column. [B, T, 2]"""
        return cls(logits)

    @override(TorchDistribution)
    def logp(self, value: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Return the sampled tokens' log-probabilities; ``value`` is ignored. [B, T]"""
        # RLlib passes the action column; the log-probability of exactly that token was
        # computed in the forward pass, where the logits existed.
        return self.inputs[..., 0]

    @override(TorchDistribution)
    def entropy(self) -> torch.Tensor:
        """Return the per-position entropy in nats. [B, T]"""
        return self.inputs[..., 1]

    @override(TorchDistribution)
    def kl(self, other: TokenLogps, **kwargs: Any) -> torch.Tensor:
        """Estimate KL(self || other) per token that ``self`` has sampled. [B, T]

        Uses the k3 estimator (Schulman, "Approximating KL divergence", 2020):
        ``r - 1 - log r`` with ``r = p_other / p_self``.
        """
        # The exact KL would need both full distributions, [B, T, V]; the sampled token
        # gives an unbiased estimate.
        log_ratio = other.logp(None) - self.logp(None)
        return torch.exp(log_ratio) - 1.0 - log_ratio

    @override(TorchDistribution)
    def sample(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError("Tokens are sampled by a GenerationEngine.")

    @override(TorchDistribution)
    def rsample(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError("Tokens are sampled by a GenerationEngine.")

    @staticmethod
    @override(TorchDistribution)
    def required_input_dim(space: gym.Space, **kwargs: Any) -> int:
        """Return the number of inputs per token."""
        return 2
