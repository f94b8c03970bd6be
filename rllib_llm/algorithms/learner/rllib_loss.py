"""RLlib's PPO loss, unmodified, without waiting for an accelerator."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns

from rllib_llm.data.micro_batches import places, read

if TYPE_CHECKING:
    from rllib_llm.algorithms.learner.learner_stats import LearnerStats


class _Recorder:
    """Takes the place of a Learner's metrics and keeps what a loss logs."""

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}

    def log_dict(self, values: dict[str, Any], **kwargs: Any) -> None:
        self.logged.update(values)


def rllib_ppo_loss(
    learner: LearnerStats,
    module_id: str,
    config: Any,
    batch: dict[str, Any],
    fwd_out: dict[str, Any],
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Return RLlib's mean loss over the trained entries, and what it logs, by key.

    RLlib selects them by its mask in each of its means, for which the host waits every
    time. Here they are selected before, by positions that are known on the host, and
    RLlib gets a batch without a mask.

    Args:
        learner: A Learner with RLlib's PPO settings.
        module_id: Policy of the loss.
        config: That policy's config.
        batch: A batch with ``loss_mask``, [B] or [B, T].
        fwd_out: Output of the module's forward pass; ``values``, if the module computes
            them from rows, [B, T].
    """
    mask = batch[Columns.LOSS_MASK]
    where = places(read(batch, Columns.LOSS_MASK), mask.device)
    dims = mask.ndim

    def select(data: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value[where]
            for key, value in data.items()
            if isinstance(value, torch.Tensor) and value.shape[:dims] == mask.shape
        }

    trained = select(batch)
    del trained[Columns.LOSS_MASK]
    metrics, recorder = learner.metrics, _Recorder()
    learner.metrics = recorder
    try:
        with warnings.catch_warnings():
            # RLlib's explained variance has none with a single entry; nobody reads it.
            warnings.filterwarnings("ignore", message=".*degrees of freedom")
            loss = PPOTorchLearner.compute_loss_for_module(
                learner,
                module_id=module_id,
                config=config,
                batch=trained,
                fwd_out=select(fwd_out),
            )
    finally:
        learner.metrics = metrics
    return loss, recorder.logged
