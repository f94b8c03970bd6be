"""Scorer "causal" in Learners: its loss, and the weights of tokens that it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from torch.nn.functional import cross_entropy

from rllib_llm.algorithms.learner.learner_stats import LearnerStats
from rllib_llm.data import columns
from rllib_llm.data.action_labels import Replies
from rllib_llm.losses.causal_weights import causal_weights, spans
from rllib_llm.modules.scorer import SCORER_MODULE
from rllib_llm.transcripts.token_texts import decode_all
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rllib_llm.algorithms.scorer.scorer_settings import ScorerSettings
    from rllib_llm.modules.action_model import ActionModel

# After the authors' code, which gives these no weight.
_PUNCTUATION = frozenset("[](){}:\"',!?;_.")
_PASS_TOKENS = 2**15  # token positions of a pass without gradients


def counted_tokens(tokenizer: PreTrainedTokenizerBase, count: int) -> np.ndarray:
    """Return whether a token has letters, digits or signs of an action. bool [V + 1]

    Special tokens, punctuation and blanks have not; neither has the last entry,
    padding.

    Args:
        tokenizer: Tokenizer of the policy.
        count: Number of its ids, V.
    """
    special = set(tokenizer.all_special_ids)
    texts = [decode_all(tokenizer, [number]) for number in range(count)]
    counted = [
        number not in special and not _PUNCTUATION.issuperset("".join(text.split()))
        for number, text in enumerate(texts)
    ]
    return np.array([*counted, False])


class CausalWeightsMixin(LearnerStats):
    """Mixin of a scorer that learns which tokens of a reply decide its action."""

    _settings: ScorerSettings

    def build(self) -> None:
        """Build the Learner, and the table of tokens that have a weight."""
        super().build()
        if self.config.action_labels is None:
            return
        policy = self.config.get_config_for_module(self.config.trained_module_ids[0])
        tokenizer = policy.chat_renderer().tokenizer
        self._counted = counted_tokens(tokenizer, self._action_model.null_id)

    @property
    def _action_model(self) -> ActionModel:
        model: ActionModel = self.module[SCORER_MODULE].unwrapped().model
        return model

    def _causal_sum(self, part: dict[str, Any]) -> torch.Tensor:
        """Return the summed cross-entropy of the actions of a micro-batch's turns."""
        replies = Replies.of(part, self._action_model.null_id)
        labels = upload(replies.labels, self._device)
        logits = self._logits(upload(replies.ids, self._device))
        loss = cross_entropy(logits, labels, reduction="none")
        is_right = (logits.detach().argmax(dim=1) == labels).float()
        for key, value in (("score_loss", loss), ("action_accuracy", is_right)):
            self._add_stat(SCORER_MODULE, key, value.mean(), len(loss))
        return loss.sum()

    def _count_replies(self, data: dict[str, Any]) -> int:
        return len(Replies.of(data, self._action_model.null_id).labels)

    @torch.no_grad()
    def add_causal_weights(self, batch: dict[str, Any]) -> None:
        """Add the weights of tokens to rows, as the scorer is before the update."""
        replies = Replies.of(batch, self._action_model.null_id)
        ids, labels, number = replies.different()
        weights = np.zeros(ids.shape, np.float32)
        step = max(1, _PASS_TOKENS // max(1, ids.shape[1] ** 2))
        for start in range(0, len(ids), step):
            part = slice(start, start + step)
            weights[part] = self._weights_of(ids[part], labels[part])
        out = np.zeros(tuple(batch[columns.INPUT_IDS].shape), np.float32)
        of_tokens = weights[number[replies.replies], replies.places]
        out[replies.rows, replies.cols] = of_tokens
        batch[columns.CAUSAL_WEIGHTS] = upload(out, self._device)

    def _weights_of(self, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the weights of the tokens of some turns. [N, L]

        Args:
            ids: Their tokens. int64 [N, L]
            labels: Labels of their actions. int64 [N]
        """
        null, (count, length) = self._action_model.null_id, ids.shape
        given = upload(ids, self._device)
        masks = spans(length, self._settings.scorer_span).to(self._device)
        is_token = given != null
        masked = given[:, None].masked_fill(masks, null).flatten(0, 1)  # [N * L, L]
        repeated = is_token.repeat_interleave(length, dim=0)
        of = upload(labels, self._device)[:, None]
        probs = self._logits(given).softmax(dim=1).gather(1, of)[:, 0]
        masked_probs = (
            self._logits(masked, repeated)
            .softmax(dim=1)
            .gather(1, of.repeat_interleave(length, dim=0))
        )
        weights = causal_weights(
            probs,
            masked_probs.view(count, length),
            is_token,
            upload(self._counted[ids], self._device),
        )
        array: np.ndarray = weights.cpu().numpy()
        return array

    def _logits(
        self, ids: torch.Tensor, is_token: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the logits of actions. [N, A]

        Args:
            ids: Tokens of replies. int64 [N, L]
            is_token: False for padding; None: where ids are padding. bool [N, L]
        """
        if is_token is None:
            is_token = ids != self._action_model.null_id
        batch = {columns.INPUT_IDS: ids, columns.ATTENTION_MASK: is_token}
        module = self.module[SCORER_MODULE].unwrapped()
        logits: torch.Tensor = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
        return logits
