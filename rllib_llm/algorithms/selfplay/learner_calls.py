"""Picklable calls to Learners for the league."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data import columns
from rllib_llm.data.types import Message
from rllib_llm.weights import copy_into

if TYPE_CHECKING:
    from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
    from rllib_llm.modules.llm_rl_module import LLMRLModule


@dataclasses.dataclass(frozen=True)
class Freeze:
    """Copy a policy's weights into another one; under LoRA the adapters only.

    Attributes:
        source: ModuleID of the policy in training.
        slot: ModuleID of the frozen policy.
    """

    source: str
    slot: str

    def __call__(self, learner: LLMLearnerMixin) -> None:
        """Copy the weights on one Learner."""
        source, target = (
            learner.module[m].unwrapped().shared_tensors(inference_only=True)
            for m in (self.source, self.slot)
        )
        copy_into(target, source, f"policy {self.slot}")


@dataclasses.dataclass(frozen=True)
class ScoreWords:
    """Log-probabilities of words as complete replies (``WordLogProbs``).

    The words are tokenised as in replies, and the distribution is the sampling one (at
    the training temperature).

    Attributes:
        module_id: The policy.
        conversations: Chat messages, from the first user message to the last.
        words: The words of each conversation.
    """

    module_id: str
    conversations: Sequence[list[Message]]
    words: Sequence[list[str]]

    def __call__(self, learner: LLMLearnerMixin) -> list[list[float]]:
        """Return the log-probabilities on one Learner, in nats."""
        config = learner.config.get_config_for_module(self.module_id)
        renderer = config.chat_renderer()
        rows = [
            (prompt, renderer.encode_reply(word))
            for messages, words in zip(self.conversations, self.words, strict=True)
            for prompt in [prompt_ids(renderer, messages, config.system_prompt)]
            for word in words
        ]
        # Rows of a pass are padded to the longest, hence the budget is in its length.
        longest = max(len(prompt) + len(reply) for prompt, reply in rows)
        size = max(1, (config.micro_batch_tokens or len(rows) * longest) // longest)
        module, scores = learner.module[self.module_id].unwrapped(), []
        for start in range(0, len(rows), size):
            scores += _score(module, rows[start : start + size], learner.device)
        counts = np.cumsum([len(words) for words in self.words])[:-1]
        return [part.tolist() for part in np.split(np.asarray(scores), counts)]


def prompt_ids(
    renderer: ChatRenderer, messages: list[Message], system_prompt: str | None
) -> list[int]:
    """Return the ids before the reply to ``messages``, as in a played episode."""
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    shown = [*system, messages[0]]
    ids = renderer.first(shown)
    for reply, observation in zip(messages[1::2], messages[2::2], strict=True):
        # As in an episode: earlier replies are tokens, and prompts are deltas after
        # them.
        ids += renderer.encode_reply(reply["content"])
        shown += [reply, observation]
        prompt = renderer.next(shown, ids, last_sampled_id=ids[-1])
        ids = [*(ids if prompt.extends else []), *prompt.ids]
    return ids


def _score(
    module: LLMRLModule, rows: list[tuple[list[int], list[int]]], device: torch.device
) -> list[float]:
    """Return the summed log-probability of each reply after its prompt. [B]"""
    size = (len(rows), max(len(prompt) + len(reply) for prompt, reply in rows))
    ids, mask = np.zeros(size, np.int64), np.zeros(size, bool)
    for i, (prompt, reply) in enumerate(rows):
        end = len(prompt) + len(reply)
        ids[i, :end] = [*prompt, *reply]
        # The reply only, with its end-of-turn token: a word is a complete reply.
        mask[i, len(prompt) : end] = True
    batch = {
        columns.INPUT_IDS: torch.as_tensor(ids, device=device),
        columns.ATTENTION_MASK: torch.ones(size, dtype=torch.bool, device=device),
        Columns.LOSS_MASK: torch.as_tensor(mask, device=device),
    }
    with torch.no_grad():
        scores = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    # log p of a text is the sum over its tokens; masked positions are 0.
    return scores[..., 0].double().sum(dim=1).tolist()
