"""Message ratios, their clipped loss, and HAPPO's factor against loops in float64."""

import math

import pytest
import torch

from rllib_llm.losses.message_ratios import message_log_ratios, sequential_factors
from rllib_llm.losses.surrogate import MAX_LOG_RATIO

TOLERANCE = {"atol": 1e-12, "rtol": 0.0}


def make_batch(seed=0, rows=4, columns=8, count=6):
    """Messages run over row borders; message 5 has no trained token."""
    generator = torch.Generator().manual_seed(seed)
    new, noise = (
        torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    messages = torch.randint(count - 1, (rows, columns), generator=generator)
    mask = torch.rand(rows, columns, generator=generator) < 0.7
    messages[~mask] = -7
    return -new.abs(), -new.abs() + 0.5 * noise, mask, messages


def slow_log_ratios(logp, old_logp, mask, messages, count, normalised):
    found = [[] for _ in range(count)]
    for r in range(len(logp)):
        for t in range(logp.shape[1]):
            if mask[r, t]:
                found[messages[r, t]].append(float(logp[r, t]) - float(old_logp[r, t]))
    sums = [sum(x) / (len(x) if normalised else 1) if x else 0.0 for x in found]
    return torch.tensor(sums, dtype=torch.float64), [bool(x) for x in found]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("normalised", [True, False])
def test_log_ratios_equal_the_loop(seed, normalised):
    logp, old, mask, messages = make_batch(seed)
    got, trained = message_log_ratios(
        logp, old, mask, messages, 6, length_normalised=normalised
    )
    expected, has_any = slow_log_ratios(logp, old, mask, messages, 6, normalised)
    torch.testing.assert_close(got, expected, **TOLERANCE)
    assert trained.tolist() == has_any and not trained[5]


def test_padding_and_row_order_do_not_matter():
    logp, old, mask, messages = make_batch()
    expected, _ = message_log_ratios(logp, old, mask, messages, 6)
    pad = torch.full((4, 3), math.nan, dtype=torch.float64)
    padded = [torch.cat([x, pad], 1)[[2, 0, 3, 1]] for x in (logp, old)]
    more = torch.zeros(4, 3, dtype=torch.bool)
    got, _ = message_log_ratios(
        *padded,
        torch.cat([mask, more], 1)[[2, 0, 3, 1]],
        torch.cat([messages, more.long() - 1], 1)[[2, 0, 3, 1]],
        6,
    )
    torch.testing.assert_close(got, expected, **TOLERANCE)


def test_the_gradient_spreads_over_the_message():
    """d/dlogp of the mean log-ratio is 1 / length, of the sum 1; old has none."""
    logp, old, mask, messages = make_batch()
    lengths = torch.bincount(messages[mask], minlength=6)
    for normalised in (True, False):
        leaf, old_leaf = logp.clone().requires_grad_(), old.clone().requires_grad_()
        ratios, _ = message_log_ratios(
            leaf, old_leaf, mask, messages, 6, length_normalised=normalised
        )
        ratios.sum().backward()
        share = 1.0 / lengths.double()[messages.clamp(min=0)] if normalised else 1.0
        torch.testing.assert_close(leaf.grad, mask.double() * share, **TOLERANCE)
        assert old_leaf.grad is None


def slow_factor(k, ratios, steps, agents, updated, ratio_clip, factor_clip):
    factor = 1.0
    for m in range(len(ratios)):
        if steps[m] == steps[k] and agents[m] in updated:
            factor *= min(max(math.exp(ratios[m]), 1 - ratio_clip), 1 + ratio_clip)
    return min(max(factor, 1 - factor_clip), 1 + factor_clip)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("updated", [[], [1], [2, 0], [0, 1, 2]])
def test_factors_equal_the_product(seed, updated):
    generator = torch.Generator().manual_seed(seed)
    ratios = 0.4 * torch.randn(20, generator=generator, dtype=torch.float64)
    steps = torch.randint(5, (20,), generator=generator)
    agents = torch.randint(4, (20,), generator=generator)
    got = sequential_factors(
        ratios, steps, agents, updated, ratio_clip=0.3, factor_clip=0.5
    )
    expected = [
        slow_factor(k, ratios, steps, agents, updated, 0.3, 0.5) for k in range(20)
    ]
    torch.testing.assert_close(
        got, torch.tensor(expected, dtype=torch.float64), **TOLERANCE
    )
    if not updated:
        assert (got == 1.0).all()
    again = sequential_factors(
        ratios, steps, agents, updated[::-1], ratio_clip=0.3, factor_clip=0.5
    )
    assert (got == again).all()
    order = torch.randperm(20, generator=generator)
    shuffled = sequential_factors(
        ratios[order],
        steps[order],
        agents[order],
        updated,
        ratio_clip=0.3,
        factor_clip=0.5,
    )
    torch.testing.assert_close(shuffled, got[order], **TOLERANCE)


def test_a_joint_action_of_two_is_weighted_by_the_first_agents_change():
    """In a one-step game with one-token messages M A is exactly HAPPO's target."""
    new, old = math.log(0.6), math.log(0.5)
    ratios = torch.tensor([new - old, 0.0], dtype=torch.float64)
    got = sequential_factors(ratios, torch.zeros(2).long(), torch.arange(2), [0])
    assert float(got[1]) == pytest.approx(1.2)
    wide = torch.tensor([math.log(50.0), 0.0], dtype=torch.float64)
    got = sequential_factors(
        wide, torch.zeros(2).long(), torch.arange(2), [0], ratio_clip=0.9
    )
    assert float(got[1]) == pytest.approx(1.5)  # the factor's own clip


def test_factors_have_no_gradient_and_no_messages_no_factors():
    leaf = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([0, 0])
    assert not sequential_factors(leaf, index, index, [0]).requires_grad
    none = torch.zeros(0, dtype=torch.long)
    assert sequential_factors(torch.zeros(0), none, none, [0]).shape == (0,)


def test_extreme_ratios_stay_finite():
    logp = torch.tensor([[0.0, -1e4]], dtype=torch.float64)
    old = torch.tensor([[-1e4, 0.0]], dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    ratios, _ = message_log_ratios(logp, old, mask, torch.tensor([[0, 1]]), 2)
    assert ratios.tolist() == [MAX_LOG_RATIO, -MAX_LOG_RATIO]
    factors = sequential_factors(ratios, torch.arange(2), torch.arange(2), [0, 1])
    torch.testing.assert_close(
        factors, torch.tensor([1.2, 0.8], dtype=torch.float64), **TOLERANCE
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda b: message_log_ratios(*b[:3], b[3], 2),
            "with count 2",
        ),
        (
            lambda b: message_log_ratios(*b[:3], b[3][:, :4], 6),
            "Shapes differ",
        ),
        (
            lambda b: message_log_ratios(b[0], b[1], b[2].long(), b[3], 6),
            "loss_mask has dtype",
        ),
        (
            lambda b: sequential_factors(
                torch.zeros(2), torch.zeros(2).long(), torch.zeros(3).long(), []
            ),
            "Shapes differ",
        ),
        (
            lambda b: sequential_factors(
                *(torch.zeros(0) for _ in range(3)), [], factor_clip=1.0
            ),
            "factor_clip is 1.0",
        ),
        (
            lambda b: sequential_factors(
                *(torch.zeros(0) for _ in range(3)), [], ratio_clip=0.0
            ),
            "ratio_clip is 0.0",
        ),
    ],
)
def test_errors_name_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call(make_batch())
