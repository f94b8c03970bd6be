"""The shipped recipes of losses and critics train, and each does what its paper says.

That they load and dry-run is tested with all others in tests/cli/test_cli_light.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from loss_reference import slow_cispo, slow_gspo, slow_ppo, slow_sapo
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rllib_llm.advantages.gae import token_gae
from rllib_llm.advantages.turn_gae import bilevel_gae, length_adaptive_lambda
from rllib_llm.data import columns
from rllib_llm.modules.nucleus_mask import unpack_bits
from rllib_llm.recipes import load_recipe

SMALL = (
    "language_model.tiny={hidden_size: 32, intermediate_size: 64}",
    "env_runners.num_envs_per_env_runner=32",
    "rollouts.episodes_per_iteration=32",
    "sft={demonstrations: 200, lr: 1e-2}",
    "training.minibatch_size=16",
    "training.lr=3e-3",
    "evaluation.evaluation_interval=null",
    "env_config.size=3",
)
GROUPS = ("training.drop_zero_variance_groups=false",)


class Seen:
    """The Learner's batches of two iterations."""

    def __init__(self, algo):
        self.learner = algo.learner_group._learner
        self.losses, self.batches = [], []
        self.start = self.weights()
        components = self.learner._composed_loss[DEFAULT_MODULE_ID]
        policy_loss, log_batch = components.policy_loss, self.learner._log_batch

        def keep_loss(batch):
            loss, clipped = policy_loss(batch)
            self.losses.append((batch, loss.detach(), clipped))
            return loss, clipped

        def keep_batch(data):
            self.batches.append(dict(data[DEFAULT_MODULE_ID]))
            log_batch(data)

        components.policy_loss, self.learner._log_batch = keep_loss, keep_batch
        self.results = [algo.train() for _ in range(2)]

    def weights(self):
        module = self.learner.module[DEFAULT_MODULE_ID].unwrapped()
        return {n: p.detach().clone() for n, p in module.named_parameters()}

    def of_episodes(self):
        """Yield what stands at the trained tokens of each episode, by column.

        Those that were cut, whose last value bootstraps, are left out.
        """
        keys = (
            Columns.ADVANTAGES,
            Columns.VALUE_TARGETS,
            columns.VALUES,
            columns.TOKEN_REWARDS,
            columns.TURN_IDS,
        )
        for batch in self.batches:
            owners, mask = batch[columns.EPISODE_INDEX], batch[Columns.LOSS_MASK]
            for owner in owners.unique():
                rows = owners == owner
                if (batch[columns.BOOTSTRAP_COLUMN][rows] >= 0).any():
                    continue
                yield {k: batch[k][rows][mask[rows]].double().numpy() for k in keys}


def is_formula(seen, reference):
    has_moved = False
    for batch, loss, _ in seen.losses:
        expected = reference(batch).to(loss.dtype)
        torch.testing.assert_close(loss, expected, atol=2e-5, rtol=2e-4)
        has_moved |= bool(batch.log_ratio.abs().max() > 1e-3)
    assert has_moved


def dapo(seen):
    """The upper range is wider; the dual clip acts on negative advantages only."""
    is_formula(seen, lambda b: slow_ppo(b, 0.2, 0.28, 3.0))
    for batch, loss, _ in seen.losses:
        up = batch.advantages > 0
        plain = slow_ppo(batch, 0.2, 0.28).to(loss.dtype)
        torch.testing.assert_close(loss[up], plain[up], atol=2e-5, rtol=2e-4)


def gspo(seen):
    is_formula(seen, lambda b: slow_gspo(b, 0.03, 0.04, "sequence"))
    for batch, loss, _ in seen.losses:
        counts = batch.advantages.abs() > 1e-3
        ratio = torch.where(counts, loss / batch.advantages, 0.0)
        for owner in batch.episode_index.unique():
            here = counts & (batch.episode_index == owner)[:, None]
            if here.any():
                assert float(ratio[here].max() - ratio[here].min()) < 1e-4


def cispo(seen):
    is_formula(seen, lambda b: slow_cispo(b, 1.0, 4.0))


def sapo(seen):
    is_formula(seen, lambda b: slow_sapo(b, 1.0, 1.05))
    assert not any(clipped.any() for *_, clipped in seen.losses)


def vapo(seen):
    """Lambda is that of each episode's length; the critic learns alone at first."""
    lambdas = set()
    found, expected = [], []
    for of in seen.of_episodes():
        lambda_ = length_adaptive_lambda(len(of[columns.VALUES]), 0.2)
        advantages, _ = token_gae(
            of[columns.TOKEN_REWARDS], of[columns.VALUES], gamma=1.0, lambda_=lambda_
        )
        lambdas.add(lambda_)
        found.append(of[Columns.ADVANTAGES])
        expected.append(advantages)
        reward = of[columns.TOKEN_REWARDS].sum()
        np.testing.assert_allclose(of[Columns.VALUE_TARGETS], reward, atol=1e-5)
    assert len(lambdas) > 2 and same_but_whitened(found, expected)
    now = seen.weights()
    for name, weight in seen.start.items():
        is_critic = name.startswith("value_head.")
        assert is_critic != torch.equal(now[name], weight), name
    learned = seen.results[-1]["learners"][DEFAULT_MODULE_ID]
    assert learned["loss_term_nll_success"] > 0


def bilevel_ppo(seen):
    found, expected = [], []
    for of in seen.of_episodes():
        ends = np.diff(of[columns.TURN_IDS], append=-1) != 0
        advantages, _ = bilevel_gae(
            of[columns.TOKEN_REWARDS],
            of[columns.VALUES],
            ends,
            gamma=0.95,
            lambda_=1.0,
        )
        found.append(of[Columns.ADVANTAGES])
        expected.append(advantages)
    assert same_but_whitened(found, expected)


def turn_ppo(seen):
    """One advantage per turn, values trained before turns only."""
    for of in seen.of_episodes():
        turns = of[columns.TURN_IDS]
        for turn in np.unique(turns):
            assert len(np.unique(of[Columns.ADVANTAGES][turns == turn])) == 1
    for batch in seen.batches:
        weights, turns = batch[columns.VALUE_WEIGHTS], batch[columns.TURN_IDS]
        rows, cols = (weights > 0).nonzero(as_tuple=True)
        assert (turns[rows, cols] != turns[rows, cols - 1]).all()
    learned = seen.results[-1]["learners"][DEFAULT_MODULE_ID]
    assert 0 < learned["vf_loss"] < 10


def nlpo(seen):
    """Tokens come from the recorded sets, to which the Learner is restricted, too."""
    for batch in seen.batches:
        mask, bits = batch[Columns.LOSS_MASK], batch[columns.ALLOWED_TOKENS]
        allowed = unpack_bits(bits[mask], 8 * bits.shape[-1])
        taken = batch[columns.INPUT_IDS][mask]
        assert allowed.gather(1, taken[:, None]).all()
        sizes = allowed.sum(-1)
        assert 1 < sizes.float().mean() < 0.9 * len(allowed[0])
        old, recorded = batch[Columns.ACTION_LOGP], batch[columns.BEHAVIOUR_LOGP]
        torch.testing.assert_close(old[mask], recorded[mask], atol=1e-4, rtol=0)
        assert columns.REF_LOGP in batch


def same_but_whitened(found, expected):
    """Return whether all batches' advantages are equal up to shift and scale."""
    for one, other in zip(found, expected, strict=True):
        if len(one) > 2 and np.ptp(other) > 1e-4:
            assert np.corrcoef(one, other)[0, 1] > 1 - 1e-5
    return sum(np.ptp(x) > 1e-4 for x in expected) > 5


CHECKS = (dapo, gspo, cispo, sapo, vapo, bilevel_ppo, turn_ppo, nlpo)
CASES = {check.__name__: check for check in CHECKS}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", CASES)
def test_two_iterations_follow_the_paper(ray_session, name):
    groups = GROUPS if name in ("dapo", "gspo", "cispo", "sapo") else ()
    if name == "dapo":
        groups = ("training.dynamic_sampling_rounds=1",)
    config = load_recipe(name, (*SMALL, *groups)).config
    algo = config.build_algo()
    seen = Seen(algo)
    algo.stop()
    CASES[name](seen)
    assert np.isfinite(seen.results[-1]["learners"][DEFAULT_MODULE_ID]["grad_norm"])
