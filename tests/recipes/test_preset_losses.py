"""Losses and critics of each preset, compared with values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from preset_helpers import config_of, loss_of, slope_of, tokens
from ray.rllib.core.columns import Columns

from rllib_llm.connectors.learner.token_gae import episode_gae, token_penalties
from rllib_llm.connectors.pipelines import gae_settings
from rllib_llm.data import columns
from rllib_llm.losses.action_distillation import ActionProbs
from rllib_llm.modules.action_head import score_weight
from rllib_llm.recipes import shipped_recipes

approx = pytest.approx


# Losses ------------------------------------------------------------------------------

CLIP_HIGHER = ["dapo", "demystifying", "grpo_roc", "starpo_s", "vapo", "bilevel_ppo"]


@pytest.mark.parametrize("name", CLIP_HIGHER)
def test_clip_higher_leaves_more_room_upwards(name):
    found = loss_of(name, [1.5, 1.1, 0.5, 0.5], [1, 1, 1, -1])
    assert found == approx([-1.28, -1.1, -0.5, 0.8])


@pytest.mark.parametrize(
    "name, bound",
    [("dapo", 3.0), ("demystifying", 10.0), ("starpo_s", 25.0), ("vapo", 25.0)],
)
def test_the_dual_clip_bounds_punishment_only(name, bound):
    assert loss_of(name, [25.0, 25.0], [-1, 1]) == approx([bound, -1.28])
    # Where it acts the gradient is 0; positive advantages below the range keep it.
    slope = slope_of(name, [25.0, 0.1], [-1, 1])
    assert slope == approx([0.0 if bound < 25 else 25.0, -0.1])


def test_loop_clips_multiplicatively_and_drops_small_advantages():
    assert loss_of("loop", [2.0, 0.5], [1, -1]) == approx([-1.1, 1 / 1.1])
    batch, _ = tokens([1.0] * 3, [0.009, -0.011, 1.0])
    kept = config_of("loop").build_composed_loss().transform(batch)
    assert kept[0].tolist() == approx([0, -0.011, 1.0])
    assert config_of("loop").num_epochs == 2


def test_gspo_has_one_ratio_per_episode():
    inside = [math.exp(0.05), math.exp(-0.01)]
    assert loss_of("gspo", inside, [1, 1]) == approx([-math.exp(0.02)] * 2)
    beyond = [math.exp(0.1), math.exp(0.02)]
    assert loss_of("gspo", beyond, [1, -1]) == approx([-1.04, math.exp(0.06)])
    # The second token alone would be inside, and moves as little as the first.
    assert slope_of("gspo", beyond, [1, 1]) == approx([0, 0])


def test_cispo_bounds_the_weight_and_keeps_the_gradient():
    assert slope_of("cispo", [10.0, 0.01, 1.0], [1, 1, -1]) == approx([-5, -0.01, 1])


def test_sapo_fades_on_both_sides_and_faster_for_punishment():
    def gate(ratio, tau):
        s = 1 / (1 + math.exp(-tau * (ratio - 1)))
        return 4 * s * (1 - s) * ratio

    found = slope_of("sapo", [1.0, 3.0, 3.0, 0.2], [1, 1, -1, 1])
    assert found == approx([-1, -gate(3, 1.0), gate(3, 1.05), -gate(0.2, 1.0)])
    assert abs(found[2]) < abs(found[1])


def test_vapo_imitates_solved_episodes():
    for success, weight in ((1.0, 0.1), (0.0, 0.0)):
        solved = torch.tensor([success], dtype=torch.float64)
        batch, logp = tokens([1.0, 1.0], [0, 0], success=solved)
        ((name, loss),) = config_of("vapo").build_composed_loss().term_losses(batch)
        slope = torch.autograd.grad(loss.sum(), logp)[0][0]
        assert name == "nll_success" and slope.tolist() == approx([-weight] * 2)


@pytest.mark.parametrize("update, weight", [(0, 10), (10, 5.05), (20, 0.1), (99, 0.1)])
def test_llm4teach_lets_its_teacher_fade(update, weight):
    """Every admissible action is pulled up by its probability under the teacher."""
    teacher = [0.7, 0.2, 0.1]
    actions = choices([0.5, 0.25, 0.25], teacher)
    batch, _ = tokens([1.0] * 3, [0] * 3, actions=actions, update=update)
    ((_, loss),) = config_of("llm4teach").build_composed_loss().term_losses(batch)
    slope = torch.autograd.grad(loss.sum(), actions.logps)[0]
    assert slope.tolist() == 3 * [approx([-weight * p for p in teacher])]


def choices(student, teacher):
    """Three turns at tokens 0 to 2, each a choice among the same actions."""
    logps = torch.tensor([student] * 3, dtype=torch.float64).log().requires_grad_()
    reference = torch.tensor([teacher] * 3, dtype=torch.float64).log()
    return ActionProbs(logps, torch.zeros(3).long(), torch.arange(3), reference)


WITH_COMPONENTS = [
    name
    for name, path in shipped_recipes().items()
    if path.parent.name in ("grpo", "ppo") and config_of(name).policy_loss is not None
]


@pytest.mark.parametrize("name", WITH_COMPONENTS)
def test_masked_tokens_have_no_part_and_nothing_gives_zero(name):
    config = config_of(name)
    components = config.build_composed_loss()
    # DigiRL imitates, and only where the advantage is above a threshold.
    last = 1 if config.policy_loss == {"name": "nll", "above": 0.05} else -1
    for mask in ([True, False, True], [False] * 3):
        advantages = [1, -50, last]
        batch, logp = tokens(
            [1.05, 3.0, 0.95],
            advantages,
            mask=torch.tensor([mask]),
            actions=choices([0.5, 0.5], [0.5, 0.5]),
        )
        total = components.policy_loss(batch)[0].sum()
        total = total + sum(loss.sum() for _, loss in components.term_losses(batch))
        slope = torch.autograd.grad(total, logp)[0][0]
        assert (slope != 0).tolist() == mask


# Critics -----------------------------------------------------------------------------

# Two turns of two tokens and one of one; the second turn has no reward.
REWARDS = np.array([0, 0.5, 0, 0, 1.0])
VALUES = np.array([0.3, 0.1, 0.4, 0.2, 0.6])
ENDS = np.array([False, True, False, True, True])


def gae(name, rewards=REWARDS, values=VALUES, ends=ENDS):
    settings = gae_settings(config_of(name))
    return episode_gae(rewards, values, ends, settings, bootstrap_value=0.0)


def test_ppo_discounts_between_turns_and_not_inside():
    expected, later, value = [], 0.0, 0.0
    for r, v, end in zip(REWARDS[::-1], VALUES[::-1], ENDS[::-1], strict=True):
        later = r + value - v + (0.95 if end else 1.0) * later
        value = v
        expected.insert(0, later)
    advantages, targets = gae("frozen_lake_ppo")
    assert advantages == approx(expected) and targets == approx(VALUES + expected)


OF_RETURNS = ["search_r1", "stepsearch", "ppr_renorm", "deepretrieval"]


@pytest.mark.parametrize("name", OF_RETURNS)
def test_advantages_of_search_presets_are_return_to_go_less_value(name):
    to_go = REWARDS[::-1].cumsum()[::-1]
    advantages, targets = gae(name)
    assert advantages == approx(to_go - VALUES) and targets == approx(to_go)


def test_turn_ppo_has_one_advantage_per_turn():
    third = 1.0 - 0.6
    second = 0.99 * 0.6 - 0.4 + 0.99 * 0.95 * third
    first = 0.5 + 0.99 * 0.4 - 0.3 + 0.99 * 0.95 * second
    assert gae("turn_ppo")[0] == approx([first, first, second, second, third])


def test_bilevel_gae_ends_turns_that_earn_nothing_too():
    third = 1.0 - 0.6
    second = 0.95 * 0.6 - 0.2 + 0.95 * third
    first = 0.5 + 0.95 * 0.2 - 0.1 + 0.95 * second
    inside = [0.1 - 0.3 + first, first, 0.2 - 0.4 + second, second, third]
    assert gae("bilevel_ppo")[0] == approx(inside)


@pytest.mark.parametrize(
    "length, lambda_", [(3, 0.0), (5, 0.0), (10, 0.5), (40, 0.875)]
)
def test_vapos_lambda_is_that_of_the_length(length, lambda_):
    """1 - 1 / (0.2 * length); the critic's targets are returns."""
    rewards, values = np.zeros(length), np.linspace(0.1, 0.8, length)
    rewards[-1] = 1.0
    errors = rewards + np.append(values[1:], 0) - values
    expected = [
        sum(lambda_**k * e for k, e in enumerate(errors[i:])) for i in range(length)
    ]
    ends = np.arange(length) == length - 1
    advantages, targets = gae("vapo", rewards, values, ends)
    assert advantages == approx(expected) and targets == approx(np.ones(length))


def test_search_r1_takes_the_kl_out_of_the_reward():
    data = {
        Columns.ACTION_LOGP: torch.tensor([[-1.0, -2.0, -9.0]]),
        columns.REF_LOGP: torch.tensor([[-1.5, -2.0, -1.0]]),
        Columns.LOSS_MASK: torch.tensor([[True, True, False]]),
    }
    found = token_penalties(data, gae_settings(config_of("search_r1")))
    assert found[0] == approx([-0.001 * (math.exp(-0.5) + 0.5 - 1), 0, 0])


# Whole actions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, weight", [("glam", 1.0), ("llm4teach", 1.0), ("twosome", 1 / 6)]
)
def test_scores_of_actions_are_sums_or_means(name, weight):
    config = config_of(name)
    assert config.action_head == "score"
    assert score_weight(config.score_norm, 6, "take the red key") == weight
