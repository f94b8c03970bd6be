"""RLModules of turn critics: values of places before turns, and of turns there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network, update_target_network
from ray.rllib.core.rl_module.apis.target_network_api import TargetNetworkAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override
from torch import nn

from rllib_llm.data import columns
from rllib_llm.data.turn_ends import TurnEnds
from rllib_llm.modules.llm_rl_module import LLMRLModule
from rllib_llm.modules.reward_model import freeze_output
from rllib_llm.modules.value_head import ValueHead
from rllib_llm.upload import upload


class PlaceValueRLModule(LLMRLModule):
    """Reads V from the hidden state of the last token before each turn."""

    @override(LLMRLModule)
    def setup(self) -> None:
        super().setup()
        freeze_output(self.lm)

    @override(TorchRLModule)
    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return ``vf_preds`` of every turn, in the order of :class:`TurnEnds`. [M]"""
        return self._of_turns(batch, self.lm.base_model, self.value_head, ())

    def _of_turns(
        self,
        batch: Mapping[str, Any],
        trunk: nn.Module,
        of_place: nn.Module,
        of_turn: Iterable[nn.Module],
    ) -> dict[str, Any]:
        """Return V [M], and Q [C, M] of every head."""
        ends, device = TurnEnds.of(batch), batch[columns.INPUT_IDS].device
        with self._autocast(device):
            hidden = self._row_hidden(trunk, batch)
        packed = batch.get(columns.PACKED_ROWS)

        def at(cols: np.ndarray) -> torch.Tensor:
            where = upload(np.stack([ends.rows, cols]), device)
            rows, cols = where if packed is None else packed.places(*where)
            return hidden[rows, cols]

        values = [head(at(ends.cols)) for head in of_turn]
        return {
            # A prompt precedes every turn.
            Columns.VF_PREDS: of_place(at(ends.firsts - 1)),
            columns.QF_PREDS: torch.stack(values) if values else None,
            Columns.EMBEDDINGS: None,
        }


class TurnCriticRLModule(PlaceValueRLModule, TargetNetworkAPI):
    """Reads also Q from the last token of each turn, and has a target network.

    ``model_config["num_q"]`` is the number of estimates of Q. They start at 0 with
    different random features, so that they do not stay equal.
    """

    @override(LLMRLModule)
    def setup(self) -> None:
        super().setup()
        width = self.lm.config.get_text_config().hidden_size
        with torch.random.fork_rng():
            torch.manual_seed(self.model_config["init_seed"])
            heads = [ValueHead(width) for _ in range(self.model_config["num_q"])]
        self.q_heads = nn.ModuleList(heads)
        self.make_target_networks()

    @override(TargetNetworkAPI)
    def make_target_networks(self) -> None:
        self.target_trunk = make_target_network(self.lm.base_model)
        self.target_value_head = make_target_network(self.value_head)
        self.target_q_heads = make_target_network(self.q_heads)

    @override(TargetNetworkAPI)
    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [
            (self.lm.base_model, self.target_trunk),
            (self.value_head, self.target_value_head),
            (self.q_heads, self.target_q_heads),
        ]

    def update_targets(self, tau: float) -> None:
        """Move the target network towards the other: ``tau`` of it, 1 - tau of its own.

        Args:
            tau: In (0, 1].
        """
        with torch.no_grad():
            for main, target in self.get_target_network_pairs():
                update_target_network(main_net=main, target_net=target, tau=tau)

    @override(TorchRLModule)
    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return ``vf_preds`` [M] and ``qf_preds`` [C, M] of every turn."""
        return self._of_turns(batch, self.lm.base_model, self.value_head, self.q_heads)

    @override(TargetNetworkAPI)
    @torch.no_grad()
    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return them of the target network."""
        return self._of_turns(
            batch, self.target_trunk, self.target_value_head, self.target_q_heads
        )
