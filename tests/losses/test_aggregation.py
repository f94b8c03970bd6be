"""Loss aggregation: modes against loops, and independence of a batch's split."""

import numpy as np
import pytest
import torch

from rllib_llm.losses.aggregation import (
    LOSS_AGGREGATIONS,
    denominator,
    token_weights,
    weighted_loss,
)
from rllib_llm.losses.surrogate import clipped_policy_loss

ATOL = 1e-9


def constant_for(mode):
    return {"constant": 16.0} if mode == "seq-mean-token-sum-norm" else {}


def make_rows(seed=0, rows=8, columns=9):
    """Rows of unequal length; row 3 has no trained token."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([1, 9, 4, 0, 2, 7, 3, 5])[:rows]
    mask = torch.arange(columns)[None, :] < lengths[:, None]
    logp = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    advantages = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return logp, advantages, mask


def slow_loss(per_token, mask, ids, mode):
    """Aggregate one episode at a time, as the papers write it."""
    episodes = {}
    for row, episode in enumerate(ids):
        tokens = episodes.setdefault(episode, [])
        tokens += [float(x) for x in per_token[row][mask[row]]]
    episodes = [tokens for tokens in episodes.values() if tokens]
    if mode == "token-mean":
        return sum(map(sum, episodes)) / sum(map(len, episodes))
    if mode == "seq-mean-token-mean":
        return sum(sum(tokens) / len(tokens) for tokens in episodes) / len(episodes)
    total = sum(map(sum, episodes)) / len(episodes)
    return total / 16.0 if mode == "seq-mean-token-sum-norm" else total


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS)
@pytest.mark.parametrize("ids", [list(range(8)), list("abbcaade")])
def test_modes_equal_the_loop(mode, ids):
    per_token, _, mask = make_rows()
    weights = token_weights(mask, ids, mode, **constant_for(mode))
    total = denominator(mask, ids, mode)
    got = float((weights * per_token.numpy()).sum() / total)
    assert got == pytest.approx(slow_loss(per_token, mask, ids, mode), abs=ATOL)
    assert weights.dtype == np.float64 and (weights[~mask.numpy()] == 0).all()


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS)
@pytest.mark.parametrize("ids", [list(range(8)), [0, 0, 1, 2, 1, 3, 3, 3]])
def test_micro_batches_add_up(mode, ids):
    """8 x 1, 2 x 4 and 1 x 8 rows give one loss and one gradient."""
    logp, advantages, mask = make_rows()
    old_logp = logp + 0.1 * advantages
    weights = torch.from_numpy(token_weights(mask, ids, mode, **constant_for(mode)))
    total = denominator(mask, ids, mode)

    def run(size):
        leaf, losses = logp.clone().requires_grad_(), []
        for i in range(0, 8, size):
            part = slice(i, i + size)
            loss, _ = clipped_policy_loss(
                leaf[part], old_logp[part], advantages[part], mask[part]
            )
            losses.append(weighted_loss(loss, weights[part], total))
            losses[-1].backward()
        return sum(losses).detach(), leaf.grad

    whole = run(8)
    for size in (1, 4):
        for got, expected in zip(run(size), whole, strict=True):
            torch.testing.assert_close(got, expected, atol=ATOL, rtol=0.0)


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS)
def test_the_weighted_loss_is_the_aggregated_one(mode):
    per_token, _, mask = make_rows()
    ids = [0, 0, 1, 2, 1, 3, 3, 3]
    weights = torch.from_numpy(token_weights(mask, ids, mode, **constant_for(mode)))
    found = weighted_loss(per_token, weights, denominator(mask, ids, mode))
    assert found.item() == pytest.approx(
        slow_loss(per_token, mask, ids, mode), abs=ATOL
    )


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS)
def test_learners_add_up(mode):
    """Denominators and weighted sums add over learners that hold whole episodes."""
    per_token, _, mask = make_rows()
    ids = np.array([0, 0, 1, 2, 2, 3, 4, 5])
    halves = [slice(0, 3), slice(3, 8)]
    kwargs = constant_for(mode)
    sums = [
        (token_weights(mask[h], ids[h], mode, **kwargs) * per_token[h].numpy()).sum()
        for h in halves
    ]
    totals = [denominator(mask[h], ids[h], mode) for h in halves]
    assert sum(totals) == denominator(mask, ids, mode)
    expected = slow_loss(per_token, mask, ids.tolist(), mode)
    assert sum(sums) / sum(totals) == pytest.approx(expected, abs=ATOL)


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS)
def test_an_episode_in_several_rows_equals_one_row(mode):
    per_token, _, mask = make_rows()
    split = torch.arange(9) < 4  # row 1 becomes two rows, cut after column 4
    rows = [0, 1, 1, 2, 4, 5, 6, 7]
    many = mask[rows]
    many[1] &= split
    many[2] &= ~split
    ids = np.array(rows)

    def loss(per_token, mask, ids):
        weights = token_weights(mask, ids, mode, **constant_for(mode))
        total = denominator(mask, ids, mode)
        return float((weights * per_token.numpy()).sum() / total)

    one = loss(per_token, mask, np.arange(8))
    assert loss(per_token[rows], many, ids) == pytest.approx(one, abs=ATOL)


def test_edges():
    none = np.zeros((2, 3), dtype=bool)
    for mode in LOSS_AGGREGATIONS:
        assert denominator(none, [0, 1], mode) == 0.0
        assert (token_weights(none, [0, 1], mode, **constant_for(mode)) == 0).all()
        empty = np.zeros((0, 3), dtype=bool)
        assert denominator(empty, [], mode) == 0.0
        assert token_weights(empty, [], mode, **constant_for(mode)).shape == (0, 3)


def arguments(changed):
    return {
        "loss_mask": np.ones((2, 3), dtype=bool),
        "sequence_ids": [0, 1],
        "mode": "token-mean",
    } | changed


@pytest.mark.parametrize("function", [token_weights, denominator])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mode": "token_mean"}, "mode is 'token_mean'.*Did you mean 'token-mean'"),
        ({"loss_mask": np.ones((2, 3))}, "loss_mask has dtype float64"),
        ({"sequence_ids": [0]}, r"loss_mask is \[2, 3\] and sequence_ids is \[1\]"),
    ],
)
def test_errors_name_the_value(function, changed, message):
    with pytest.raises(ValueError, match=message):
        function(**arguments(changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mode": "seq-mean-token-sum-norm"}, "constant is None"),
        ({"constant": 8.0}, "constant is 8.0 with mode 'token-mean'"),
        (
            {"mode": "seq-mean-token-sum-norm", "constant": 0.0},
            "constant is 0.0",
        ),
    ],
)
def test_only_the_mode_with_a_constant_takes_one(changed, message):
    with pytest.raises(ValueError, match=message):
        token_weights(**arguments(changed))
