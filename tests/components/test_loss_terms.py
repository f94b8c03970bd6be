"""Loss terms and token transforms are those of the papers."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from loss_reference import make_batch, slow, tokens

from rllib_llm.components.registry import COMPONENTS, bind
from rllib_llm.errors import ConfigError
from rllib_llm.losses.composed_loss import ComposedLoss
from rllib_llm.losses.token_batch import requires

TERMS = [
    {"name": n, "target": 0.6, "start": 0.1} if n == "entropy_target" else n
    for n in COMPONENTS["loss_term"].names()
]
TRANSFORMS = COMPONENTS["token_advantage_transform"].names()


def term(batch, spec):
    ((_, loss),) = ComposedLoss(loss_terms=[spec]).term_losses(batch)
    return loss


def transform(batch, spec):
    return ComposedLoss(transforms=[spec]).transform(copy.copy(batch))


def trained(batch, name):
    return getattr(batch, name)[batch.mask].tolist()


def mean_and_std(values):
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


# Terms --------------------------------------------------------------------------------


def test_entropy_is_minus_itself_on_the_tokens_where_most_is_open():
    batch, columns = make_batch()
    torch.testing.assert_close(term(batch, "entropy"), -batch.entropy)
    found = term(batch, {"name": "entropy", "top": 0.3, "weight": 0.5})
    entropies = sorted(trained(batch, "entropy"), reverse=True)
    least = entropies[math.ceil(0.3 * len(entropies)) - 1]
    expected = torch.where(batch.entropy >= least, -0.5 * batch.entropy, 0.0)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert set(columns["entropy"].grad.unique().tolist()) == {-0.5, 0.0}


def test_entropy_target_steers_by_steps_and_stops_above():
    spec = {"name": "entropy_target", "target": 0.5, "step": 0.1, "largest": 0.25}
    components = ComposedLoss(loss_terms=[spec])
    seen = [components.end_update({"entropy": h})["entropy_target"] for h in
            (0.4, 0.4, 0.4, 0.6, 0.4, 0.6, 0.6, 0.6, 0.3)]  # fmt: skip
    assert seen == pytest.approx([0.1, 0.2, 0.25, 0.0, 0.25, 0.0, 0.0, 0.0, 0.1])
    again = ComposedLoss(loss_terms=[spec])
    again.set_state(components.get_state())
    batch, _ = make_batch()
    for each in (components, again):
        ((_, loss),) = each.term_losses(batch)
        torch.testing.assert_close(loss, -0.1 * batch.entropy)


def test_kl_cov_is_k3_on_the_tokens_of_highest_covariance():
    batch, _ = make_batch()
    found = term(batch, {"name": "kl_cov", "share": 0.2})
    ranks = batch.covariance_rank
    count = math.ceil(0.2 * int(batch.mask.sum()))
    assert int((found != 0).sum()) == count

    def k3(logp, old, a):
        return math.exp(logp - old) - 1 - (logp - old)

    torch.testing.assert_close(found, slow(batch, k3) * (ranks < 0.2))


def test_nll_of_successes_is_a_mean_over_their_tokens():
    batch, _ = make_batch()
    solved = batch.success[:, None].eq(1) & batch.mask
    batch.success_share = float(solved.sum() / batch.mask.sum())
    found = term(batch, "nll_success")
    expected = -batch.logp[solved].mean()
    torch.testing.assert_close(found.sum() / batch.mask.sum(), expected)
    assert not found[~solved].any()


def test_distillation_estimates_the_cross_entropy_to_the_teacher():
    """Over all tokens of a small vocabulary, weighed by the old policy, it is exact."""
    draw = torch.Generator().manual_seed(0)
    old, new, teacher = (
        torch.randn(6, generator=draw, dtype=torch.float64).log_softmax(0)
        for _ in range(3)
    )
    batch, _ = make_batch(rows=1, width=6)
    batch.mask = torch.ones(1, 6, dtype=torch.bool)
    batch.old_logp, batch.logp, batch.ref_logp = old[None], new[None], teacher[None]
    spec = {"name": "distill", "largest": 1e6}
    found = (old.exp() * term(batch, spec)).sum()
    torch.testing.assert_close(found, -(teacher.exp() * new).sum())
    tight = {**spec, "largest": 0.5}
    ratio = (teacher - old).exp().clamp(max=0.5)
    torch.testing.assert_close(term(batch, tight), (-ratio * new)[None])


@pytest.mark.parametrize(
    "settings",
    [{}, {"direction": "reverse"}, {"teacher": "expert"}],
    ids=["reference", "reverse", "expert"],
)
def test_exact_distillation_sums_over_the_actions_of_each_turn(settings):
    batch, _ = make_batch()
    actions = batch.actions
    teacher = actions.expert if "teacher" in settings else actions.reference
    found = term(batch, {"name": "distill_actions", **settings})
    expected = torch.zeros_like(found)
    places = zip(actions.rows.tolist(), actions.columns.tolist(), strict=True)
    for number, place in enumerate(places):
        p, t = actions.logps[number].tolist(), teacher[number].tolist()
        if "direction" in settings:
            p, t = t, p
        for of, other in zip(t, p, strict=True):
            expected[place] += math.exp(of) * (of - other) if of > -math.inf else 0.0
    assert (expected != 0).equal(batch.mask)
    torch.testing.assert_close(found, expected)


def test_exact_distillation_asks_for_its_teacher():
    def needs(**settings):
        spec = {"name": "distill_actions", **settings}
        return ComposedLoss(loss_terms=[spec]).needs

    assert needs() == {"actions", "reference"}
    assert needs(teacher="expert") == {"actions", "expert"}


@requires("actions")
def of_actions(batch):
    """A component that reads what only loss terms get."""
    return batch.actions.at_tokens(batch.actions.logps[:, 0], batch.logp)


def test_actions_are_for_loss_terms_alone():
    name = f"{__name__}:of_actions"
    ComposedLoss(loss_terms=[name]).try_out()
    with pytest.raises(ConfigError, match="loss terms alone"):
        ComposedLoss(transforms=[name]).try_out()


@pytest.mark.parametrize("update, coeff", [(0, 10.0), (100, 9.5), (10_000, 0.1)])
def test_distillation_fades(update, coeff):
    batch, _ = make_batch()
    batch.update = update
    spec = {"name": "distill", "weight": [[0, 10.0], [1980, 0.1]]}
    torch.testing.assert_close(term(batch, spec), coeff * term(batch, "distill"))


@pytest.mark.parametrize("spec", TERMS, ids=str)
def test_terms_leave_masked_tokens_alone(spec):
    clean, columns = make_batch(1)
    dirty, dirty_columns = make_batch(1, junk=math.nan)
    for batch, into in ((clean, columns), (dirty, dirty_columns)):
        total = term(batch, spec).sum() + 0.0 * (batch.logp + batch.entropy).sum()
        total.backward()
        grads = [into[k].grad[batch.mask] for k in ("logp", "entropy")]
        into["grads"] = torch.stack(grads)
        assert not any(into[k].grad[~batch.mask].any() for k in ("logp", "entropy"))
    torch.testing.assert_close(columns["grads"], dirty_columns["grads"])
    assert columns["grads"].any()


@pytest.mark.parametrize("spec", TERMS, ids=str)
def test_terms_of_nothing_are_zero(spec):
    batch, _ = make_batch(masked=True)
    assert not term(batch, spec).any()


def test_terms_are_summed_with_their_weights():
    batch, _ = make_batch()
    specs = [{"name": "entropy", "weight": 0.01}, {"name": "nll_success", "weight": 3}]
    found = dict(ComposedLoss(loss_terms=specs).term_losses(batch))
    torch.testing.assert_close(found["entropy"], 0.01 * term(batch, "entropy"))
    torch.testing.assert_close(found["nll_success"], 3 * term(batch, "nll_success"))


# Transforms ---------------------------------------------------------------------------


def test_entropy_shaping_scales_by_the_standardised_entropy():
    batch, _ = make_batch()
    mean, std = mean_and_std(trained(batch, "entropy"))
    found = transform(batch, {"name": "entropy_shaping", "alpha": 0.3})
    z = (batch.entropy.detach() - mean) / (std + 1e-8)
    torch.testing.assert_close(found, batch.advantages * (1 + 0.3 * z))
    assert not found.requires_grad
    flat = transform(batch, {"name": "entropy_shaping", "alpha": 0.0})
    torch.testing.assert_close(flat, batch.advantages)


def test_entropy_advantage_is_bounded_by_the_advantage():
    batch, _ = make_batch()
    found = transform(batch, {"name": "entropy_advantage", "alpha": 0.4, "kappa": 2.0})
    for place, _, _, a in tokens(batch):
        bonus = min(0.4 * float(batch.entropy[place].detach()), abs(a) / 2.0)
        assert float(found[place]) == pytest.approx(a + bonus)
        assert a == 0 or float(found[place]) * a > 0


def test_top_entropy_keeps_the_share_that_was_asked_for():
    batch, _ = make_batch()
    found = transform(batch, {"name": "top_entropy", "share": 0.2})
    kept = found != 0
    count = math.ceil(0.2 * int(batch.mask.sum()))
    assert int(kept.sum()) == count
    assert batch.entropy[kept].min() > batch.entropy[batch.mask & ~kept].max()
    torch.testing.assert_close(found[kept], batch.advantages[kept])


def test_clip_cov_draws_from_the_band():
    batch, _ = make_batch(rows=5, width=40)
    logp_mean, _ = mean_and_std(trained(batch, "old_logp"))
    a_mean, _ = mean_and_std(trained(batch, "advantages"))
    covariance = (batch.old_logp - logp_mean) * (batch.advantages - a_mean)
    spec = {"name": "clip_cov", "share": 0.05, "low": 0.05, "high": 0.5}
    found = transform(batch, spec)
    dropped = batch.mask & (found == 0)
    assert int(dropped.sum()) == int(0.05 * int(batch.mask.sum()))
    assert ((covariance[dropped] >= 0.05) & (covariance[dropped] <= 0.5)).all()
    torch.testing.assert_close(transform(batch, spec), found)
    batch.seed += 1
    assert not torch.equal(transform(batch, spec), found)
    nowhere = transform(batch, {"name": "clip_cov", "low": 1e6, "high": 1e7})
    torch.testing.assert_close(nowhere, batch.advantages)


def test_signs_and_sizes():
    batch, _ = make_batch()
    a = batch.advantages
    found = transform(batch, {"name": "weigh_signs", "positive": 0.1, "negative": 2.0})
    torch.testing.assert_close(found, torch.where(a > 0, 0.1 * a, 2.0 * a))
    found = transform(batch, {"name": "drop_small", "least": 0.5})
    torch.testing.assert_close(found, torch.where(a.abs() >= 0.5, a, 0.0))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_leave_masked_tokens_at_zero(name):
    batch, _ = make_batch(1)
    dirty, _ = make_batch(1, junk=math.nan)
    found = transform(dirty, name)
    torch.testing.assert_close(found, transform(batch, name))
    assert not found[~batch.mask].any()
    nothing, _ = make_batch(masked=True)
    assert not transform(nothing, name).any()


def test_transforms_act_in_order():
    batch, _ = make_batch()
    specs = [{"name": "drop_small", "least": 0.5}, {"name": "weigh_signs"}]
    there = ComposedLoss(transforms=specs).transform(copy.copy(batch))
    back = ComposedLoss(transforms=specs[::-1]).transform(copy.copy(batch))
    assert int((there != 0).sum()) > int((back != 0).sum())


@pytest.mark.parametrize(
    "kind, spec, message",
    [
        ("loss_terms", {"name": "entropy", "top": 0.0}, "top is 0.0"),
        ("loss_terms", "entropy_target", "needs 'target'"),
        ("loss_terms", {"name": "entropy_target", "target": -1.0}, "target is -1.0"),
        ("loss_terms", {"name": "kl_cov", "share": 2.0}, "share is 2.0"),
        ("loss_terms", {"name": "distill", "largest": 0.0}, "largest is 0.0"),
        ("loss_terms", {"name": "distill_actions", "teacher": "x"}, "teacher is 'x'"),
        ("loss_terms", {"name": "distill_actions", "direction": "x"}, "direction is"),
        (
            "loss_terms",
            {"name": "distill_actions", "teacher": "expert", "direction": "reverse"},
            "infinite wherever the expert never takes an action. Use 'forward'",
        ),
        ("loss_terms", {"name": "distill", "weight": "a"}, "weight='a' must be"),
        ("transforms", {"name": "entropy_shaping", "alpha": -1.0}, "alpha is -1.0"),
        ("transforms", {"name": "entropy_advantage", "kappa": 1.0}, "kappa is 1.0"),
        ("transforms", {"name": "clip_cov", "low": 9.0}, "low=9.0 must be below"),
        ("transforms", {"name": "weigh_signs", "positive": -1}, "must be >= 0"),
        ("transforms", {"name": "drop_small", "least": 0}, "least is 0"),
        ("transforms", {"name": "drop_small", "weight": 2}, "no setting 'weight'"),
    ],
)
def test_bad_settings_are_refused_with_a_reason(kind, spec, message):
    with pytest.raises(ConfigError, match=message):
        ComposedLoss(**{kind: [spec]}).try_out()


def test_what_is_asked_for_depends_on_settings():
    assert ComposedLoss(loss_terms=["entropy"]).needs == frozenset()
    few = {"name": "entropy", "top": 0.2}
    assert ComposedLoss(loss_terms=[few]).needs == {"scores"}
    assert bind("loss_term", "distill").component.paper
