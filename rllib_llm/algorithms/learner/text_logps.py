"""Log-probabilities of given texts, outside of updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rllib_llm.connectors.learner.score_rows import ScoreRows
from rllib_llm.connectors.learner.token_rows import TokenRows
from rllib_llm.connectors.pipelines import row_settings
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import read

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class TextLogpsMixin:
    """Mixin of Learners that tell the likelihood of texts under the policy."""

    if TYPE_CHECKING:
        config: Any
        module: Any
        _device: Any
        _critic_id: str | None

        def in_update(self) -> AbstractContextManager[None]: ...

    @torch.no_grad()
    def text_logps(self, shard: Sequence[Any]) -> list[np.ndarray]:
        """Return the log-probabilities of each episode's trained tokens. [T] each

        At the temperature of sampling, by the policy's current weights. All Learners
        must be called at once: sharded layers are gathered from all of them.

        Args:
            shard: Episodes of one agent with Turn records, whose texts need not have
                been sampled.
        """
        settings = dataclasses.replace(
            row_settings(self.config),
            has_critic=False,
            row_per_turn=False,
            pattern_mask=None,
        )
        rows = TokenRows({DEFAULT_MODULE_ID: settings})
        score = ScoreRows(
            device=self._device,
            old_logps="learner",
            values=(),
            critic=self._critic_id,
            references=(),
            max_tokens=self.config.micro_batch_tokens,
            packing=self.config.packing,
            is_sharded=self.config.sharding is not None,
        )
        batch = rows(rl_module=self.module, batch={}, episodes=list(shard))
        with self.in_update():
            batch = score(rl_module=self.module, batch=batch, episodes=list(shard))
        if DEFAULT_MODULE_ID not in batch:
            return []
        data = batch[DEFAULT_MODULE_ID]
        logps = data[Columns.ACTION_LOGP].cpu().numpy()
        mask, owners = read(data, Columns.LOSS_MASK), read(data, columns.EPISODE_INDEX)
        return [
            logps[owners == index][mask[owners == index]] for index in range(len(shard))
        ]
