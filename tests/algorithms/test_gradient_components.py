"""The whole gradient of loss components: transforms, a policy loss, and terms."""

from __future__ import annotations

import math

import torch
from gradient_reference import (
    Policy,
    SecondStep,
    assert_gradient,
    chains_of,
    k3,
    record_behaviour,
    sample_near,
)
from learner_helpers import policy
from test_gradient_grpo import (
    TEMPERATURE,
    advantage_estimator,
    moved_learner,
    with_advantages,
)

TRAINING = {
    "policy_loss": {"name": "gspo", "low": 0.02, "high": 0.03},
    "loss_terms": [
        {"name": "entropy", "weight": 0.6, "top": 0.4},
        {"name": "kl_cov", "weight": 0.8, "share": 0.3, "largest": 0.2},
        {"name": "distill", "weight": 0.2, "largest": 1.2},
    ],
    "token_advantage_transforms": [
        {"name": "entropy_shaping", "alpha": 0.3},
        {"name": "weigh_signs", "positive": 0.6, "negative": 1.2},
    ],
    "ref_kl_coeff": 0.4,
    "ref_kl_estimator": "k2",
    "entropy_coeff": 0.2,
    "loss_agg_mode": "seq-mean-token-sum",
    "micro_batch_tokens": 64,
}


def highest(numbers, share):
    """Return the numbers that belong to the largest share."""
    order = sorted(range(len(numbers)), key=lambda i: -numbers[i])
    return set(order[: math.ceil(share * len(numbers))])


def mean_and_std(numbers):
    mean = sum(numbers) / len(numbers)
    squares = sum((x - mean) ** 2 for x in numbers)
    return mean, math.sqrt(squares / (len(numbers) - 1))


def test_the_whole_gradient():
    learner, frozen = moved_learner(**TRAINING)
    episodes = with_advantages()
    chains = chains_of(episodes)
    sample_near(Policy(policy(learner), TEMPERATURE), chains)
    record_behaviour(episodes, chains)
    step = SecondStep(learner, episodes, temperature=TEMPERATURE)
    (before,), (after,) = step.before.values(), step.after.values()
    with torch.no_grad():
        known = [before.scores(chain) for chain in chains]
        refs = [frozen.scores(chain)[0] for chain in chains]
    old = [float(x) for logps, _ in known for x in logps]
    open_ = [float(x) for _, entropies in known for x in entropies]
    given = [
        advantage_estimator(chain, token) for chain in chains for token in chain.tokens
    ]
    mean_old, mean_given = sum(old) / len(old), sum(given) / len(given)
    covariance = [
        (o - mean_old) * (a - mean_given) for o, a in zip(old, given, strict=True)
    ]
    costly, forking = highest(covariance, 0.3), highest(open_, 0.4)
    mean, std = mean_and_std(open_)
    shaped = [
        a * (1 + 0.3 * (h - mean) / (std + 1e-8))
        for a, h in zip(given, open_, strict=True)
    ]
    shaped = [a * (0.6 if a > 0 else 1.2) for a in shaped]
    names = ("policy", "forking", "kl_cov", "distill", "reference", "entropy")
    terms, acted = dict.fromkeys(names, 0.0), dict.fromkeys(("clip", "kl", "is"), 0)
    number = 0
    for chain, ref in zip(chains, refs, strict=True):
        new, entropy = after.scores(chain)
        here = slice(number, number + chain.count)
        apart = new - torch.tensor(old[here]).double()
        mean_apart = apart.mean().detach()
        for i in range(chain.count):
            ratio = (mean_apart + new[i] - new[i].detach()).exp()
            held = ratio.clamp(0.98, 1.03)
            advantage = shaped[number]
            objective = torch.minimum(ratio * advantage, held * advantage)
            moved = k3(torch.tensor(old[number]).double(), new[i])
            taught = math.exp(float(ref[i]) - old[number])
            added = {
                "policy": -objective,
                "forking": -0.6 * entropy[i] * (number in forking),
                "kl_cov": 0.8 * moved.clamp(max=0.2) * (number in costly),
                "distill": -0.2 * min(taught, 1.2) * new[i],
                "reference": 0.4 * (new[i] - ref[i]) ** 2 / 2,
                "entropy": -0.2 * entropy[i],
            }
            terms = {n: terms[n] + x / len(chains) for n, x in added.items()}
            acted["clip"] += not 0.98 < ratio < 1.03
            acted["kl"] += number in costly and bool(moved > 0.2)
            acted["is"] += taught > 1.2
            number += 1
    assert all(acted.values()), acted
    assert_gradient(step.gradients["default_policy"], after, terms)
