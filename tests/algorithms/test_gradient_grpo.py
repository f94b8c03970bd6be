"""GRPO's whole gradient against a loop over tokens, every coefficient in force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradient_reference import (
    Policy,
    SecondStep,
    assert_gradient,
    chains_of,
    k3,
    mismatch,
    record_behaviour,
    sample_near,
    shake,
    surrogate,
)
from learner_helpers import TINY, fake_episode, make_learner, policy
from team_helpers import PairTogether, Run, set_group_advantages, team_config

from rllib_llm import GRPOConfig, SelfPlayConfig
from rllib_llm.algorithms.selfplay.assign_opponents import TakeTurns
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.offline.prepare_model import prepare_language_model

TEMPERATURE = 0.8
TRAINING = {
    "clip_param": 0.1,
    "clip_param_high": 0.25,
    "dual_clip": 1.4,
    "ref_kl_coeff": 0.7,
    "ref_kl_clip": 0.4,
    "entropy_coeff": 0.6,
    "loss_agg_mode": "seq-mean-token-mean",
    "tis": "token",
    "tis_clip": 1.3,
    "is_mask_low": 0.65,
    "is_mask_high": 1.6,
    "is_sequence_mask_low": 0.9,
    "is_sequence_mask_high": 1.12,
    "micro_batch_tokens": 64,
}


def moved_learner(config_class=GRPOConfig, temperature=TEMPERATURE, **training):
    """A learner whose policy has left the reference, in value and in weights."""
    config = config_class().environment("guess_number-v0").language_model(tiny=TINY)
    config.generation(temperature=temperature).training(**training)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    learner = make_learner(config)
    frozen = Policy(policy(learner), temperature)
    shake(policy(learner).parameters(), 0.08, 1)
    return learner, frozen


def with_advantages(count=9):
    """Return episodes of one and two rows, with advantages per episode or turn."""
    found = []
    for seed in range(count):
        episode = fake_episode(seed, turns=1 + seed % 3, breaks=seed % 2 == 1)
        data = episode_data(episode)
        data.advantage, data.success = float(np.sin(2 * seed + 0.5)), seed % 2 == 0
        found.append(episode)
    episode_data(found[2]).advantage = np.array([0.9, -1.1, 0.4])
    return found


def advantage_estimator(chain, token):
    given = chain.data.advantage
    return float(given if np.ndim(given) == 0 else given[token.turn])


def loss_terms(chains, before, after, frozen):
    """The terms of the loss, and how often each clip, cap and band acted."""
    terms = dict.fromkeys(("policy", "reference", "entropy"), 0.0)
    acted = dict.fromkeys(
        ("low", "high", "higher", "dual", "free", "kl", "tis", "token", "seq"), 0
    )
    for chain in chains:
        with torch.no_grad():
            old = before.scores(chain)[0].tolist()
            ref = frozen.scores(chain)[0]
        new, entropy = after.scores(chain)
        weights = mismatch(
            old,
            [t.behaviour for t in chain.tokens],
            tis=1.3,
            band=(0.65, 1.6),
            sequence=(0.9, 1.12),
        )
        share = 1.0 / chain.count / len(chains)
        for i, token in enumerate(chain.tokens):
            advantage = advantage_estimator(chain, token) * weights[i]
            ratio = (new[i] - old[i]).exp()
            objective = surrogate(ratio, advantage, 0.1, 0.25, 1.4)
            kl = k3(new[i], ref[i])
            terms["policy"] = terms["policy"] - share * objective
            terms["reference"] = terms["reference"] + share * 0.7 * kl.clamp(max=0.4)
            terms["entropy"] = terms["entropy"] - share * 0.6 * entropy[i]
            acted["low"] += bool(advantage < 0 and ratio < 0.9)
            acted["high"] += bool(advantage > 0 and ratio > 1.25)
            acted["higher"] += bool(advantage > 0 and 1.1 < ratio < 1.25)
            acted["dual"] += bool(advantage < 0 and ratio > 1.4)
            acted["free"] += bool(0.9 < ratio < 1.25 and advantage)
            acted["kl"] += bool(kl > 0.4)
            acted["tis"] += weights[i] == 1.3
        acted["token"] += 0 < weights.count(0.0) < chain.count
        acted["seq"] += not any(weights)
    return terms, acted


def test_the_whole_gradient():
    learner, frozen = moved_learner(**TRAINING)
    episodes = with_advantages()
    chains = chains_of(episodes)
    sample_near(Policy(policy(learner), TEMPERATURE), chains)
    record_behaviour(episodes, chains)
    step = SecondStep(learner, episodes, temperature=TEMPERATURE)
    (before,), (after,) = step.before.values(), step.after.values()
    terms, acted = loss_terms(chains, before, after, frozen)
    assert all(acted.values()), acted
    assert_gradient(step.gradients["default_policy"], after, terms)


def test_the_whole_gradient_of_self_play():
    """It is the learning policy's alone; its opponents are in no term of it."""
    pytest.importorskip("openskill")
    config = team_config(
        PairTogether,
        SelfPlayConfig,
        policies=None,
        training={**TRAINING, "role_decay": 0.5},
        generation={"temperature": TEMPERATURE},
    )
    run = Run(config)
    learner, own = run.learner, run.learner.module["default_policy"].unwrapped()
    frozen = Policy(own, TEMPERATURE)
    shake(own.parameters(), 0.08, 1)
    tasks = config.build_task_source()
    opponent = config.opponent_slots[0]
    tasks.agent = TakeTurns(
        "default_policy", opponent, config.assign_league_opponents(), {}
    )
    episodes = run.runner.sample(tasks=tasks.next_groups(12))
    set_group_advantages(config, episodes)
    chains = [c for c in chains_of(episodes) if c.module_id == "default_policy"]
    parts = [p for e in episodes for p in e.agent_episodes.values()]
    mine = [p for p in parts if p.module_id == "default_policy"]
    assert 4 < len(mine) < len(parts)
    sample_near(Policy(own, TEMPERATURE), chains)
    for part, chain in zip(mine, chains, strict=True):
        for index, turn in enumerate(part.get_extra_model_outputs(columns.TURN)):
            logps = [t.behaviour for t in chain.tokens if t.turn == index]
            turn.action_logps[:] = np.asarray(logps, np.float32)
    step = SecondStep(learner, episodes, temperature=TEMPERATURE)
    assert set(step.gradients) == {"default_policy"}
    before, after = (s["default_policy"] for s in (step.before, step.after))
    terms, acted = loss_terms(chains, before, after, frozen)
    assert min(acted[name] for name in ("low", "high", "dual", "kl", "tis")) > 0
    assert_gradient(step.gradients["default_policy"], after, terms)
