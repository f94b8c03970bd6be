"""MARFT's Learner: PPO's loss per message or token, and updates in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import VF_LOSS_KEY, Learner
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.stored_rows import DENOMINATOR
from rllib_llm.algorithms.ppo.llm_ppo_learner import LLMPPOTorchLearner
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import (
    idle_rows,
    keep,
    micro_batches,
    places,
    read,
    trained_places,
)
from rllib_llm.distributed import equal_passes
from rllib_llm.losses.message_ratios import message_log_ratios, sequential_factors
from rllib_llm.losses.value_losses import critic_loss
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from ray.rllib.policy.sample_batch import MultiAgentBatch

    from rllib_llm.algorithms.marft.marft import MARFTConfig


class MARFTTorchLearner(LLMPPOTorchLearner):
    """PPO over messages (MARFT-A) or tokens (MARFT-T), with one critic for all.

    At the action level RLlib's loss gets one entry per message: ratio, advantage and
    value are at the message's first token, the only one that is not masked.
    """

    config: MARFTConfig

    @override(LLMPPOTorchLearner)
    def build(self) -> None:
        """Build module, optimisers and connectors."""
        self._policy_configs: dict[str, Any] = {}
        super().build()

    @override(Learner)
    def should_module_be_updated(
        self, module_id: str, multi_agent_batch: MultiAgentBatch | None = None
    ) -> bool:
        """Return whether to update a module; a shared critic is always updated."""
        if self._is_critic(module_id):
            return True
        if self.config.update_schedule == "alternate":
            # From the number of updates, so that a resumed run continues in the same
            # place.
            turn = self._updates // self.config.alternate_every
            order = self.config.trained_module_ids
            if module_id in order and module_id != order[turn % len(order)]:
                return False
        return super().should_module_be_updated(module_id, multi_agent_batch)

    @property
    def _updates(self) -> int:
        """Number of updates before this one."""
        return max(0, self._weights_seq_no - 1)

    # Order of updates ----------------------------------------------------------------

    @override(LLMPPOTorchLearner)
    def _minibatches(
        self,
        data: dict[str, dict[str, Any]],
        seeds: Sequence[int],
        minibatch_size: int | None,
        env_steps: int,
    ) -> Iterator[Any]:
        arguments = (seeds, minibatch_size, env_steps)
        if self.config.update_schedule != "sequential":
            yield from super()._minibatches(data, *arguments)
            return
        others = {
            m: d
            for m, d in data.items()
            if self._is_critic(m) or m in self._non_llm_ids
        }
        # Not only those in data: another Learner may have rows of more policies, and
        # all Learners must take the same steps.
        policies = [
            m
            for m in self.config.trained_module_ids
            if self.should_module_be_updated(m)
        ]
        # HAPPO permutes the agents in each update; the seed is equal on all ranks.
        order = np.random.default_rng(self._weights_seq_no).permutation(policies)
        self._changes: list[tuple[torch.Tensor, torch.Tensor]] = []
        for place, module_id in enumerate(order):
            of_policy = {m: data[m] for m in (module_id,) if m in data}
            # The critic and non-LLM modules are updated once, not once per policy.
            first_only = others if place == 0 else {}
            yield from super()._minibatches({**of_policy, **first_only}, *arguments)
            if of_policy or self.is_sharded:
                self._correct_others(data, module_id, order[place + 1 :])

    @torch.no_grad()
    def _correct_others(
        self, data: dict[str, dict[str, Any]], updated: str, rest: np.ndarray
    ) -> None:
        """Multiply the other policies' advantages by the updated policy's ratios.

        HAPPO (Kuba et al. 2022, arXiv:2109.11251): a message is weighted by the
        new-to-old ratios of those already updated in the same joint action. That is a
        round: the n-th turn of every agent, simultaneous or one after the other.
        """
        if not len(rest):
            return
        logp = self._new_logps(updated, data.get(updated))
        if logp is None:
            return
        self._changes.append(self._message_changes(logp, data[updated]))
        for module_id in filter(data.__contains__, rest):
            self._correct(module_id, data[module_id])

    def _correct(self, module_id: str, other: dict[str, Any]) -> None:
        """Apply all changes so far to a policy's advantages."""
        rows, cols = trained_places(other)
        rounds_here = torch.stack(
            [
                other[columns.MULTI_AGENT_EPISODE_INDEX][rows],
                other[columns.TURN_IDS][rows, cols],
            ],
            1,
        )
        changes, rounds = zip(*self._changes, strict=True)
        # Joint actions of changed and of this policy's messages share one numbering.
        _, steps = torch.unique(
            torch.cat([*rounds, rounds_here]), dim=0, return_inverse=True
        )
        is_here = torch.arange(len(steps), device=steps.device) >= len(steps) - len(
            rounds_here
        )
        log_ratios = torch.cat([*changes, changes[0].new_zeros(len(rounds_here))])
        factors = sequential_factors(
            log_ratios,
            steps,
            is_here.long(),
            [0],
            ratio_clip=self.config.sequential_ratio_clip,
            factor_clip=self.config.sequential_factor_clip,
        )[is_here]
        applied = other.setdefault(
            columns.SEQUENTIAL_FACTOR, torch.ones_like(other[Columns.ADVANTAGES])
        )
        # Only the new part of the factor: the earlier one is already applied.
        other[Columns.ADVANTAGES][rows, cols] *= factors / applied[rows, cols]
        applied[rows, cols] = factors
        change = (factors - 1).abs().mean()
        self._add_stat(module_id, "sequential_factor_gap", change, len(factors))

    def _new_logps(
        self, module_id: str, batch: dict[str, Any] | None
    ) -> torch.Tensor | None:
        """Return the log-probabilities after the update. [B, T]; None without rows"""
        logp = None if batch is None else torch.zeros_like(batch[Columns.ACTION_LOGP])
        module = self.module[module_id].unwrapped()
        parts: Iterator[Any] = iter(())
        if batch is not None:
            max_tokens = self.config.micro_batch_tokens
            parts = micro_batches(batch, max_tokens, packing=self.config.packing)
        for pair in equal_passes(parts, self._device, is_sharded=self.is_sharded):
            index, part = pair or (None, idle_rows(self._device))
            scores = module._forward(part)[Columns.ACTION_DIST_INPUTS]
            if logp is not None and index is not None:
                logp[index, : scores.shape[1]] = scores[..., 0]
        return logp

    def _message_changes(
        self, logp: torch.Tensor, batch: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each message's log-ratio [M], and its episode and round [M, 2]."""
        messages, keys = _number_messages(batch)
        log_ratios, _ = message_log_ratios(
            logp,
            batch[Columns.ACTION_LOGP],
            batch[Columns.LOSS_MASK],
            messages,
            len(keys),
        )
        rounds = torch.tensor(keys, device=logp.device).reshape(-1, 3)[:, :2]
        return log_ratios, rounds

    # Loss ----------------------------------------------------------------------------

    @override(LLMPPOTorchLearner)
    def _count_units(self, data: dict[str, Any], config: MARFTConfig) -> float:
        # At the action level the units of the loss are messages.
        if self.config.level == "token":
            return super()._count_units(data, config)
        return float(read(data, columns.MESSAGE_STARTS).sum())

    @override(LLMPPOTorchLearner)
    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: MARFTConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        if self._is_critic(module_id):
            return self._critic_loss(module_id, config, batch, fwd_out)
        if self.config.level == "action":
            batch, fwd_out = self._as_messages(batch, fwd_out)
        if self.config.critic_view:
            config = self._config_without_critic(module_id)
            zeros = torch.zeros_like(batch[Columns.ADVANTAGES])
            # RLlib's loss reads the column even without a critic.
            batch = {**batch, Columns.VALUE_TARGETS: zeros}
        return super().compute_loss_for_module(
            module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
        )

    def _config_without_critic(self, module_id: str) -> Any:
        """Return a policy's config for RLlib's loss without a value term."""
        if module_id not in self._policy_configs:
            config = self.config.get_config_for_module(module_id)
            config = config.copy(copy_frozen=False)
            config.use_critic = False
            self._policy_configs[module_id] = config
        return self._policy_configs[module_id]

    def _as_messages(
        self, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Move the parts of each message's loss to its first token.

        These are its ratio, and the means over its tokens of the entropy, of the
        advantage (importance weights may make its tokens' unequal) and of the log-ratio
        to the reference.
        """
        mask, old = batch[Columns.LOSS_MASK], batch[Columns.ACTION_LOGP]
        scores = fwd_out[Columns.ACTION_DIST_INPUTS]
        messages, keys = _number_messages(batch)
        starts = read(batch, columns.MESSAGE_STARTS) > 0
        where = places(starts, mask.device)
        # Message of each first token [M], in the row-major order of `starts`.
        of_start, zeros = messages[where], torch.zeros_like(old)

        def mean(values: torch.Tensor, other: torch.Tensor, divide: bool = True) -> Any:
            per_message, _ = message_log_ratios(
                values, other, mask, messages, len(keys), length_normalised=divide
            )
            return per_message[of_start]

        def put(into: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return into.index_put(where, values)

        is_mean = self.config.message_logp == "mean"
        # RLlib computes the ratio as exp(logp - old) at each unmasked token: with this
        # value it is the ratio of the message.
        logp = put(old, old[where] + mean(scores[..., 0], old, is_mean))
        entropy = put(zeros, mean(scores[..., 1], zeros))
        advantages = batch[Columns.ADVANTAGES]
        batch = {
            **batch,
            Columns.LOSS_MASK: batch[columns.MESSAGE_STARTS] > 0,
            Columns.ADVANTAGES: put(advantages, mean(advantages, zeros)),
        }
        keep(batch, Columns.LOSS_MASK, starts)
        if columns.REF_LOGP in batch:
            reference = batch[columns.REF_LOGP]
            log_ratio = mean(scores[..., 0], reference)
            batch[columns.REF_LOGP] = put(reference, logp[where] - log_ratio)
        scores = torch.stack([logp, entropy], dim=-1)
        return batch, {**fwd_out, Columns.ACTION_DIST_INPUTS: scores}

    def _critic_loss(
        self,
        module_id: str,
        config: MARFTConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        """Return RLlib's clipped squared error, a mean over messages or tokens."""
        is_valued, mask = read(batch, Columns.LOSS_MASK), batch[Columns.LOSS_MASK]
        if self.config.level == "action":
            is_valued = read(batch, columns.MESSAGE_STARTS) > 0
            mask = batch[columns.MESSAGE_STARTS] > 0
        trained = int(is_valued.sum())
        # Over the messages' first tokens or all tokens. [M] or [N]
        errors = critic_loss(
            fwd_out[columns.VALUES],
            batch[Columns.VALUE_TARGETS],
            mask,
            largest=config.vf_clip_param,
        )[places(is_valued, mask.device)]
        self._add_stat(module_id, VF_LOSS_KEY, errors.mean(), trained)
        return config.vf_loss_coeff * errors.sum() / batch[DENOMINATOR]


def _number_messages(
    batch: dict[str, Any],
) -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
    """Number the messages of a batch of rows.

    Returns:
        Message of each trained token, else 0 [B, T]; and each message's episode, round
        (the number of its agent's turns before) and agent.
    """
    mask = read(batch, Columns.LOSS_MASK)
    rows, cols = np.nonzero(mask)
    keys = np.stack(
        [
            read(batch, columns.MULTI_AGENT_EPISODE_INDEX)[rows],
            read(batch, columns.TURN_IDS)[rows, cols],
            read(batch, columns.AGENT_INDEX)[rows],
        ]
    )
    # Keys of three columns: a message can span rows, and a row holds several. [3, M],
    # [N]
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    messages = np.zeros(mask.shape, np.int64)
    messages[rows, cols] = which.ravel()
    on_device = upload(messages, batch[Columns.LOSS_MASK].device)
    return on_device, [tuple(key) for key in distinct.T.tolist()]
