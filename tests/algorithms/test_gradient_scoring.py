"""The whole gradient of a policy over admissible actions, against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradient_reference import (
    Policy,
    SecondStep,
    assert_gradient,
    k3,
    mismatch,
    shake,
    surrogate,
)
from test_scoring_runs import Run, config_of

from rllib_llm import GRPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.envs import make_env

TEMPERATURE = 5.0
TRAINING = {
    "clip_param": 0.1,
    "clip_param_high": 0.2,
    "dual_clip": 1.3,
    "ref_kl_coeff": 0.5,
    "entropy_coeff": 0.3,
    "tis": "token",
    "tis_clip": 1.1,
    "micro_batch_tokens": 600,
}


def turns_of(episode):
    """Each turn's context and its actions, the one taken first, with weights."""
    taken, found = [], []
    for turn in episode.get_extra_model_outputs(columns.TURN):
        taken = taken if turn.extends else []
        taken = [*taken, *map(int, turn.prompt_ids)]
        actions = [turn.action_ids, *turn.choice.others]
        found.append((taken, [list(map(int, a)) for a in actions], turn))
        taken = [*taken, *map(int, turn.action_ids)]
    return found


def action_logps(policy, context, actions, weights):
    """log softmax(s / temperature), s the weighted log-probability of an action."""
    scores = []
    for ids, weight in zip(actions, weights, strict=True):
        logps = policy.row_logps([*context, *ids])
        at = range(len(context), len(context) + len(ids))
        total = sum(logps[t - 1][i] for t, i in zip(at, ids, strict=True))
        scores.append(weight * total / TEMPERATURE)
    return torch.log_softmax(torch.stack(scores), 0)


def expert_of(episode, seed):
    """The expert's action before each turn, from an environment of its own."""
    env = make_env("guess_number-v0", {"upper": 5})
    env.reset(seed=seed, options={"split": "train"})
    found = []
    for action in episode.get_actions():
        found.append(env.expert_action(None))
        env.step(action)
    return found


def teacher_logps(spec, reference, turn, best, decode):
    """The teacher's log-probabilities of a turn's actions, the one taken first."""
    if "teacher" not in spec:
        return reference
    texts = [decode(ids) for ids in (turn.action_ids, *turn.choice.others)]
    return torch.tensor([0.0 if t == best else -torch.inf for t in texts]).double()


def divergence(p, q):
    """KL(p || q), over the actions that p takes."""
    pairs = [(a, b) for a, b in zip(p, q, strict=True) if a > -torch.inf]
    return sum(a.exp() * (a - b) for a, b in pairs)


@pytest.mark.parametrize(
    "spec",
    [{}, {"direction": "reverse"}, {"teacher": "expert"}],
    ids=["reference", "reverse", "expert"],
)
def test_the_whole_gradient(spec):
    env_config = {"upper": 5, "report_expert": "teacher" in spec}
    config = config_of(GRPOConfig, score_norm="token", env_config=env_config)
    config.rollouts(group_size=2).training(**TRAINING)
    config.training(loss_terms=[{"name": "distill_actions", "weight": 0.7, **spec}])
    run = Run(config)
    module = run.learner.module["default_policy"].unwrapped()
    frozen = Policy(module)  # actions are scored at temperature 1
    shake(module.parameters(), 0.2, 1)
    episodes = run.sample(5)
    rng = np.random.default_rng(0)
    for number, episode in enumerate(episodes):
        episode_data(episode).advantage = (1.0, -0.8)[number % 2]
        for turn in episode.get_extra_model_outputs(columns.TURN):
            turn.action_logps[0] += 0.3 * rng.normal()
    step = SecondStep(run.learner, episodes, noise=0.2)
    (before,), (after,) = step.before.values(), step.after.values()
    terms = dict.fromkeys(("policy", "reference", "entropy", "teacher"), 0.0)
    decode = config.chat_renderer().decode
    acted = dict.fromkeys(("clipped", "free", "tis"), 0)
    turns = [
        (e, t, best)
        for seed, e in enumerate(episodes)
        for t, best in zip(turns_of(e), expert_of(e, seed), strict=True)
    ]
    for episode, (context, actions, turn), best in turns:
        weights = turn.choice.weights
        with torch.no_grad():
            old = float(action_logps(before, context, actions, weights)[0])
            every = action_logps(frozen, context, actions, weights)
            ref = every[0]
        logps = action_logps(after, context, actions, weights)
        (weight,) = mismatch([old], [float(turn.action_logps[0])], tis=1.1)
        advantage = episode_data(episode).advantage * weight
        ratio = (logps[0] - old).exp()
        pair = (teacher_logps(spec, every, turn, best, decode), logps)
        pair = pair[::-1] if "direction" in spec else pair
        added = {
            "teacher": 0.7 * divergence(*pair),
            "policy": -surrogate(ratio, advantage, 0.1, 0.2, 1.3),
            "reference": 0.5 * k3(logps[0], ref),
            "entropy": 0.3 * (logps.exp() * logps).sum(),
        }
        terms = {n: terms[n] + x / len(turns) for n, x in added.items()}
        acted["clipped"] += not 0.9 < ratio < 1.2
        acted["free"] += bool(0.9 < ratio < 1.2)
        acted["tis"] += weight == 1.1
    assert all(acted.values()), acted
    assert_gradient(step.gradients["default_policy"], after, terms)
