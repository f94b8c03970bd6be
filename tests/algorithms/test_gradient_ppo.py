"""LLMPPO's whole gradient against a loop over tokens, every coefficient in force."""

from __future__ import annotations

import pytest
import torch
from gradient_reference import (
    Policy,
    SecondStep,
    assert_gradient,
    chains_of,
    gae,
    k3,
    mismatch,
    record_behaviour,
    sample_near,
    shake,
    surrogate,
    whitened,
)
from learner_helpers import TINY, fake_episode, make_learner, policy

from rllib_llm import LLMPPOConfig
from rllib_llm.data.types import StopReason
from rllib_llm.offline.prepare_model import prepare_language_model

TEMPERATURE = 0.8
DISCOUNTS = {"gamma": 0.9, "lam": 0.8, "gamma_token": 0.97, "lam_token": 0.85}
SHARED = {
    "gamma": 0.9,
    "lambda_": 0.8,
    "gamma_token": 0.97,
    "lambda_token": 0.85,
    "vf_loss_coeff": 1.2,
    "entropy_coeff": 1.5,
    "tis": "token",
    "tis_clip": 1.3,
    "micro_batch_tokens": 64,
}


def moved_learner(language_model, **training):
    """A learner whose policy and critic have left their start."""
    config = LLMPPOConfig().environment("guess_number-v0")
    config.language_model(tiny=TINY, **language_model)
    config.generation(temperature=TEMPERATURE).training(**training)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    learner = make_learner(config)
    frozen = Policy(policy(learner), TEMPERATURE)
    shake(policy(learner).parameters(), 0.08, 1)
    return learner, frozen


def played(learner):
    """Episodes of one row and of two, ended and cut, from a policy near this one."""
    episodes = [
        fake_episode(
            seed,
            turns=1 + seed % 3,
            breaks=seed % 2 == 1,
            stop=StopReason.MAX_TURNS if seed % 3 == 0 else StopReason.TERMINATED,
        )
        for seed in range(6)
    ]
    chains = chains_of(episodes)
    sample_near(Policy(policy(learner), TEMPERATURE), chains)
    record_behaviour(episodes, chains)
    return episodes, chains


def token_rewards(chain):
    return [token.reward for token in chain.tokens]


def ends(chain):
    return [token.is_last for token in chain.tokens]


@torch.no_grad()
def before_the_update(step, frozen, chains):
    """Old log-probabilities, values, values after the end, and the reference's."""
    (before,) = step.before.values()
    found = []
    for chain in chains:
        values, last = before.values(chain)
        last = float(last) if chain.bootstraps else 0.0
        old = before.scores(chain)[0]
        found.append((old, values.tolist(), last, frozen.scores(chain)[0]))
    return found


@pytest.mark.parametrize(
    ("loss", "old_kl_coeff"),
    [
        ({"clip_param": 0.15, "use_kl_loss": True, "kl_coeff": 0.6}, 0.6),
        ({"policy_loss": {"name": "ppo_clip", "low": 0.15, "high": 0.15}}, 0.0),
    ],
    ids=["rllib", "component"],
)
def test_the_whole_gradient_with_a_shared_critic(loss, old_kl_coeff):
    """The loss is RLlib's with its KL to the policy before, or a component's."""
    learner, frozen = moved_learner(
        {"value_head_detach": False},
        vf_clip_param=0.3,
        **loss,
        ref_kl_coeff=0.5,
        ref_kl_clip=0.4,
        **SHARED,
    )
    episodes, chains = played(learner)
    step = SecondStep(learner, episodes, temperature=TEMPERATURE)
    (after,) = step.after.values()
    known = before_the_update(step, frozen, chains)
    advantages = [
        gae(token_rewards(chain), values, ends(chain), last, **DISCOUNTS)
        for chain, (_, values, last, _) in zip(chains, known, strict=True)
    ]
    count = sum(chain.count for chain in chains)
    names = ("policy", "critic", "entropy", "reference", *["old"] * bool(old_kl_coeff))
    terms = dict.fromkeys(names, 0.0)
    acted = dict.fromkeys(("capped", "free", "clipped", "kl"), 0)
    for chain, (old, values, _, ref), raw, white in zip(
        chains, known, advantages, whitened(advantages), strict=True
    ):
        new, entropy = after.scores(chain)
        predicted, _ = after.values(chain)
        behaviour = [t.behaviour for t in chain.tokens]
        weights = mismatch(old.tolist(), behaviour, tis=1.3)
        for i in range(chain.count):
            ratio = (new[i] - old[i]).exp()
            objective = surrogate(ratio, white[i] * weights[i], 0.15, 0.15)
            error = (predicted[i] - (values[i] + raw[i])) ** 2
            kl = k3(new[i], ref[i])
            added = {
                "policy": -objective,
                "critic": 1.2 * error.clamp(max=0.3),
                "entropy": -1.5 * entropy[i],
                "old": old_kl_coeff * (ratio - 1 - (new[i] - old[i])),
                "reference": 0.5 * kl.clamp(max=0.4),
            }
            terms = {name: terms[name] + added[name] / count for name in names}
            acted["capped"] += bool(error > 0.3)
            acted["free"] += bool(error < 0.3)
            acted["clipped"] += not 0.85 < ratio < 1.15
            acted["kl"] += bool(kl > 0.4)
    assert all(acted.values()), acted
    assert_gradient(step.gradients["default_policy"], after, terms)


def huber(error, delta):
    size = error.abs()
    return size**2 if size <= delta else delta * (2 * size - delta)


def test_the_whole_gradient_with_a_critic_of_its_own():
    """Dual clip, value clip, decoupled lambda, terms, and the KL in the reward."""
    learner, frozen = moved_learner(
        {"value_model": "own"},
        policy_loss={"name": "ppo_clip", "low": 0.1, "high": 0.2, "dual": 1.3},
        loss_terms=[{"name": "nll_success", "weight": 0.3}],
        value_loss="huber",
        value_huber_delta=0.4,
        vf_clip_range=0.1,
        lambda_critic=0.95,
        loss_agg_mode="seq-mean-token-mean",
        ref_kl_in="reward",
        ref_kl_coeff=0.5,
        ref_kl_clip=0.4,
        **SHARED,
    )
    episodes, chains = played(learner)
    for index, chain in enumerate(chains):
        chain.data.success = index % 2 == 0
    step = SecondStep(learner, episodes, temperature=TEMPERATURE)
    (after,) = step.after.values()
    known = before_the_update(step, frozen, chains)
    advantages, targets = [], []
    for chain, (old, values, last, ref) in zip(chains, known, strict=True):
        cost = [min(float(k3(o, r)), 0.4) for o, r in zip(old, ref, strict=True)]
        rewards = [p - 0.5 * c for p, c in zip(token_rewards(chain), cost, strict=True)]
        args = rewards, values, ends(chain), last
        advantages.append(gae(*args, **DISCOUNTS))
        critic = {**DISCOUNTS, "lam": 0.95, "lam_token": 0.95}
        errors = gae(*args, **critic)
        targets.append([v + e for v, e in zip(values, errors, strict=True)])
    solved = sum(c.count for c in chains if c.data.success)
    share_solved = solved / sum(c.count for c in chains)
    terms = dict.fromkeys(("policy", "critic", "entropy", "imitation"), 0.0)
    acted = dict.fromkeys(("held", "free", "linear", "dual"), 0)
    for chain, (old, values, _, _), target, white in zip(
        chains, known, targets, whitened(advantages), strict=True
    ):
        new, entropy = after.scores(chain)
        predicted, _ = after.values(chain)
        behaviour = [t.behaviour for t in chain.tokens]
        weights = mismatch(old.tolist(), behaviour, tis=1.3)
        for i in range(chain.count):
            advantage = white[i] * weights[i]
            ratio = (new[i] - old[i]).exp()
            objective = surrogate(ratio, advantage, 0.1, 0.2, 1.3)
            near = values[i] + (predicted[i] - values[i]).clamp(-0.1, 0.1)
            plain = huber(predicted[i] - target[i], 0.4)
            held = huber(near - target[i], 0.4)
            imitated = -new[i] / share_solved if chain.data.success else 0.0 * new[i]
            added = {
                "policy": -objective,
                "critic": 1.2 * torch.maximum(plain, held),
                "entropy": -1.5 * entropy[i],
                "imitation": 0.3 * imitated,
            }
            share = 1.0 / chain.count / len(chains)
            terms = {name: terms[name] + share * x for name, x in added.items()}
            acted["held"] += bool(held > plain)
            acted["free"] += bool(held < plain)
            acted["linear"] += bool((predicted[i] - target[i]).abs() > 0.4)
            acted["dual"] += bool(advantage < 0 and ratio > 1.3)
    assert all(acted.values()), acted
    assert_gradient(step.gradients["default_policy"], after, terms)
