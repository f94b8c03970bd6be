"""Preference losses against formulas written out, one pair at a time."""

from __future__ import annotations

import math

import pytest
import torch

from rllib_llm.components.registry import bind
from rllib_llm.errors import ConfigError
from rllib_llm.losses.preference_losses import LabelledSums, PairSums, turn_weights

CLOSE = {"atol": 1e-10, "rtol": 1e-10}


def sums(count=6, seed=0):
    """Random sums; log-probabilities are negative. 6 x float64 [P]"""
    rng = torch.Generator().manual_seed(seed)
    values = [
        -5 * torch.rand(count, generator=rng, dtype=torch.float64) - 0.1
        for _ in range(4)
    ]
    lengths = [torch.randint(1, 9, (count,), generator=rng).double() for _ in range(2)]
    return PairSums(*values, *lengths)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def log_odds(logp):
    return math.log(math.exp(logp) / (1 - math.exp(logp)))


def slowly(name, i, p, beta=0.1, e=0.0, gamma=1.0, normalized=True):
    """The loss of pair ``i``, from the papers."""
    w, x = float(p.chosen_logp[i]), float(p.rejected_logp[i])
    rw, rl = float(p.chosen_ref[i]), float(p.rejected_ref[i])
    nw, nl = float(p.chosen_length[i]), float(p.rejected_length[i])
    d = (w - rw) - (x - rl)
    if name == "dpo":
        return -(1 - e) * math.log(sigmoid(beta * d)) - e * math.log(sigmoid(-beta * d))
    if name == "robust_dpo":
        right, wrong = math.log(sigmoid(beta * d)), math.log(sigmoid(-beta * d))
        return (-(1 - e) * right + e * wrong) / (1 - 2 * e)
    if name == "ipo":
        if normalized:
            d = (w - rw) / nw - (x - rl) / nl
        return (d - 1 / (2 * beta)) ** 2
    if name == "hinge":
        return max(0.0, 1 - beta * d)
    if name == "exo":
        policy = (sigmoid(beta * d), sigmoid(-beta * d))
        return sum(
            q * (math.log(q) - math.log(h))
            for q, h in zip(policy, (1 - e, e), strict=True)
        )
    if name == "simpo":
        return -math.log(sigmoid(beta * (w / nw - x / nl) - gamma))
    assert name == "orpo"
    ratio = log_odds(w / nw) - log_odds(x / nl)
    return -w / nw - beta * math.log(sigmoid(ratio))


@pytest.mark.parametrize(
    "name, settings, slow",
    [
        ("dpo", {"beta": 0.3}, {"beta": 0.3}),
        ("dpo", {"label_smoothing": 0.2}, {"e": 0.2}),
        ("robust_dpo", {"label_smoothing": 0.2}, {"e": 0.2}),
        ("ipo", {}, {}),
        ("ipo", {"length_normalized": False}, {"normalized": False}),
        ("hinge", {"beta": 0.5}, {"beta": 0.5}),
        ("exo", {"label_smoothing": 0.01}, {"e": 0.01}),
        ("simpo", {}, {"beta": 2.0}),
        ("simpo", {"gamma": 0.25}, {"beta": 2.0, "gamma": 0.25}),
        ("orpo", {"beta": 0.7}, {"beta": 0.7}),
    ],
)
def test_values_are_those_of_the_papers(name, settings, slow):
    p = sums()
    loss = bind("preference_loss", {"name": name, **settings}).call(p)
    expected = [slowly(name, i, p, **slow) for i in range(len(loss))]
    torch.testing.assert_close(
        loss, torch.tensor(expected, dtype=torch.float64), **CLOSE
    )


def test_kto_is_that_of_the_paper():
    p, kl = sums(), 0.7
    desirable = torch.arange(6) % 3 > 0
    settings = {"beta": 0.4, "desirable_weight": 1.2, "undesirable_weight": 0.9}
    loss = bind("preference_loss", {"name": "kto", **settings}).call(
        LabelledSums(p.chosen_logp, p.chosen_ref, desirable, torch.tensor(kl))
    )
    for i, value in enumerate(loss.tolist()):
        ratio = float(p.chosen_logp[i] - p.chosen_ref[i])
        if desirable[i]:
            expected = 1.2 * (1 - sigmoid(0.4 * (ratio - kl)))
        else:
            expected = 0.9 * (1 - sigmoid(0.4 * (kl - ratio)))
        assert value == pytest.approx(expected, abs=1e-7)


def gradients(name, p, **settings):
    logps = [p.chosen_logp, p.rejected_logp]
    given = [x.clone().requires_grad_() for x in logps]
    rest = (p.chosen_ref, p.rejected_ref, p.chosen_length, p.rejected_length)
    loss = bind("preference_loss", {"name": name, **settings}).call(
        PairSums(*given, *rest)
    )
    return loss, torch.autograd.grad(loss.sum(), given)


@pytest.mark.parametrize("name", ["dpo", "exo", "robust_dpo"])
def test_equal_members_and_their_gradients(name):
    p = sums()
    same = PairSums(
        p.chosen_logp, p.chosen_logp, p.chosen_ref, p.chosen_ref, *[p.chosen_length] * 2
    )
    loss, (chosen, rejected) = gradients(name, same)
    if name == "dpo":
        torch.testing.assert_close(loss, torch.full_like(loss, math.log(2)), **CLOSE)
    torch.testing.assert_close(chosen, -rejected, **CLOSE)
    assert (chosen < 0).all()  # a step raises the chosen one's probability


def test_swapping_a_pair_mirrors_the_derivative_of_smoothed_labels():
    p = sums()
    swapped = PairSums(
        p.rejected_logp,
        p.chosen_logp,
        p.rejected_ref,
        p.chosen_ref,
        p.rejected_length,
        p.chosen_length,
    )
    # -e and 1 - e swap their roles: losses of both orders differ by beta * d (1 - 2 e).
    one, _ = gradients("dpo", p, label_smoothing=0.1)
    two, _ = gradients("dpo", swapped, label_smoothing=0.1)
    torch.testing.assert_close(two - one, 0.8 * 0.1 * p.margin, **CLOSE)


def test_robust_dpo_is_unbiased_under_wrong_labels():
    p, wrong = sums(), 0.2
    settings = {"name": "robust_dpo", "label_smoothing": wrong}
    robust = bind("preference_loss", settings).call
    plain = bind("preference_loss", "dpo").call
    swapped = PairSums(
        p.rejected_logp,
        p.chosen_logp,
        p.rejected_ref,
        p.chosen_ref,
        p.rejected_length,
        p.chosen_length,
    )
    mean = (1 - wrong) * robust(p) + wrong * robust(swapped)
    torch.testing.assert_close(mean, plain(p), **CLOSE)


def test_odds_of_nearly_certain_episodes_are_finite():
    almost = torch.tensor([-1e-7, 0.0, -40.0], dtype=torch.float64)
    other = torch.full_like(almost, -2.0)
    ones = torch.ones_like(almost)
    loss, grads = gradients("orpo", PairSums(almost, other, *[other] * 2, ones, ones))
    assert loss.isfinite().all() and all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize(
    "spec, message",
    [
        ({"name": "dpo", "beta": 0.0}, "beta is 0.0"),
        ({"name": "dpo", "label_smoothing": 0.5}, "label_smoothing is 0.5"),
        ({"name": "exo", "label_smoothing": 0.0}, "label_smoothing is 0.0"),
        ({"name": "simpo", "gamma": -1.0}, "gamma is -1.0"),
    ],
)
def test_settings_out_of_range(spec, message):
    with pytest.raises(ValueError, match=message):
        bind("preference_loss", spec).call(sums())


def test_an_unknown_loss():
    with pytest.raises(ConfigError, match="Did you mean 'dpo'"):
        bind("preference_loss", "dpoo")


# DMPO's weights -----------------------------------------------------------------------


def test_weights_of_turns():
    turns = torch.tensor([[-1, 0, 0, 1, -1, 2], [-1, 0, 1, 1, -1, -1]])
    weights = turn_weights(turns, torch.tensor([3, 2]), 0.7)
    for row, total in ((0, 3), (1, 2)):
        for column, turn in enumerate(turns[row].tolist()):
            if turn < 0:
                assert weights[row, column] == 0
                continue
            expected = 0.7**turn * (1 - 0.7 ** (total - turn)) / (1 - 0.7**total)
            assert weights[row, column] == pytest.approx(expected)
    assert weights[0, 1] == 1  # the first turn's, of any length
    assert turn_weights(turns, torch.tensor([3, 2]), 1.0).tolist() == [
        [0, 1, 1, 1, 0, 1],
        [0, 1, 1, 1, 0, 0],
    ]


def test_weights_tend_to_the_share_of_turns_left():
    turns = torch.tensor([[0, 1, 2, 3]])
    weights = turn_weights(turns, torch.tensor([4]), 1 - 1e-5)
    torch.testing.assert_close(
        weights, torch.tensor([[1, 0.75, 0.5, 0.25]]), atol=1e-4, rtol=0
    )
