"""MARFT's learner: PPO's loss per message or per token, policies in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import VF_LOSS_KEY, Learner
from ray.rllib.utils.annotations import override

from rllib_llm import columns
from rllib_llm.algorithms.learner import DENOMINATOR
from rllib_llm.algorithms.ppo.llm_ppo_learner import LLMPPOTorchLearner
from rllib_llm.connectors.learner.micro_batches import micro_batches
from rllib_llm.objectives.sequential import message_log_ratios


class MARFTTorchLearner(LLMPPOTorchLearner):
    """PPO over messages (MARFT-A) or tokens (MARFT-T), with one critic for all.

    At the action level RLlib's loss sees one entry per message: its ratio, advantage
    and value stand at the message's first token, which alone is masked in.
    """

    @override(LLMPPOTorchLearner)
    def build(self) -> None:
        """Build module, optimisers and connectors."""
        self._policy_configs: dict[str, Any] = {}
        super().build()

    @override(Learner)
    def should_module_be_updated(
        self, module_id: str, multi_agent_batch: Any = None
    ) -> bool:
        """A common critic always learns; policies in turn if so scheduled."""
        if self._is_critic(module_id):
            return True
        if self.config.update_schedule == "alternate":
            turn = self._updates // self.config.alternate_every
            order = self.config.trained_module_ids
            if module_id != order[turn % len(order)]:
                return False
        return super().should_module_be_updated(module_id, multi_agent_batch)

    @property
    def _updates(self) -> int:
        """Updates before this one."""
        return max(0, self._weights_seq_no - 1)

    # Order of updates ----------------------------------------------------------------

    @override(LLMPPOTorchLearner)
    def _minibatches(
        self,
        data: dict[str, dict[str, Any]],
        num_epochs: int,
        minibatch_size: int | None,
        env_steps: int,
    ) -> Iterator[Any]:
        settings = (num_epochs, minibatch_size, env_steps)
        if self.config.update_schedule != "sequential":
            yield from super()._minibatches(data, *settings)
            return
        critic = {m: d for m, d in data.items() if self._is_critic(m)}
        # Not only those in data: another Learner may have rows of more policies.
        policies = [
            m
            for m in self.config.trained_module_ids
            if self.should_module_be_updated(m)
        ]
        order = np.random.default_rng(self._weights_seq_no).permutation(policies)
        for place, module_id in enumerate(order):
            chosen = {m: data[m] for m in (module_id,) if m in data}
            also = critic if place == 0 else {}
            yield from super()._minibatches({**chosen, **also}, *settings)
            if chosen:
                self._correct_others(data, module_id, order[place + 1 :])

    @torch.no_grad()
    def _correct_others(
        self, data: dict[str, dict[str, Any]], updated: str, rest: np.ndarray
    ) -> None:
        """Multiply the others' advantages by what the updated policy's turns changed.

        HAPPO (Kuba et al. 2022, arXiv:2109.11251): a message weighs by the new-to-old
        ratios of those already updated in the same joint action, which is a round: the
        n-th turn of every agent, whether they speak at once or one after the other.
        """
        if not len(rest):
            return
        config, batch = self.config, data[updated]
        ratios = self._round_ratios(updated, batch)
        low = 1 - config.sequential_factor_clip
        high = 1 + config.sequential_factor_clip
        for module_id in filter(data.__contains__, rest):
            other = data[module_id]
            rows, cols = other[Columns.LOSS_MASK].nonzero(as_tuple=True)
            keys = _round_keys(other, rows, cols)
            found = torch.tensor([ratios.get(k, 1.0) for k in keys], device=rows.device)
            product = other.setdefault(
                columns.SEQUENTIAL_FACTOR, torch.ones_like(other[Columns.ADVANTAGES])
            )
            before = product[rows, cols].clamp(low, high)
            product[rows, cols] *= found
            after = product[rows, cols].clamp(low, high)
            other[Columns.ADVANTAGES][rows, cols] *= after / before
            change = (after - 1).abs().mean()
            self._add_stat(module_id, "sequential_factor_gap", change, 1.0)

    def _round_ratios(
        self, module_id: str, batch: dict[str, Any]
    ) -> dict[tuple[int, int], float]:
        """Return the clipped length-normalised ratio of each round's messages."""
        logp = torch.zeros_like(batch[Columns.ACTION_LOGP])
        module = self.module[module_id].unwrapped()
        for index, part in micro_batches(batch, self.config.micro_batch_tokens):
            width = part[columns.INPUT_IDS].shape[1]
            scores = module._forward(part)[Columns.ACTION_DIST_INPUTS]
            logp[index, :width] = scores[..., 0]
        messages, keys = _number_messages(batch)
        log_ratios, _ = message_log_ratios(
            logp,
            batch[Columns.ACTION_LOGP],
            batch[Columns.LOSS_MASK],
            messages,
            len(keys),
        )
        clip = self.config.sequential_ratio_clip
        ratios = log_ratios.exp().clamp(1 - clip, 1 + clip).tolist()
        found: dict[tuple[int, int], float] = {}
        for (joint, turn, _), ratio in zip(keys, ratios, strict=True):
            found[joint, turn] = found.get((joint, turn), 1.0) * ratio
        return found

    # Loss ----------------------------------------------------------------------------

    @override(LLMPPOTorchLearner)
    def _count_units(self, data: dict[str, Any], config: Any) -> float:
        if self.config.level == "token":
            return super()._count_units(data, config)
        return float(data[columns.MESSAGE_STARTS].sum())

    @override(LLMPPOTorchLearner)
    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: Any,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        if self._is_critic(module_id):
            return self._critic_loss(module_id, config, batch, fwd_out)
        if self.config.level == "action":
            batch, fwd_out = self._as_messages(batch, fwd_out)
        if self.config.critic_view:
            config = self._config_without_critic(module_id)
            nothing = torch.zeros_like(batch[Columns.ADVANTAGES])
            batch = {**batch, Columns.VALUE_TARGETS: nothing}
        return super().compute_loss_for_module(
            module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
        )

    def _config_without_critic(self, module_id: str) -> Any:
        """Return a policy's config for RLlib's loss; its values are elsewhere."""
        if module_id not in self._policy_configs:
            config = self.config.get_config_for_module(module_id)
            config = config.copy(copy_frozen=False)
            config.use_critic = False
            self._policy_configs[module_id] = config
        return self._policy_configs[module_id]

    def _as_messages(
        self, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Put what a message's loss is made of at its first token.

        Its ratio, and the means over its tokens of the entropy, of the advantage (which
        importance weights may have made unequal) and of the log-ratio to the reference.
        """
        mask, old = batch[Columns.LOSS_MASK], batch[Columns.ACTION_LOGP]
        scores = fwd_out[Columns.ACTION_DIST_INPUTS]
        messages, keys = _number_messages(batch)
        starts = batch[columns.MESSAGE_STARTS] > 0
        at, zeros = messages[starts], torch.zeros_like(old)

        def mean(values: torch.Tensor, less: torch.Tensor, divide: bool = True) -> Any:
            found, _ = message_log_ratios(
                values, less, mask, messages, len(keys), length_normalised=divide
            )
            return found[at]

        def put(into: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return into.index_put((starts,), values)

        is_mean = self.config.message_logp == "mean"
        logp = put(old, old[starts] + mean(scores[..., 0], old, is_mean))
        entropy = put(zeros, mean(scores[..., 1], zeros))
        advantages = batch[Columns.ADVANTAGES]
        batch = {
            **batch,
            Columns.LOSS_MASK: starts,
            Columns.ADVANTAGES: put(advantages, mean(advantages, zeros)),
        }
        if columns.REF_LOGP in batch:
            reference = batch[columns.REF_LOGP]
            apart = mean(scores[..., 0], reference)
            batch[columns.REF_LOGP] = put(reference, logp[starts] - apart)
        scores = torch.stack([logp, entropy], dim=-1)
        return batch, {**fwd_out, Columns.ACTION_DIST_INPUTS: scores}

    def _critic_loss(
        self,
        module_id: str,
        config: Any,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """Return RLlib's clipped squared error, a mean over messages or tokens."""
        mask = batch[Columns.LOSS_MASK]
        if self.config.level == "action":
            mask = batch[columns.MESSAGE_STARTS] > 0
        trained = int(mask.sum())
        error = fwd_out[columns.VALUES] - batch[Columns.VALUE_TARGETS]
        square = error[mask].square().clamp(0, config.vf_clip_param)
        self._add_stat(module_id, VF_LOSS_KEY, square.mean(), trained)
        return config.vf_loss_coeff * square.sum() / batch[DENOMINATOR]


def _number_messages(
    batch: dict[str, Any],
) -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
    """Number the messages of a batch of rows.

    Returns:
        Message of each trained token, else 0 [B, T]; and of each message its episode,
        round (how many turns its agent has taken before) and agent.
    """
    mask = batch[Columns.LOSS_MASK]
    rows, cols = mask.nonzero(as_tuple=True)
    keys = torch.stack(
        [
            batch[columns.JOINT_INDEX][rows],
            batch[columns.TURN_IDS][rows, cols],
            batch[columns.AGENT_INDEX][rows],
        ]
    )
    distinct, which = torch.unique(keys, dim=1, return_inverse=True)
    messages = torch.zeros_like(batch[columns.TURN_IDS])
    messages[rows, cols] = which
    return messages, [tuple(key) for key in distinct.t().tolist()]


def _round_keys(
    batch: dict[str, Any], rows: torch.Tensor, cols: torch.Tensor
) -> list[tuple[int, int]]:
    joint = batch[columns.JOINT_INDEX][rows]
    rounds = batch[columns.TURN_IDS][rows, cols]
    return [tuple(key) for key in torch.stack([joint, rounds], 1).tolist()]
