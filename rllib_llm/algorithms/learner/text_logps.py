"""Log-probabilities of given texts and values of places, outside of updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rllib_llm.connectors.learner.score_rows import ScoreRows
from rllib_llm.connectors.learner.token_rows import RowSettings, TokenRows
from rllib_llm.connectors.pipelines import row_settings
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import read
from rllib_llm.data.turn_ends import TurnEnds

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class TextLogpsMixin:
    """Mixin of Learners that score given texts with the policy's current weights.

    All Learners must be called at once: sharded layers are gathered from all of them.
    """

    if TYPE_CHECKING:
        config: Any
        module: Any
        _device: Any
        _critic_id: str | None

        def in_update(self) -> AbstractContextManager[None]: ...

    def text_logps(self, shard: Sequence[Any]) -> list[np.ndarray]:
        """Return the log-probabilities of each episode's trained tokens. [T] each

        At the temperature of sampling.

        Args:
            shard: Episodes of one agent with Turn records, whose texts need not have
                been sampled.
        """
        data = self._scored_rows(shard, old_logps="learner")
        if data is None:
            return []
        logps = data[Columns.ACTION_LOGP].cpu().numpy()
        mask, owners = read(data, Columns.LOSS_MASK), read(data, columns.EPISODE_INDEX)
        return [
            logps[owners == index][mask[owners == index]] for index in range(len(shard))
        ]

    def place_values(self, shard: Sequence[Any]) -> list[np.ndarray]:
        """Return the value head's estimate before each turn of episodes. [H] each

        It is that before the turn's first token, as GAE reads it: the return from there
        on.

        Args:
            shard: Whole episodes of one agent, of a policy with a value head.
        """
        data = self._scored_rows(shard, values=(DEFAULT_MODULE_ID,))
        if data is None:
            return []
        places = data[columns.VALUES]
        if self.config.value_loss == "bce":
            places = places.sigmoid()
        ends = TurnEnds.of(data)
        of_turns = places.double().cpu().numpy()[ends.rows, ends.firsts]
        # An episode's turns may be in several rows.
        order = np.lexsort((ends.turns, ends.episodes))
        counts = np.bincount(ends.episodes, minlength=len(shard))
        return np.split(of_turns[order], np.cumsum(counts)[:-1])

    @torch.no_grad()
    def _scored_rows(
        self,
        shard: Sequence[Any],
        *,
        old_logps: str = "engine",
        values: Collection[str] = (),
        references: Collection[str] = (),
        settings: RowSettings | None = None,
        module_id: str = DEFAULT_MODULE_ID,
    ) -> dict[str, Any] | None:
        """Return a policy's rows of episodes with scores; None without episodes."""
        settings = settings or dataclasses.replace(
            row_settings(self.config),
            has_critic=False,
            row_per_turn=False,
            pattern_mask=None,
        )
        rows = TokenRows({module_id: settings})
        score = ScoreRows(
            device=self._device,
            old_logps=old_logps,
            values=values,
            critic=self._critic_id,
            references=references,
            max_tokens=self.config.micro_batch_tokens,
            packing=self.config.packing,
            is_sharded=self.config.sharding is not None,
        )
        batch = rows(rl_module=self.module, batch={}, episodes=list(shard))
        with self.in_update():
            batch = score(rl_module=self.module, batch=batch, episodes=list(shard))
        scored: dict[str, Any] | None = batch.get(module_id)
        return scored
