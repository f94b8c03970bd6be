"""How far the Learner's log-probabilities are from those recorded while sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.learner.fast_matmul import precision_in_force
from rllib_llm.connectors.learner.micro_batches import micro_batches
from rllib_llm.connectors.learner.rows import Row, build_rows, pad_rows
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """Absolute differences of log-probabilities, in nats.

    Attributes:
        mean: Over sampled tokens.
        largest: Of any of them.
        tokens: How many there are.
    """

    mean: float
    largest: float
    tokens: int


def largest_gap(algo: Any, episodes: Sequence[Any]) -> dict[str, Mismatch]:
    """Score sampled episodes with the Learner's modules; the weights must be equal.

    Args:
        algo: An algorithm whose only Learner is in this process.
        episodes: What its EnvRunner has sampled.

    Returns:
        The gap of each policy that sampled tokens, by ModuleID.
    """
    rows: dict[str, list[Row]] = {}
    for episode in episodes:
        for part in agent_episodes(episode):
            turns = part.get_extra_model_outputs(columns.TURN)
            own = rows.setdefault(turns[0].module_id, [])
            own += build_rows(turns, [0.0] * len(turns), bootstrap=False)
    modules = algo.learner_group._learner.module
    config = algo.config
    gaps = {}
    for module_id, found in rows.items():
        module = modules[module_id].unwrapped()
        with precision_in_force(config.matmul_precision):
            differences = _differences(module, found, config.micro_batch_tokens)
        if len(differences):
            gaps[module_id] = Mismatch(
                float(differences.mean()), float(differences.max()), len(differences)
            )
    return gaps


@torch.no_grad()
def _differences(
    module: Any, rows: Sequence[Row], max_tokens: int | None
) -> torch.Tensor:
    padded = pad_rows(rows, pad_id=0, trained=[True] * len(rows))
    device = next(module.parameters()).device
    batch = {k: torch.as_tensor(v, device=device) for k, v in padded.items()}
    found = []
    for _, part in micro_batches(batch, max_tokens):
        logps = module._forward(part)[Columns.ACTION_DIST_INPUTS][..., 0]
        mask = part[Columns.LOSS_MASK]
        found.append((logps - part[columns.BEHAVIOUR_LOGP])[mask].abs().cpu())
    return torch.cat(found)
