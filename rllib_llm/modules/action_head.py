"""Action head: policy over the environment's admissible actions (GLAM, TWOSOME).

The score of action ``a`` with the tokens ``a_1 .. a_n`` in the context ``c`` is
``s(a) = w(a) * sum_i log p(a_i | c, a_1 .. a_{i-1})``, and the policy is
``softmax(s / temperature)`` over the admissible actions: ``w = 1`` in GLAM (Carta et
al. 2023, arXiv:2302.02662), one over the number of tokens or of words in TWOSOME (Tan
et al. 2024, arXiv:2401.14151). The last token of an action is its end of turn.

A row holds a conversation followed by the rejected actions of its turns
(:class:`rllib_llm.connectors.learner.rejected_actions.Choices`). Each rejected action
attends to the conversation before its turn and to itself, at the positions that it
would have had there. One forward pass thus computes the same as one pass per action.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from torch import Tensor

from rllib_llm import compat
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import read
from rllib_llm.errors import ModelError
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from transformers import PretrainedConfig

NORMS = ("sum", "token", "word")
_LAYER_TYPES = {"full_attention", "sliding_attention"}
_ATTENTION = ("sdpa", "eager", compat.FLOAT32_ATTENTION)
_INT_FIELDS = ("rows", "columns", "before", "starts", "turns", "candidates")


def score_weight(norm: str, num_tokens: int, text: str) -> float:
    """Return the weight ``w`` of an action's log-probabilities in its score.

    Args:
        norm: One of ``NORMS``.
        num_tokens: Number of the action's tokens, including its end of turn.
        text: The action; at least one word.
    """
    count = {"sum": 1, "token": num_tokens, "word": len(text.split())}[norm]
    return 1.0 / count


@dataclasses.dataclass(frozen=True)
class ChoiceTokens:
    """Tokens of all actions in the trained turns of a batch. Each is int64 [N].

    Attributes:
        rows: Row of the token.
        columns: Column of the token.
        before: Column of the token that it is predicted from.
        starts: Column where the chosen action of its turn starts.
        turns: Index of its turn in the batch, in order of row and column.
        candidates: Index of its action in that turn; 0 is the chosen one.
        chosen: Places in the above of the first tokens of the chosen actions. [M]
        firsts: Places in the above of the first tokens of all actions. [A]
        size: Number of turns M, and largest number of actions K.
    """

    rows: Tensor
    columns: Tensor
    before: Tensor
    starts: Tensor
    turns: Tensor
    candidates: Tensor
    chosen: Tensor
    firsts: Tensor
    size: tuple[int, int]

    @classmethod
    def find(cls, batch: Mapping[str, Any]) -> ChoiceTokens:
        """Build them from a batch with ``choice_starts`` and ``candidates`` [B, T]."""
        starts, candidates = (
            read(batch, name) for name in (columns.CHOICE_STARTS, columns.CANDIDATES)
        )
        mask = read(batch, Columns.LOSS_MASK)
        trained = np.take_along_axis(mask, np.maximum(starts, 0), 1)
        rows, cols = np.nonzero(trained & (candidates >= 0))
        start, candidate = starts[rows, cols], candidates[rows, cols]
        is_first = _first_tokens(starts, candidates)[rows, cols]
        turns = np.unique(rows * starts.shape[1] + start, return_inverse=True)[1]
        # The first token of a rejected action is predicted from the token before the
        # chosen one, not from its left neighbour in the row.
        before = np.where(is_first, start, cols) - 1
        arrays = (rows, cols, before, start, turns.ravel(), candidate)
        stacked = np.stack([array.astype(np.int64) for array in arrays])
        device = batch[Columns.LOSS_MASK].device
        chosen, firsts = np.flatnonzero(cols == start), np.flatnonzero(is_first)
        size = (0, 1)  # e.g. if all turns of the batch are masked
        if len(rows):
            size = (int(turns.max()) + 1, int(candidate.max()) + 1)
        fields = dict(zip(_INT_FIELDS, upload(stacked, device), strict=True))
        places = {"chosen": upload(chosen, device), "firsts": upload(firsts, device)}
        return cls(**fields, **places, size=size)

    def taken(self) -> tuple[Tensor, Tensor]:
        """Return row and column of the first token of the chosen actions. 2 x [M]"""
        return self.rows[self.chosen], self.columns[self.chosen]

    def at_first_tokens(self, values: Tensor, like: Tensor) -> Tensor:
        """Return numbers of actions at their first tokens, else 0. [M, K] -> [B, T]

        Args:
            values: One number per action of each turn. [M, K]
            like: A column of the batch. [B, T]
        """
        where = self.rows[self.firsts], self.columns[self.firsts]
        of_action = values[self.turns[self.firsts], self.candidates[self.firsts]]
        return values.new_zeros(like.shape).index_put(where, of_action)

    def from_first_tokens(self, column: Tensor, fill: float) -> Tensor:
        """Return the numbers at the first tokens of actions. [B, T] -> [M, K]

        Args:
            column: Numbers of actions, at their first tokens. [B, T]
            fill: Number where a turn has fewer than K actions.
        """
        where = self.turns[self.firsts], self.candidates[self.firsts]
        taken = column[self.rows[self.firsts], self.columns[self.firsts]]
        return column.new_full(self.size, fill).index_put(where, taken)

    def action_logps(
        self, logps: Tensor, weights: Tensor, temperature: float
    ) -> Tensor:
        """Return the log-probability of every action of every turn. [M, K]

        Args:
            logps: Log-probabilities of the tokens, at temperature 1. [N]
            weights: Weights of the tokens in their actions' scores. [N]
            temperature: Divisor of the scores.

        Returns:
            Column 0 belongs to the chosen action; ``-inf`` if a turn has fewer actions.
        """
        where = (self.turns, self.candidates)
        scores = logps.new_zeros(self.size).index_put(where, weights * logps, True)
        exists = torch.zeros(self.size, dtype=torch.bool, device=logps.device)
        exists.index_put_(where, torch.ones_like(self.turns, dtype=torch.bool))
        scores = (scores / temperature).masked_fill(~exists, -torch.inf)
        return torch.log_softmax(scores, dim=-1)


def entropy_of(logps: Tensor) -> Tensor:
    """Return the entropies of :meth:`ChoiceTokens.action_logps`. [M, K] -> [M]"""
    return -(logps.exp() * logps.masked_fill(logps == -torch.inf, 0.0)).sum(-1)


def attention_inputs(
    config: PretrainedConfig, batch: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, Any]:
    """Return the model's keyword arguments that limit each action to its own context.

    Args:
        config: The language model's text config.
        batch: Rows with choices.
        dtype: Data type of the model's parameters.

    Returns:
        ``attention_mask``, additive, [B, 1, T, T] (by layer type if there are several),
        and ``position_ids`` [B, T]. Of packed rows [1, 1, N, N] and [1, N].

    Raises:
        ModelError: If the model does not support such a mask.
    """
    kinds = _layer_types(config)
    starts, is_rejected = batch[columns.CHOICE_STARTS], batch[columns.CANDIDATES] > 0
    column = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    # First column of each token's rejected action; 0 in the conversation.
    begin = torch.where(_is_first(batch) & is_rejected, column, 0).cummax(1).values
    # A rejected action has the positions of the chosen one.
    positions = torch.where(is_rejected, starts + column - begin, column)
    positions = positions.masked_fill(~batch[columns.ATTENTION_MASK], 0)
    packed = batch.get(columns.PACKED_ROWS)
    if packed is not None:
        starts, is_rejected, column, begin, positions = map(
            packed.pack, (starts, is_rejected, column, begin, positions)
        )
    query, key = (column[:, :, None], column[:, None, :])
    context_end = torch.where(is_rejected, starts, column + 1)[:, :, None]
    in_context = ~is_rejected[:, None, :] & (key < context_end)
    in_action = is_rejected[:, :, None] & (key >= begin[:, :, None]) & (key <= query)
    visible = {"full_attention": in_context | in_action}
    if packed is not None:
        # Columns count from the start of each row, so they do not tell rows apart.
        visible["full_attention"] &= packed.rows[:, None] == packed.rows
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in kinds:
        # By position, not by column: rejected actions are far right of their context.
        near = positions[:, None, :] > positions[:, :, None] - window
        visible["sliding_attention"] = visible["full_attention"] & near
    masks = {k: _additive(mask, dtype) for k, mask in visible.items() if k in kinds}
    by_type = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    mask = masks if by_type else next(iter(masks.values()))
    return {"attention_mask": mask, "position_ids": positions}


def _is_first(batch: Mapping[str, Any]) -> Tensor:
    """Return whether a token is the first of its action. bool [B, T]"""
    of_action = torch.stack([batch[columns.CHOICE_STARTS], batch[columns.CANDIDATES]])
    # -2 occurs in neither column, so that column 0 counts as a change.
    changes = torch.diff(of_action, dim=2, prepend=of_action[..., :1] * 0 - 2) != 0
    return changes.any(0) & (batch[columns.CANDIDATES] >= 0)


def _first_tokens(starts: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return :func:`_is_first` of arrays. bool [B, T]"""
    of_action = np.stack([starts, candidates])
    changes = np.diff(of_action, axis=2, prepend=np.int64(-2)) != 0
    return changes.any(0) & (candidates >= 0)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, zero, torch.finfo(dtype).min)[:, None]


def _layer_types(config: PretrainedConfig) -> set[str]:
    """Return the attention types of a model's layers."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds:
        has_window = getattr(config, "sliding_window", None) is not None
        kinds = {"sliding_attention" if has_window else "full_attention"}
    kind = f"head='score': models of type {config.model_type!r}"
    if not kinds <= _LAYER_TYPES:
        raise ModelError(
            f"{kind} have layers of {', '.join(sorted(kinds - _LAYER_TYPES))}, which "
            "do not support one context per action. Use head='generate'."
        )
    if config._attn_implementation not in _ATTENTION:
        raise ModelError(
            f"{kind} use the attention implementation "
            f"{config._attn_implementation!r}, which does not support custom masks. "
            "Set language_model.model_kwargs to {attn_implementation: sdpa}."
        )
    return kinds
