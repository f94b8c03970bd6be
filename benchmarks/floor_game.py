"""Lower bound for episodes of different length, with the turn lengths of a real run.

It computes the same as ``floor.py``, but with the lengths that this package has just
sampled. Every turn has one batch of the running episodes, longest answers first, so
that finished rows leave the batch without a copy. Rows of a batch get their mean
length, so padding and masks are not needed. Turn by turn, no implementation can be
faster; overlapping the turns of different episodes could be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from floor import Floor, Measured, _sample
from torch import Tensor

from rllib_llm.torch_threads import torch_settings

Trace = list[list[tuple[int, int]]]
"""Of each episode, of each turn: tokens read before it, and tokens sampled."""


def trace_of(episodes: Sequence[Any]) -> Trace:
    """Return the numbers of prompt and sampled tokens per turn of finished episodes."""
    turns = [e.get_extra_model_outputs("turn") for e in episodes]
    return [[(len(t.prompt_ids), len(t.action_ids)) for t in each] for each in turns]


def measure_trace(floor: Floor, trace: Trace, part: int) -> Measured:
    """Sample and train as many tokens as the episodes of ``trace`` have."""
    with torch_settings(None):  # new memory is not filled, as in this package
        start = time.process_time()
        _rollout(floor, trace)
        middle = time.process_time()
        _update(floor, trace, part)
        end = time.process_time()
    tokens = sum(sampled for turns in trace for _, sampled in turns)
    return Measured(middle - start, end - middle, end - start, tokens, tokens)


@torch.no_grad()
def _rollout(floor: Floor, trace: Trace) -> None:
    p = floor.parameters()
    columns = 1 + max(sum(map(sum, turns)) for turns in trace)
    size = (floor.layers, 2, len(trace), floor.kv_heads, columns, floor.head_dim)
    cache, end = torch.zeros(size, dtype=floor.dtype), 0
    for turn in range(max(map(len, trace))):
        playing = [turns[turn] for turns in trace if len(turns) > turn]
        read = round(sum(r for r, _ in playing) / len(playing))
        ids = torch.randint(floor.vocab, (len(playing), read))
        steps = sorted((sampled for _, sampled in playing), reverse=True)
        first, rows = end, len(playing)
        for step in range(steps[0]):
            rows = sum(sampled > step for sampled in steps)
            logits = floor._step(ids[:rows], end, p, cache[:, :, :rows])
            end += ids.shape[1]
            tokens, _ = _sample(logits)
            ids = tokens[:, None]
        # Until the next turn all have the columns of the mean.
        end = first + read + round(sum(steps) / len(steps))


def _update(floor: Floor, trace: Trace, part: int) -> None:
    lengths = sorted((sum(map(sum, t)), sum(s for _, s in t)) for t in trace)
    total = sum(sampled for _, sampled in lengths)
    floor.optimizer.zero_grad()
    p = floor.parameters()
    for first in range(0, len(lengths), part):
        rows = lengths[first : first + part]
        length, trained = (round(sum(x) / len(rows)) for x in zip(*rows, strict=True))
        ids = torch.randint(floor.vocab, (len(rows), length))
        _loss(floor, ids, trained, p, total).backward(retain_graph=True)
    torch.nn.utils.clip_grad_norm_(floor.masters.values(), 1.0)
    floor.optimizer.step()


def _loss(
    floor: Floor, ids: Tensor, trained: int, p: dict[str, Tensor], total: int
) -> Tensor:
    """Return the clipped policy loss of the last ``trained`` tokens of each row."""
    hidden = floor.forward(ids, 0, p, floor._causal)[:, -trained - 1 : -1]
    logits = torch.nn.functional.linear(hidden, p["embed"]).float()
    targets = ids[:, -trained:]
    nll = torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none")
    ratio = (-nll + nll.detach()).exp()
    gain = torch.randn(len(ids), 1)
    return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).sum() / total
