"""Losses of turns' values against loops, and on a task whose Q* is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rllib_llm.envs.make import make_env
from rllib_llm.losses.turn_value_losses import (
    expectile_loss,
    success_advantages,
    td_targets,
    turn_critic_loss,
    vtrace,
)

# Three episodes of 3, 1 and 2 turns, not in order.
NEXT = torch.tensor([2, -1, 4, 5, -1, -1])


def numbers(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (6,)), generator=generator, dtype=torch.float64)


def test_targets_against_a_loop():
    rewards, values = numbers(0), numbers(1)
    found = td_targets(rewards, values, NEXT, gamma=0.9)
    for turn, after in enumerate(NEXT.tolist()):
        later = 0.0 if after < 0 else 0.9 * float(values[after])
        assert float(found[turn]) == pytest.approx(float(rewards[turn]) + later)


@pytest.mark.parametrize("expectile", [0.5, 0.8, 0.1])
def test_losses_against_a_loop(expectile):
    q, target_q = numbers(0, 2, 6), numbers(1, 2, 6)
    v, target_v, rewards = numbers(2), numbers(3), numbers(4)
    of_q, of_v = turn_critic_loss(
        q, v, target_q, target_v, rewards, NEXT, gamma=0.9, expectile=expectile
    )
    for turn, after in enumerate(NEXT.tolist()):
        later = 0.0 if after < 0 else 0.9 * float(target_v[after])
        target = float(rewards[turn]) + later
        errors = [(float(q[i, turn]) - target) ** 2 for i in range(2)]
        assert float(of_q[turn]) == pytest.approx(sum(errors) / 2, rel=1e-12)
        u = min(float(target_q[i, turn]) for i in range(2)) - float(v[turn])
        weight = 1 - expectile if u < 0 else expectile
        assert float(of_v[turn]) == pytest.approx(weight * u**2, rel=1e-12)


def slow_vtrace(values, rewards, log_ratios, episode, gamma, threshold):
    """Targets and advantages of an episode's turns, as the sum of the paper's eq. 1."""
    w = [math.exp(float(log_ratios[i])) for i in episode]
    v = [float(values[i]) for i in episode] + [0.0]
    r = [float(rewards[i]) for i in episode]
    rho, c = [min(threshold, x) for x in w], [min(1.0, x) for x in w]
    targets = []
    for s in range(len(r)):
        total = v[s]
        for t in range(s, len(r)):
            weight = gamma ** (t - s) * math.prod(c[s:t]) * rho[t]
            total += weight * (r[t] + gamma * v[t + 1] - v[t])
        targets.append(total)
    after = [*targets[1:], 0.0]
    advantages = [rho[s] * (r[s] + gamma * after[s] - v[s]) for s in range(len(r))]
    return targets, advantages


@pytest.mark.parametrize("threshold", [0.7, 1.0, 5.0])
def test_vtrace_against_the_sum(threshold):
    values, rewards, log_ratios = numbers(0), numbers(1), numbers(2)
    targets, advantages = vtrace(
        values,
        rewards,
        log_ratios,
        NEXT,
        gamma=0.9,
        clip_rho_threshold=threshold,
    )
    for episode in ([0, 2, 4], [1], [3, 5]):
        expected = slow_vtrace(values, rewards, log_ratios, episode, 0.9, threshold)
        for found, of_turns in zip((targets, advantages), expected, strict=True):
            assert found[episode].tolist() == pytest.approx(of_turns, rel=1e-12)


def test_on_policy_vtrace_targets_are_returns():
    values, rewards = numbers(0).requires_grad_(), numbers(1)
    targets, advantages = vtrace(values, rewards, 0 * rewards, NEXT, gamma=0.9)
    of = [float(rewards[i]) for i in (0, 2, 4)]
    expected = of[0] + 0.9 * (of[1] + 0.9 * of[2])
    assert float(targets[0]) == pytest.approx(expected, rel=1e-12)
    assert float(advantages[0]) == pytest.approx(expected - float(values[0]))
    assert not targets.requires_grad and not advantages.requires_grad


def test_impossible_and_certain_turns_stay_finite():
    log_ratios = torch.tensor([-1e9, 1e9, 0.0, 0.0, -math.inf, math.inf])
    found = vtrace(numbers(0), numbers(1), log_ratios.double(), NEXT, gamma=0.9)
    assert all(each.isfinite().all() for each in found)
    with pytest.raises(ValueError, match="clip_rho_threshold is 0"):
        vtrace(
            numbers(0), numbers(1), log_ratios, NEXT, gamma=1.0, clip_rho_threshold=0
        )
    none = torch.zeros(0)
    empty = vtrace(none, none, none, torch.zeros(0, dtype=torch.int64), gamma=0.9)
    assert [each.shape for each in empty] == [(0,), (0,)]


def test_targets_have_no_gradient():
    q, v = numbers(0, 2, 6).requires_grad_(), numbers(2).requires_grad_()
    target_q, target_v = numbers(1, 2, 6).requires_grad_(), numbers(3).requires_grad_()
    losses = turn_critic_loss(q, v, target_q, target_v, numbers(4), NEXT, gamma=0.9)
    sum(each.sum() for each in losses).backward()
    assert target_q.grad is None and target_v.grad is None
    assert q.grad.abs().min() > 0 and v.grad.abs().min() > 0


def test_the_order_of_turns_changes_nothing():
    given = [numbers(i, 2, 6) for i in range(2)]
    flat = [numbers(i) for i in range(2, 5)]
    order = torch.tensor([3, 5, 0, 1, 4, 2])
    back = order.argsort()
    after = torch.where(NEXT < 0, NEXT, back[NEXT])[order]
    whole = turn_critic_loss(
        given[0], flat[0], given[1], flat[1], flat[2], NEXT, gamma=0.9
    )
    moved = turn_critic_loss(
        given[0][:, order],
        flat[0][order],
        given[1][:, order],
        flat[1][order],
        flat[2][order],
        after,
        gamma=0.9,
    )
    for one, other in zip(whole, moved, strict=True):
        torch.testing.assert_close(one[order], other)


def test_advantages_of_success_sum_to_the_reward_above_the_first_value():
    logits, rewards = numbers(0), numbers(1)
    found = success_advantages(logits, rewards, NEXT)
    first = 1 / (1 + math.exp(-float(logits[0])))
    of_episode = [0, 2, 4]
    total = sum(float(rewards[i]) for i in of_episode) - first
    assert sum(float(found[i]) for i in of_episode) == pytest.approx(total)


@pytest.mark.parametrize("expectile", [0.0, 1.0, float("nan")])
def test_expectiles_outside_are_refused(expectile):
    with pytest.raises(ValueError, match="Use 0.5 for the mean"):
        expectile_loss(numbers(0), numbers(1), expectile=expectile)


def test_a_discount_outside_is_refused():
    with pytest.raises(ValueError, match="gamma"):
        td_targets(numbers(0), numbers(1), NEXT, gamma=1.5)


# A task with known values -------------------------------------------------------------

WORDS, COST, GAMMA = 2, 0.2, 0.95


@pytest.fixture(scope="module")
def turns():
    """Turns of a random policy: place, turn there, reward, index of the next turn."""
    env = make_env("tool_probe-v0", {"words": WORDS, "cost": COST, "max_turns": 40})
    rng, turns = np.random.default_rng(0), []
    for seed in range(1500):
        text, is_over = env.reset(seed=seed)[0], False
        while not is_over:
            # What the agent knows: whether the word is shown, and which.
            place = text.split(".")[0].split()[-1]
            action = env.unwrapped.random_action(rng)
            text, reward, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
            turns.append((place, action, reward, -1 if is_over else len(turns) + 1))
    env.close()
    return turns


def learned(turns, expectile):
    """Return tables of Q and V that the loss learns from these turns."""
    places = sorted({t[0] for t in turns})
    pairs = sorted({t[:2] for t in turns})
    at = torch.tensor([places.index(t[0]) for t in turns])
    taken = torch.tensor([pairs.index(t[:2]) for t in turns])
    rewards = torch.tensor([t[2] for t in turns], dtype=torch.float64)
    after = torch.tensor([t[3] for t in turns])
    q = torch.zeros(2, len(pairs), dtype=torch.float64, requires_grad=True)
    v = torch.zeros(len(places), dtype=torch.float64, requires_grad=True)
    target_q, target_v = q.detach().clone(), v.detach().clone()
    optimizer = torch.optim.Adam([q, v], lr=0.02)
    for _ in range(600):
        of_q, of_v = turn_critic_loss(
            q[:, taken],
            v[at],
            target_q[:, taken],
            target_v[at],
            rewards,
            after,
            gamma=GAMMA,
            expectile=expectile,
        )
        optimizer.zero_grad()
        (of_q.mean() + of_v.mean()).backward()
        optimizer.step()
        target_q.lerp_(q.detach(), 0.1)
        target_v.lerp_(v.detach(), 0.1)
    of_pairs = dict(zip(pairs, q.detach().mean(0).tolist(), strict=True))
    return of_pairs, dict(zip(places, v.tolist(), strict=True))


def exact_q(value_of_shown):
    """Return Q by place and turn, given the value of a place with the word shown."""
    looked = -COST + GAMMA * value_of_shown
    exact = {("hidden", "red"): 1 / WORDS, ("hidden", "green"): 1 / WORDS}
    for shown in ("red", "green"):
        exact |= {(shown, word): float(word == shown) for word in ("red", "green")}
    return exact | {(p, "look"): looked for p in ("hidden", "red", "green")}


def test_values_of_the_policy_that_played(turns):
    q, v = learned(turns, 0.5)
    # v = (1 + 0 + (-cost + gamma v)) / 3
    shown = (1 - COST) / (3 - GAMMA)
    exact = exact_q(shown)
    assert all(abs(q[pair] - exact[pair]) < 0.05 for pair in exact)
    assert v["red"] == pytest.approx(shown, abs=0.05)


def test_the_expectile_learns_the_best_policy_from_a_random_one(turns):
    q, v = learned(turns, 0.99)
    exact = exact_q(1.0)
    assert all(abs(q[pair] - exact[pair]) < 0.05 for pair in exact)
    assert v["hidden"] == pytest.approx(exact["hidden", "look"], abs=0.05)
    assert max(exact, key=lambda p: (p[0] == "hidden") * q[p]) == ("hidden", "look")


def test_vtrace_learns_another_policys_values_from_random_turns(turns):
    """With a threshold above all ratios: the values of the other policy, exactly."""
    places = sorted({t[0] for t in turns})
    at = torch.tensor([places.index(t[0]) for t in turns])
    rewards = torch.tensor([t[2] for t in turns], dtype=torch.float64)
    after = torch.tensor([t[3] for t in turns])

    def chance(place, turn):
        if place == "hidden":
            return 0.5 if turn == "look" else 0.25
        return 0.8 if turn == place else 0.1

    ratios = torch.tensor([3 * chance(t[0], t[1]) for t in turns], dtype=torch.float64)
    shown = (0.8 - 0.1 * COST) / (1 - 0.1 * GAMMA)
    exact = {
        "red": shown,
        "green": shown,
        "hidden": 0.25 + 0.5 * (GAMMA * shown - COST),
    }

    def values(threshold):
        v = torch.zeros(len(places), dtype=torch.float64)
        count = torch.zeros_like(v).index_add_(0, at, torch.ones(len(at)).double())
        for _ in range(200):
            targets, _ = vtrace(
                v[at],
                rewards,
                ratios.log(),
                after,
                gamma=GAMMA,
                clip_rho_threshold=threshold,
            )
            v = torch.zeros_like(v).index_add_(0, at, targets) / count
        return dict(zip(places, v.tolist(), strict=True))

    learned_values = values(10.0)
    assert all(abs(learned_values[p] - exact[p]) < 0.05 for p in exact)
    # Clipped, they lie between those of the two policies.
    of_random = (1 - COST) / (3 - GAMMA)
    assert of_random + 0.05 < values(1.0)["red"] < exact["red"] - 0.05
