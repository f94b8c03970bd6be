"""Policy losses are those of the papers, token by token, and safe at the edges."""

from __future__ import annotations

import math

import pytest
import torch
from loss_reference import (
    make_batch,
    slow,
    slow_cispo,
    slow_dppo,
    slow_fit,
    slow_gspo,
    slow_ppo,
    slow_sapo,
)

from rllib_llm.components.registry import COMPONENTS, bind
from rllib_llm.errors import ConfigError
from rllib_llm.losses.composed_loss import ComposedLoss
from rllib_llm.losses.token_batch import TokenBatch, rank_from_top

NAMES = COMPONENTS["policy_loss"].names()


def loss_of(batch, spec):
    return ComposedLoss(spec).policy_loss(batch)


def grad_of(batch, columns, spec):
    loss, _ = loss_of(batch, spec)
    (found,) = torch.autograd.grad(loss.sum(), columns["logp"], retain_graph=True)
    return found


def case(name, reference, **settings):
    return {"name": name, **settings}, reference


def imitated(weight):
    """Reference of nll whose weight of a token is ``weight(A)``."""
    return lambda b: slow(b, lambda logp, old, a: -weight(a) * logp)


PARITY = [
    case("ppo_clip", lambda b: slow_ppo(b, 0.2, 0.28), high=0.28),
    case("ppo_clip", lambda b: slow_ppo(b, dual=1.3), dual=1.3),
    case("ppo_clip", slow_ppo, form="soft"),
    case("loop", lambda b: slow_ppo(b, 1 - 1 / 1.25, 0.25), clip=0.25),
    case("gspo", lambda b: slow_gspo(b, 0.02, 0.04, "sequence"), low=0.02, high=0.04),
    case("gspo", lambda b: slow_gspo(b, 3e-4, 4e-4, "turn"), level="turn"),
    case("cispo", lambda b: slow_cispo(b, 1.0, 4.0)),
    case("cispo", lambda b: slow_cispo(b, 0.1, 0.1), low=0.1, high=0.1),
    case("sapo", lambda b: slow_sapo(b, 1.0, 2.0), tau_neg=2.0),
    case("dppo", lambda b: slow_dppo(b, 0.05, 0.1, "tv"), low=0.05, high=0.1),
    case(
        "dppo",
        lambda b: slow_dppo(b, 0.05, 0.02, "kl"),
        low=0.05,
        high=0.02,
        divergence="kl",
    ),
    case("pg", lambda b: slow(b, lambda logp, old, a: -a * logp)),
    case("log_ratio", lambda b: slow_fit(b, b.old_logp, 0.3, "sequence"), beta=0.3),
    case(
        "log_ratio",
        lambda b: slow_fit(b, b.old_logp, 0.1, "token", 0.2),
        kind="huber",
        delta=0.2,
        level="token",
    ),
    case("ref_log_ratio", lambda b: slow_fit(b, b.ref_logp, 0.5, "turn"), beta=0.5),
    case("nll", imitated(lambda a: float(a > 0))),
    case(
        "nll",
        imitated(lambda a: min(3.0, math.exp(a / 0.5))),
        above=None,
        weights="exp",
        temperature=0.5,
        largest=3.0,
    ),
    case(
        "nll", imitated(lambda a: a if a > 0.4 else 0), above=0.4, weights="advantage"
    ),
]


@pytest.mark.parametrize("spec, expected", PARITY)
@pytest.mark.parametrize("seed", range(3))
def test_value_is_that_of_the_formula(spec, expected, seed):
    batch, _ = make_batch(seed)
    loss, _ = loss_of(batch, spec)
    torch.testing.assert_close(loss.detach(), expected(batch), rtol=1e-12, atol=1e-12)


def test_every_loss_has_a_reference():
    assert {spec["name"] for spec, _ in PARITY} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -1e30])
def test_masked_tokens_have_no_part(name, junk):
    clean, columns = make_batch(1)
    dirty, dirty_columns = make_batch(1, junk=junk)
    expected = grad_of(clean, columns, name)
    found = grad_of(dirty, dirty_columns, name)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert (found[~dirty.mask] == 0).all() and found[dirty.mask].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_trained_tokens_gives_zero(name):
    batch, columns = make_batch(masked=True)
    loss, clipped = loss_of(batch, name)
    assert not loss.any() and not clipped.any()
    loss.sum().backward()
    assert not columns["logp"].grad.any()


@pytest.mark.parametrize("name", ["ppo_clip", "loop", "gspo", "dppo"])
def test_at_ratio_one_the_loss_is_minus_the_advantage(name):
    batch, _ = make_batch(spread=0.0)
    loss, clipped = loss_of(batch, name)
    torch.testing.assert_close(loss.detach(), -batch.advantages)
    assert not clipped.any()


@pytest.mark.parametrize("name", ["loop", "gspo", "cispo", "sapo", "dppo", "pg"])
def test_at_ratio_one_the_gradient_is_that_of_ppo(name):
    batch, columns = make_batch(spread=0.0)
    expected = grad_of(batch, columns, "ppo_clip")
    torch.testing.assert_close(grad_of(batch, columns, name), expected)
    torch.testing.assert_close(expected, -batch.advantages)


def test_at_ratio_one_the_fit_follows_the_advantage_of_the_sequence():
    batch, columns = make_batch(spread=0.0)
    mean = batch.reduce(batch.advantages, "sequence")
    count = batch.reduce(batch.mask.double(), "sequence", "sum")
    found = grad_of(batch, columns, {"name": "log_ratio", "beta": 0.1})
    torch.testing.assert_close(found, -2 * 0.1 * mean * count)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parts", [[[0], [1, 2], [3, 4]], [[4, 0], [3], [1, 2]]])
def test_cutting_between_sequences_changes_no_gradient(name, parts):
    batch, columns = make_batch(2)
    whole = grad_of(batch, columns, name)
    cut = sum(grad_of(rows(batch, part), columns, name) for part in parts)
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_only_those_that_say_so_need_sequences_whole(name):
    batch, columns = make_batch(2)
    parts = [[0, 1], [2, 3, 4]]  # rows 1 and 2 are one sequence
    whole = grad_of(batch, columns, name)
    cut = sum(grad_of(rows(batch, part), columns, name) for part in parts)
    needs = "sequences" in ComposedLoss(name).needs
    assert torch.allclose(cut, whole) == (not needs)


def rows(batch, part):
    names = TokenBatch.__dataclass_fields__
    given = {n: getattr(batch, n) for n in names}
    return TokenBatch(
        **{k: v[part] if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    )


# What sets them apart -----------------------------------------------------------------


def one_token(ratio, advantage):
    old = torch.tensor([[math.log(0.2)]], dtype=torch.float64)
    logp = (old + math.log(ratio)).requires_grad_()
    batch = TokenBatch(
        logp=logp,
        old_logp=old,
        advantages=torch.tensor([[advantage]], dtype=torch.float64),
        mask=torch.tensor([[True]]),
        entropy=torch.zeros(1, 1, dtype=torch.float64),
        turn_ids=torch.zeros(1, 1, dtype=torch.int64),
        episode_index=torch.zeros(1, dtype=torch.int64),
    )
    return batch, {"logp": logp}


def slope(ratio, advantage, spec):
    batch, columns = one_token(ratio, advantage)
    return float(grad_of(batch, columns, spec))


@pytest.mark.parametrize(
    "spec, ratio, advantage, expected",
    [
        ("ppo_clip", 1.5, 1.0, 0.0),
        ("ppo_clip", 1.5, -1.0, 1.5),
        ({"name": "ppo_clip", "form": "soft"}, 1.5, 1.0, -1.2),
        ({"name": "ppo_clip", "form": "soft"}, 0.5, -1.0, 0.0),
        ({"name": "ppo_clip", "dual": 3.0}, 4.0, -1.0, 0.0),
        ({"name": "ppo_clip", "dual": 3.0}, 2.9, -1.0, 2.9),
        ({"name": "ppo_clip", "dual": 3.0, "high": 9.0}, 4.0, 1.0, -4.0),
        ({"name": "ppo_clip", "high": 0.6}, 1.5, 1.0, -1.5),
        ({"name": "loop", "clip": 0.25}, 0.81, -1.0, 0.81),
        ({"name": "loop", "clip": 0.25}, 0.79, -1.0, 0.0),
        ("cispo", 1.5, 1.0, -1.5),
        ("cispo", 9.0, 1.0, -5.0),
        ("dppo", 1.9, 1.0, -1.9),  # 0.2 -> 0.38: moved by 0.18
        ("dppo", 2.1, 1.0, 0.0),
        ("dppo", 2.1, -1.0, 2.1),
        ("pg", 9.0, 1.0, -1.0),
        ("nll", 9.0, -1.0, 0.0),
    ],
)
def test_gradient_of_one_token(spec, ratio, advantage, expected):
    assert slope(ratio, advantage, spec) == pytest.approx(expected, abs=1e-12)


def test_sapo_fades_on_both_sides_and_faster_for_punishment():
    at = {r: -slope(r, 1.0, "sapo") / r for r in (0.5, 1.0, 1.5, 4.0)}
    assert at[1.0] == pytest.approx(1.0) and at[0.5] == pytest.approx(at[1.5])
    assert at[1.0] > at[1.5] > at[4.0] > 0
    assert slope(4.0, -1.0, "sapo") / 4.0 < at[4.0]


def test_gspo_token_has_the_gradient_of_the_ratio_of_the_sequence():
    batch, columns = make_batch(4, spread=0.001)
    batch.advantages = batch.reduce(batch.advantages, "sequence")
    wide = {"name": "gspo", "low": 0.5, "high": 0.5}
    s = batch.reduce(batch.log_ratio, "sequence").exp()
    loss = -(s * batch.advantages).sum()
    (expected,) = torch.autograd.grad(loss, columns["logp"], retain_graph=True)
    torch.testing.assert_close(grad_of(batch, columns, wide), expected)


def test_a_token_beyond_the_range_moves_if_its_sequence_is_within():
    batch, columns = make_batch(5)
    wide = {"name": "gspo", "low": 0.9, "high": 9.0}
    assert (grad_of(batch, columns, wide)[batch.mask] != 0).all()
    tight = {"name": "ppo_clip", "low": 0.01, "high": 0.01}
    assert (grad_of(batch, columns, tight)[batch.mask] == 0).any()


# Pieces as settings -------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec, message",
    [
        ({"name": "ppo_clip", "low": 2.0}, "low is 2.0"),
        ({"name": "ppo_clip", "dual": 0.5}, "dual is 0.5"),
        ({"name": "ppo_clip", "form": "sfot"}, "Did you mean 'soft'"),
        ({"name": "gspo", "level": "token"}, "level is 'token'"),
        ({"name": "cispo", "high": -1.0}, "high is -1.0"),
        ({"name": "sapo", "tau_pos": 0.0}, "tau_pos is 0.0"),
        ({"name": "dppo", "divergence": "js"}, "divergence is 'js'"),
        ({"name": "log_ratio", "beta": 0}, "beta is 0"),
        ({"name": "nll", "weights": "all"}, "weights is 'all'"),
        ({"name": "nll", "abvoe": 1.0}, "Did you mean 'above'"),
        ({"name": "pg", "weight": 2.0}, "no setting 'weight'"),
        ("pgg", "Did you mean 'pg'"),
    ],
)
def test_bad_settings_are_refused_with_a_reason(spec, message):
    with pytest.raises(ConfigError, match=message):
        ComposedLoss(spec).try_out()


def my_loss(batch, *, scale: float = 2.0):
    "Twice the policy gradient."
    return -scale * batch.advantages * batch.logp, torch.zeros_like(batch.mask)


def one_number(batch):
    "Not a loss per token."
    return batch.logp.sum(), batch.mask


def test_a_users_function_is_a_component():
    batch, _ = make_batch()
    expected, _ = loss_of(batch, "pg")
    for spec in (my_loss, {"name": "test_policy_losses:my_loss", "scale": 2.0}):
        torch.testing.assert_close(loss_of(batch, spec)[0], 2 * expected)
    with pytest.raises(ConfigError, match="one entry per token"):
        ComposedLoss(one_number).try_out()


def test_undeclared_inputs_are_missing():
    def reads_reference(batch):
        "Needs more than it asks for."
        return batch.logp - batch.ref_logp, batch.mask

    with pytest.raises(ConfigError, match="reads_reference"):
        ComposedLoss(reads_reference).try_out()


@pytest.mark.parametrize("share, count", [(0.2, 2), (0.25, 3), (0.01, 1), (1.0, 10)])
def test_ranks_choose_the_largest(share, count):
    values = torch.arange(10.0).flip(0).reshape(2, 5)
    ranks = rank_from_top(values, torch.ones(2, 5, dtype=torch.bool))
    chosen = values[ranks < share]
    assert sorted(chosen.tolist(), reverse=True) == list(range(9, 9 - count, -1))


def test_names_are_registered_with_their_papers():
    for name in NAMES:
        assert bind("policy_loss", name).component.paper
