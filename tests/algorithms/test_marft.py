"""MARFT's learner: losses by hand, orders of update, adapters, several Learners."""

import copy

import numpy as np
import pytest
import torch
from chain_reference import chain, in_float64, message_loss, shared_values
from ray.rllib.core.columns import Columns
from team_helpers import (
    AloneTogether,
    Pair,
    PairTogether,
    Run,
    assert_bit_equal,
    assert_near,
    batches,
    gradients,
    message_ratios,
    single_config,
    team_config,
    wake_critic,
)

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.marft.marft import MARFTConfig
from rllib_llm.data import columns

AGENTS = {"a": "ann_0", "b": "ben_0"}


def drift(learner, module_ids, scale=0.03):
    """Move policies away from what sampled, so that ratios are not 1."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module_id in module_ids:
            for parameter in learner.module[module_id].unwrapped().lm.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(scale * noise)


def moved(before, after):
    return {n for n in before if not torch.equal(before[n], after[n])}


# One agent ---------------------------------------------------------------------------


ONE_SLOT = {"slots": 1, "rollouts": {"group_size": 2}}


@pytest.mark.parametrize("config_class", [LLMPPOConfig, GRPOConfig])
def test_one_agent_learns_bit_for_bit_what_gymnasiums_does(config_class):
    runs = [
        Run(single_config(config_class, **ONE_SLOT)),
        Run(single_config(config_class, AloneTogether, **ONE_SLOT)),
    ]
    start = runs[0].weights()
    for _ in range(2):
        for run in runs:
            run.update(run.sample(3))
    assert_bit_equal(runs[0].weights(), runs[1].weights())
    assert moved(start, runs[0].weights())


def test_marft_with_one_agent_is_llmppo():
    training = {"critic": "own", "level": "token", "whiten_by": "batch", "gamma": 0.9}
    runs = [
        Run(single_config(LLMPPOConfig, training={"gamma": 0.9}, **ONE_SLOT)),
        Run(single_config(MARFTConfig, AloneTogether, training=training, **ONE_SLOT)),
    ]
    for run in runs:
        wake_critic(run.learner, "default_policy")
    for _ in range(2):
        for run in runs:
            run.update(run.sample(3))
    # The two chains add up in different orders.
    assert_near(runs[0].weights(), runs[1].weights(), atol=5e-6)


# Losses by hand ----------------------------------------------------------------------


@pytest.mark.parametrize("message_logp", ["mean", "sum"])
def test_action_level_loss_is_that_of_the_definition(message_logp):
    training = {
        "gamma": 0.9,
        "lambda_": 0.8,
        "whiten_advantages": False,
        "message_logp": message_logp,
        "entropy_coeff": 0.01,
        "old_logps": "engine",
    }
    run = Run(team_config(Pair, training=training))
    wake_critic(run.learner)
    episodes = run.sample(3)
    drift(run.learner, "ab")
    critic = run.learner.module["critic"].unwrapped()
    settings = {"clip": 0.2, "entropy_coeff": 0.01, "how": message_logp}
    advantages = {}
    for index, episode in enumerate(episodes):
        found, _ = chain(
            episode, shared_values(critic, episode), gamma=0.9, lambda_=0.8
        )
        advantages |= {(index, step): a for step, a in found.items()}
    taken = gradients(run.learner, episodes)
    for module_id, agent in AGENTS.items():
        lm = in_float64(run.learner.module[module_id].unwrapped().lm)
        loss = message_loss(lm, episodes, [agent], advantages, settings)
        loss.backward()
        for name, parameter in lm.named_parameters():
            got = taken[module_id].get(f"lm.{name}")
            if got is not None:
                torch.testing.assert_close(
                    got.double(), parameter.grad, atol=1e-5, rtol=1e-3
                )
        assert max(g.abs().max() for g in taken[module_id].values()) > 1e-3


def test_the_critic_learns_one_value_per_message_or_per_token():
    for level in ("action", "token"):
        run = Run(team_config(Pair, training={"level": level, "vf_loss_coeff": 0.5}))
        wake_critic(run.learner)
        episodes = run.sample(2)
        data = batches(run.learner, episodes)["critic"]
        chosen = data[Columns.LOSS_MASK]
        if level == "action":
            chosen = data[columns.MESSAGE_STARTS] > 0
            assert int(chosen.sum()) == 8
        critic = run.learner.module["critic"].unwrapped()
        critic.zero_grad()
        error = critic.compute_values(data) - data[Columns.VALUE_TARGETS]
        (0.5 * error[chosen].square().mean()).backward()
        wanted = {
            n: p.grad.clone()
            for n, p in critic.named_parameters()
            if p.grad is not None
        }
        critic.zero_grad()
        assert_near(gradients(run.learner, episodes)["critic"], wanted)


CASES = [
    {"level": "action"},
    {"level": "token"},
    {"level": "action", "critic": "central"},
    {"level": "token", "critic": "own"},
]


@pytest.mark.parametrize("training", CASES)
def test_micro_batches_of_any_size_give_the_same_gradient(training):
    found = []
    for tokens in (None, 1, 300):
        settings = {**training, "micro_batch_tokens": tokens, "entropy_coeff": 0.01}
        run = Run(team_config(Pair, training=settings))
        for module_id in ["critic"] if run.config.critic_view else ["a", "b"]:
            wake_critic(run.learner, module_id)
        drift(run.learner, "ab")
        if not found:
            episodes = run.sample(4)
        found.append(gradients(run.learner, episodes))
    for other in found[1:]:
        for module_id, taken in found[0].items():
            assert_near(taken, other[module_id], atol=5e-6, rtol=1e-3)


def test_shared_and_own_critics_agree_where_their_weights_do():
    runs = [
        Run(team_config(Pair, training={"critic": critic}))
        for critic in ("shared", "own")
    ]
    wake_critic(runs[0].learner)
    for module_id in "ab":
        head = runs[1].learner.module[module_id].unwrapped().value_head
        common = runs[0].learner.module["critic"].unwrapped().value_head
        head.load_state_dict(common.state_dict())
    episodes = runs[0].sample(3)
    shared, own = (batches(r.learner, episodes) for r in runs)
    for module_id in "ab":
        torch.testing.assert_close(
            shared[module_id][Columns.ADVANTAGES], own[module_id][Columns.ADVANTAGES]
        )
    left, right = (gradients(r.learner, episodes) for r in runs)
    for module_id in "ab":
        policy = {n: g for n, g in right[module_id].items() if n.startswith("lm.")}
        assert_near(left[module_id], policy)


def test_simultaneous_agents_share_the_step():
    run = Run(team_config(PairTogether, training={"whiten_advantages": False}))
    wake_critic(run.learner)
    made = batches(run.learner, run.sample(3))
    for joint in range(3):
        for step in (0, 1):
            found = [
                data[Columns.ADVANTAGES][row][
                    (data[columns.TURN_STEPS][row] == step)
                    & data[Columns.LOSS_MASK][row]
                ]
                for data in (made["a"], made["b"])
                for row in [
                    int((data[columns.MULTI_AGENT_EPISODE_INDEX] == joint).nonzero())
                ]
            ]
            assert len(set(torch.cat(found).tolist())) == 1


# Order of updates --------------------------------------------------------------------


def test_alternate_trains_one_policy_at_a_time_and_the_critic_always():
    training = {"update_schedule": "alternate", "alternate_every": 2}
    run = Run(team_config(Pair, training=training))
    joint = Run(team_config(Pair))
    wake_critic(run.learner)
    wake_critic(joint.learner)
    episodes = run.sample(2)
    # Credit runs through the messages of those that wait, too.
    alone, both = batches(run.learner, episodes), batches(joint.learner, episodes)
    for key in (Columns.ADVANTAGES, columns.INPUT_IDS):
        assert torch.equal(alone["a"][key], both["a"][key])
    critics = alone["critic"], both["critic"]
    assert torch.equal(*(c[Columns.VALUE_TARGETS] for c in critics))
    seen = []
    for _ in range(5):
        before = {m: run.weights(m) for m in ("a", "b", "critic")}
        run.update(run.sample(2))
        seen.append(
            "".join(m for m in "ab" if moved(before[m], run.weights(m)))
            + ("+" if moved(before["critic"], run.weights("critic")) else "")
        )
    assert seen == ["a+", "a+", "b+", "b+", "a+"]


def test_alternate_gives_the_moving_policy_the_joint_gradient():
    training = {"update_schedule": "alternate"}
    run, joint = Run(team_config(Pair, training=training)), Run(team_config(Pair))
    for each in (run, joint):
        wake_critic(each.learner)
    episodes = run.sample(3)
    alone, both = gradients(run.learner, episodes), gradients(joint.learner, episodes)
    assert set(alone) == {"a", "critic"} and set(both) == {"a", "b", "critic"}
    for module_id in alone:
        assert_near(alone[module_id], both[module_id])


def sequential(game, **training):
    settings = {"update_schedule": "sequential", "lr": 3e-2, "grad_clip": None}
    return team_config(game, training=settings | training)


# A joint action is a round, whether agents act simultaneously or one after the other.
@pytest.mark.parametrize("game", [PairTogether, Pair])
def test_sequential_factors_are_the_ratios_of_those_before(game):
    config = sequential(game, sequential_ratio_clip=0.05, sequential_factor_clip=0.04)
    run = Run(config)
    wake_critic(run.learner)
    episodes = run.sample(3)
    seen = {}
    original = run.learner._correct_others

    def look(data, updated, rest):
        before = {m: data[m][Columns.ADVANTAGES].clone() for m in rest}
        model = copy.deepcopy(run.learner.module[updated].unwrapped().lm)
        original(data, updated, rest)
        for module_id in rest:
            seen[updated, str(module_id)] = (before[module_id], data[module_id], model)

    run.learner._correct_others = look
    run.update(episodes)
    ((updated, _), (before, data, model)) = next(iter(seen.items()))
    assert len(seen) == 1
    clipped = 0
    for row, joint in enumerate(data[columns.MULTI_AGENT_EPISODE_INDEX].tolist()):
        ratios = message_ratios(model, episodes[joint], AGENTS[updated])
        for number, ratio in enumerate(ratios):
            factor = np.clip(np.clip(ratio, 0.95, 1.05), 0.96, 1.04)
            clipped += factor in (0.96, 1.04)
            mask = data[Columns.LOSS_MASK][row]
            here = (data[columns.TURN_IDS][row] == number) & mask
            torch.testing.assert_close(
                data[Columns.ADVANTAGES][row][here],
                before[row][here] * factor,
                atol=1e-5,
                rtol=1e-4,
            )
            assert abs(factor - 1) > 1e-4
    assert clipped


def test_sequential_without_a_change_is_joint():
    runs = [
        Run(team_config(PairTogether, training={"update_schedule": s, "lr": 1e-9}))
        for s in ("joint", "sequential")
    ]
    for run in runs:
        wake_critic(run.learner)
    episodes = runs[0].sample(3)
    joint, one_by_one = (gradients(run.learner, episodes) for run in runs)
    for module_id in joint:
        assert_near(joint[module_id], one_by_one[module_id])
