"""Train-inference mismatch: differences of the Learner's log-probabilities."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.learner.fast_layers import precision_in_force
from rllib_llm.connectors.learner.token_rows import Row, build_rows, pad_rows
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes
from rllib_llm.data.micro_batches import micro_batches

if TYPE_CHECKING:
    from rllib_llm.modules.llm_rl_module import LLMRLModule
    from rllib_llm.types import LLMAlgorithm, LLMConfig


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """Absolute differences of log-probabilities, in nats.

    Attributes:
        mean: Mean over sampled tokens.
        largest: Maximum over sampled tokens.
        tokens: Number of sampled tokens.
    """

    mean: float
    largest: float
    tokens: int


def mismatch_by_module(
    algo: LLMAlgorithm, episodes: Sequence[Any]
) -> dict[str, Mismatch]:
    """Return the mismatch of each policy that sampled tokens, by ModuleID.

    Learner and EnvRunner must have the same weights.

    Args:
        algo: An algorithm whose only Learner is in this process.
        episodes: Episodes that its EnvRunner sampled.
    """
    rows: dict[str, list[Row]] = {}
    for episode in episodes:
        for part in agent_episodes(episode):
            turns = part.get_extra_model_outputs(columns.TURN)
            module_rows = rows.setdefault(turns[0].module_id, [])
            module_rows += build_rows(turns, [0.0] * len(turns), bootstrap=False)
    modules = algo.learner_group._learner.module
    config = algo.config
    mismatches = {}
    for module_id, module_rows in rows.items():
        module = modules[module_id].unwrapped()
        with precision_in_force(config.matmul_precision):
            differences = _differences(module, module_rows, config)
        if len(differences):
            mismatches[module_id] = Mismatch(
                float(differences.mean()), float(differences.max()), len(differences)
            )
    return mismatches


@torch.no_grad()
def _differences(
    module: LLMRLModule, rows: Sequence[Row], config: LLMConfig
) -> torch.Tensor:
    padded = pad_rows(rows, pad_id=0, trained=[True] * len(rows))
    device = next(module.parameters()).device
    batch = {k: torch.as_tensor(v, device=device) for k, v in padded.items()}
    differences = []
    max_tokens, packing = config.micro_batch_tokens, config.packing
    for _, part in micro_batches(batch, max_tokens, packing=packing):
        logps = module._forward(part)[Columns.ACTION_DIST_INPUTS][..., 0]
        mask = part[Columns.LOSS_MASK]
        differences.append((logps - part[columns.BEHAVIOUR_LOGP])[mask].abs().cpu())
    return torch.cat(differences)
