"""Pref: the current reference, forward passes, and pairs after a fork."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_helpers import (
    assert_close,
    fake_episode,
    gradients,
    make_config,
    make_learner,
    policy,
    update,
    weights,
)
from test_pref import log_sums, pairs, pref, shifted

from rllib_llm import PrefConfig
from rllib_llm.algorithms.pref.pairs import (
    PreferencePair,
    common_turns,
    outcome_pairs,
    pairs_of_episodes,
)
from rllib_llm.data import columns
from rllib_llm.errors import ConfigError

LOSS = {"name": "dpo", "beta": 0.5}


def learner_of(reference, **training):
    """A policy away from its start; the initial reference is moved to it."""
    config = make_config(
        PrefConfig, preference_loss=LOSS, reference=reference, lr=1e-3, **training
    )
    learner = shifted(make_learner(config))
    policy(learner).refresh_reference()
    return learner


@pytest.mark.parametrize("tokens", [None, 48])
def test_the_current_reference_is_the_policy_before_the_iteration(tokens):
    found = {}
    for reference in ("initial", "current"):
        learner = learner_of(reference, micro_batch_tokens=tokens)
        # Three steps: from the second one on the policy has left the reference.
        update(learner, pairs(), minibatch_size=2)
        found[reference] = weights(learner)
        assert bool(policy(learner)._reference) == (reference == "initial")
    assert_close(found["initial"], found["current"], atol=1e-5)


def test_the_current_reference_moves_with_every_iteration():
    after = {}
    for reference in ("initial", "current"):
        learner = learner_of(reference)
        for _ in range(2):
            update(learner, pairs(), minibatch_size=2)
        after[reference] = weights(learner)
    differences = [
        float((after["initial"][n] - w).abs().max())
        for n, w in after["current"].items()
    ]
    assert max(differences) > 1e-4


def test_a_loss_without_a_reference_has_none_that_follows():
    with pytest.raises(ConfigError, match="reference='current' would have no effect"):
        pref(preference_loss="orpo", reference="current").validate()


def passes(learner, **kwargs):
    """The positions of the sums' passes and of the training passes of an update."""
    counts = {False: 0, True: 0}
    forward = policy(learner).forward_train

    def counted(batch, **more):
        counts[torch.is_grad_enabled()] += batch[columns.INPUT_IDS].numel()
        return forward(batch, **more)

    policy(learner).forward_train = counted
    update(learner, pairs(), **kwargs)
    return counts[False], counts[True]


def test_the_pass_of_sums_is_left_out_where_sums_are_there():
    sums, trained = passes(learner_of("initial"))
    assert sums == 0 < trained  # one micro-batch: the training pass gives them
    sums, trained = passes(learner_of("initial", micro_batch_tokens=48))
    assert sums == trained
    # ScoreRows has computed those of the first step.
    sums, trained = passes(learner_of("current", micro_batch_tokens=48))
    assert sums == 0 < trained
    sums, trained = passes(
        learner_of("current", micro_batch_tokens=48), minibatch_size=3
    )
    assert 0 < sums < trained


# Pairs after a fork -------------------------------------------------------------------


def forked(from_turn, turns=4):
    """Two episodes whose turns before ``from_turn`` are equal."""
    one, two = (fake_episode(7, turns=turns) for _ in range(2))
    for turn in two.get_extra_model_outputs(columns.TURN)[from_turn:]:
        turn.action_ids = (turn.action_ids + 1).astype(np.int32)
    return one, two


@pytest.mark.parametrize("from_turn", [0, 1, 3])
def test_the_fork_is_the_first_turn_that_differs(from_turn):
    assert common_turns(*forked(from_turn)) == from_turn
    two = fake_episode(7, turns=2)  # ends earlier, with equal turns
    assert common_turns(fake_episode(7, turns=4), two) == 1
    # One is asked something else: its equal answer is no shared turn.
    one, two = forked(3)
    prompt = two.get_extra_model_outputs(columns.TURN)[1]
    prompt.prompt_ids = prompt.prompt_ids[:-1]
    assert common_turns(one, two) == 1


def test_masking_the_shared_turns_leaves_the_margin_and_the_gradient_of_dpo():
    learner = learner_of("initial")
    shifted(learner)
    chosen, rejected = forked(2)
    whole = PreferencePair(chosen, rejected)
    step = PreferencePair(chosen, rejected, after_fork=True)
    margins, lengths = [], []
    for pair in (whole, step):
        (w, rw, nw), (x, rl, nl) = log_sums(learner, pair, 1.0)
        margins.append(float(((w - rw) - (x - rl)).detach()))
        lengths.append((nw, nl))
    assert abs(margins[0]) > 1e-3
    assert margins[1] == pytest.approx(margins[0], abs=1e-5)
    turns = chosen.get_extra_model_outputs(columns.TURN)
    shared = sum(len(turn.action_ids) for turn in turns[:2])
    assert lengths[0] == tuple(n + shared for n in lengths[1])
    assert_close(gradients(learner, [whole]), gradients(learner, [step]), atol=1e-6)


def test_equal_members_have_no_gradient():
    learner = learner_of("initial")
    one = fake_episode(3)
    found = gradients(learner, [PreferencePair(one, one)])
    assert max(float(g.abs().max()) for g in found.values()) < 1e-6


def test_swapping_the_members_mirrors_the_gradient_at_the_reference():
    learner, (one, two) = learner_of("initial"), forked(1)
    there = gradients(learner, [PreferencePair(one, two)])
    back = gradients(learner, [PreferencePair(two, one)])
    assert max(float(g.abs().max()) for g in there.values()) > 1e-4
    assert_close(there, {n: -g for n, g in back.items()}, atol=1e-6)


def test_episodes_with_the_longest_common_start_are_paired_first():
    shared = {(0, 1): 1, (0, 3): 3, (2, 1): 2, (2, 3): 0}
    found = outcome_pairs(
        [1.0, 0.0, 1.0, 0.0],
        [0] * 4,
        match="longest_prefix",
        shared_turns=lambda b, w: shared[b, w],
    )
    assert found == [(0, 3), (2, 1)]
    # Every episode once: after (0, 1) only (2, 3) is left.
    found = outcome_pairs(
        [1.0, 0.0, 1.0, 0.0],
        [0] * 4,
        match="longest_prefix",
        shared_turns=lambda b, w: 3 * ((b, w) == (0, 1)) + 2 * ((b, w) == (0, 3)),
    )
    assert found == [(0, 1), (2, 3)]


def test_sampled_episodes_are_compared_from_their_fork():
    one, two = forked(2)
    other = fake_episode(9, turns=4, reward=0.0)
    for episode, reward in ((one, 1.0), (two, 0.0)):
        episode.rewards.data[-1] = reward
    (pair,) = pairs_of_episodes(
        [one, other, two], match="longest_prefix", after_fork=True
    )
    assert pair.agent_episodes["rejected"].id_ == two.id_
    masked = [
        side.custom_data[columns.EPISODE_DATA].masked_turns
        for side in pair.agent_episodes.values()
    ]
    assert masked == [{0, 1}, {0, 1}]
