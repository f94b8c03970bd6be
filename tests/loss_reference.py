"""Policy losses token by token in plain Python floats, as in the papers."""

from __future__ import annotations

import math
from collections import defaultdict

import torch

from rllib_llm.losses.action_distillation import ActionProbs
from rllib_llm.losses.token_batch import TokenBatch, rank_from_top


def make_batch(seed=0, rows=5, width=7, *, spread=0.3, masked=False, junk=None):
    """Return a float64 batch of four episodes, one with two rows of three turns."""
    draw = torch.Generator().manual_seed(seed)
    shape = (rows, width)

    def normal():
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    old = -torch.rand(shape, generator=draw, dtype=torch.float64) - 0.05
    mask = torch.rand(shape, generator=draw) < (0.0 if masked else 0.7)
    logp, advantages = (old + spread * normal()).clamp(max=-1e-3), normal()
    entropy = torch.rand(shape, generator=draw, dtype=torch.float64)
    columns = {
        "logp": logp,
        "old_logp": old,
        "advantages": advantages,
        "entropy": entropy,
        "ref_logp": old + 0.1 * normal(),
    }
    if junk is not None:
        columns = {k: v.masked_fill(~mask, junk) for k, v in columns.items()}
    columns["logp"].requires_grad_()
    columns["entropy"].requires_grad_()
    return TokenBatch(
        **columns,
        mask=mask,
        turn_ids=torch.arange(width) // 3 + 3 * (torch.arange(rows)[:, None] == 2),
        episode_index=torch.tensor([0, 1, 1, 2, 3])[:rows],
        success=torch.tensor([1.0, 0.0, 0.0, torch.nan, 1.0])[:rows],
        success_share=0.4,
        entropy_rank=rank_from_top(entropy.detach(), mask),
        covariance_rank=rank_from_top(advantages, mask),
        actions=choices(columns, mask),
        update=7,
        seed=3,
    ), columns


def choices(columns, mask):
    """Return three actions at every trained token; the first has its log-probability
    as its score."""
    rows, cols = mask.nonzero(as_tuple=True)

    def logps(name):
        first = columns[name][rows, cols]
        return torch.stack([first, first * 0 - 0.4, first * 0 - 0.9], -1).log_softmax(
            -1
        )

    expert = torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64).log()
    expert = expert.expand(len(rows), 3)
    return ActionProbs(logps("logp"), rows, cols, logps("ref_logp"), expert)


def tokens(batch):
    """Yield place and numbers of every trained token."""
    for row, column in batch.mask.nonzero().tolist():
        yield (
            (row, column),
            float(batch.logp[row, column].detach()),
            float(batch.old_logp[row, column]),
            float(batch.advantages[row, column]),
        )


def units(batch, level):
    """Return the places of each turn's or sequence's tokens."""
    found = defaultdict(list)
    for (row, column), *_ in tokens(batch):
        key = [int(batch.episode_index[row])]
        if level == "turn":
            key.append(int(batch.turn_ids[row, column]))
        if level == "token":
            key += [row, column]
        found[tuple(key)].append((row, column))
    return list(found.values())


def clip(x, low, high):
    return min(max(x, low), high)


def slow(batch, of_token):
    """Return ``of_token(log pi, log pi_old, A)`` at every trained token, else 0."""
    out = torch.zeros(batch.mask.shape, dtype=torch.float64)
    for place, logp, old, advantage in tokens(batch):
        out[place] = of_token(logp, old, advantage)
    return out


def slow_ppo(batch, low=0.2, high=0.2, dual=None):
    def of_token(logp, old, a):
        r = math.exp(logp - old)
        found = min(r * a, clip(r, 1 - low, 1 + high) * a)
        return -(max(found, dual * a) if dual and a < 0 else found)

    return slow(batch, of_token)


def slow_gspo(batch, low, high, level):
    out = torch.zeros(batch.mask.shape, dtype=torch.float64)
    for places in units(batch, level):
        gaps = [float((batch.logp - batch.old_logp)[p].detach()) for p in places]
        s = math.exp(sum(gaps) / len(gaps))
        for place in places:
            a = float(batch.advantages[place])
            out[place] = -min(s * a, clip(s, 1 - low, 1 + high) * a)
    return out


def slow_fit(batch, other, beta, level, delta=math.inf):
    out = torch.zeros(batch.mask.shape, dtype=torch.float64)
    for places in units(batch, level):
        total = sum(float((batch.logp - other)[p].detach()) for p in places)
        mean = sum(float(batch.advantages[p]) for p in places) / len(places)
        error = abs(beta * total - mean)
        for place in places:
            is_near = error <= delta
            out[place] = error**2 if is_near else delta * (2 * error - delta)
    return out


def slow_dppo(batch, low, high, divergence):
    def of_token(logp, old, a):
        p, q = math.exp(logp), math.exp(old)
        apart = abs(p - q)
        if divergence == "kl":
            apart = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        if a > 0 and p > q and apart > high:
            return 0.0
        if a < 0 and p < q and apart > low:
            return 0.0
        return -a * p / q

    return slow(batch, of_token)


def slow_sapo(batch, tau_pos, tau_neg):
    def of_token(logp, old, a):
        tau = tau_pos if a > 0 else tau_neg
        r = math.exp(logp - old)
        return -a * 4 / tau / (1 + math.exp(-tau * (r - 1)))

    return slow(batch, of_token)


def slow_cispo(batch, low, high):
    def of_token(logp, old, a):
        return -clip(math.exp(logp - old), 1 - low, 1 + high) * a * logp

    return slow(batch, of_token)
