"""MARFT's whole gradient, three policies one after the other, against loops."""

from __future__ import annotations

import math

import torch
from gradient_reference import (
    Policy,
    assert_gradient,
    chains_of,
    k3,
    mismatch,
    record_behaviour,
    sample_near,
    shake,
    surrogate,
    whitened,
)
from team_helpers import Pair, Run, team_config, update, worth

from rllib_llm.data import columns
from rllib_llm.envs import Outcome

AGENTS = {"ann": "a", "ben": "b", "cat": "c"}
TRAINING = {
    "level": "action",
    "critic": "shared",
    "update_schedule": "sequential",
    "sequential_ratio_clip": 0.06,
    "sequential_factor_clip": 0.1,
    "team_reward": "mean",
    "gamma": 0.9,
    "lambda_": 0.8,
    "clip_param": 0.05,
    "vf_clip_param": 0.2,
    "vf_loss_coeff": 0.4,
    "entropy_coeff": 0.3,
    "ref_kl_coeff": 2.0,
    "tis": "token",
    "tis_clip": 1.2,
    "micro_batch_tokens": 128,
}


class Trio(Pair):
    """Ann, Ben and Cat act in turn, twice each."""

    possible_agents = ["ann_0", "ben_0", "cat_0"]
    max_turns = 12

    def apply(self, agent, action):
        self.texts.append(action)
        over = len(self.texts) == 3 * self.rounds
        return Outcome({agent: worth(action)}, terminated=over)


class Steps:
    """Every optimiser step of an update: its gradients, and the policies before it.

    Each step is replaced by noise on the parameters that it would have moved.
    """

    def __init__(self, learner, episodes, noise=0.04):
        self.modules = {m: learner.module[m].unwrapped() for m in learner.module.keys()}
        names = {
            p: (m, n) for m, x in self.modules.items() for n, p in x.named_parameters()
        }
        self.found = []

        def step(grads):
            taken = {}
            for parameter, gradient in grads.items():
                module_id, name = names[parameter]
                taken.setdefault(module_id, {})[name] = gradient.clone()
            self.found.append((taken, self.copies()))
            shake(grads, noise, len(self.found))

        self.start = self.copies()
        learner.apply_gradients, learner.config.grad_clip = step, None
        update(learner, episodes, num_epochs=2)
        self.end = self.copies()

    def copies(self):
        return {m: Policy(x) for m, x in self.modules.items()}


class Messages:
    """All messages of the episodes in execution order, with advantages."""

    def __init__(self, episodes, start):
        chains = iter(chains_of(episodes))
        self.all, advantages = [], []
        for number, episode in enumerate(episodes):
            parts = episode.agent_episodes.values()
            messages_of_parts = [
                self._of(number, part, next(chains), start) for part in parts
            ]
            in_order = sorted(
                (m for ms in messages_of_parts for m in ms), key=lambda m: m["step"]
            )
            reward_log = episode.custom_data[columns.REWARD_LOG]
            for here, after in zip(in_order, [*in_order[1:], None], strict=True):
                until = math.inf if after is None else after["step"]
                got = [r for t, _, r in reward_log if here["step"] < t <= until]
                here["reward"] = sum(got) / 3
            trace = next_value = 0.0
            for message in reversed(in_order):
                error = message["reward"] + 0.9 * next_value - message["value"]
                trace = error + 0.9 * 0.8 * trace
                message["advantage"], next_value = trace, message["value"]
                message["target"] = message["value"] + trace
            self.all += in_order
        for agent in AGENTS.values():  # each agent's are standardised on their own
            mine = [m for m in self.all if m["policy"] == agent]
            (advantages,) = whitened([[m["advantage"] for m in mine]])
            for message, advantage in zip(mine, advantages, strict=True):
                message["advantage"] = advantage

    @torch.no_grad()
    def _of(self, number, part, chain, start):
        old = start[part.module_id].scores(chain)[0]
        values, _ = start["critic"].values(chain)
        weights = mismatch(old.tolist(), [t.behaviour for t in chain.tokens], tis=1.2)
        found = []
        for index, turn in enumerate(part.get_extra_model_outputs(columns.TURN)):
            at = [i for i, t in enumerate(chain.tokens) if t.turn == index]
            found.append(
                {
                    "policy": part.module_id,
                    "round": (number, index),
                    "step": turn.env_t,
                    "chain": chain,
                    "at": at,
                    "old": old[at],
                    "value": float(values[at[0]]),
                    "weight": sum(weights[i] for i in at) / len(at),
                }
            )
        return found


def factor(message, updated, messages, policies):
    """HAPPO's M: what the policies updated before changed in the same round."""
    product = 1.0
    for other in messages:
        if other["round"] == message["round"] and other["policy"] in updated:
            with torch.no_grad():
                new = policies[other["policy"]].scores(other["chain"])[0][other["at"]]
            ratio = math.exp(float((new - other["old"]).mean()))
            product *= min(max(ratio, 1 - 0.06), 1 + 0.06)
    return min(max(product, 1 - 0.1), 1 + 0.1)


def test_the_whole_gradient_of_sequential_updates():
    config = team_config(
        Trio,
        policies=tuple(AGENTS.values()),
        mapping=AGENTS,
        training=TRAINING,
        language_model={"value_head_detach": False},
    )
    run = Run(config)
    frozen = {m: Policy(run.learner.module[m].unwrapped()) for m in AGENTS.values()}
    for seed, module_id in enumerate(sorted(run.learner.module.keys())):
        shake(run.learner.module[module_id].unwrapped().parameters(), 0.05, seed)
    episodes = run.sample(4)
    chains = chains_of(episodes)
    for chain in chains:
        near = Policy(run.learner.module[chain.module_id].unwrapped())
        sample_near(near, [chain])
    record_behaviour(episodes, chains)
    steps = Steps(run.learner, episodes)
    messages = Messages(episodes, steps.start).all
    order = [next(m for m in taken if m != "critic") for taken, _ in steps.found]
    assert order[::2] == order[1::2] and sorted(order[::2]) == ["a", "b", "c"]
    compounded = 0
    for place, policy in enumerate(order[::2]):
        taken, policies = steps.found[2 * place + 1]
        mine = [m for m in messages if m["policy"] == policy]
        terms = dict.fromkeys(("policy", "reference", "entropy"), 0.0)
        for message in mine:
            updated = order[: 2 * place : 2]
            change = factor(message, updated, messages, policies)
            compounded += len(updated) == 2 and change not in (0.9, 1.0, 1.1)
            chain, at = message["chain"], message["at"]
            scores, entropies = policies[policy].scores(chain)
            with torch.no_grad():
                ref = frozen[policy].scores(chain)[0][at]
            ratio = (scores[at] - message["old"]).mean().exp()
            advantage = message["advantage"] * message["weight"] * change
            objective = surrogate(ratio, advantage, 0.05, 0.05)
            kl = k3((scores[at] - ref).mean(), torch.zeros(()).double())
            added = {
                "policy": -objective,
                "reference": 2.0 * kl,
                "entropy": -0.3 * entropies[at].mean(),
            }
            terms = {n: terms[n] + x / len(mine) for n, x in added.items()}
        assert_gradient(taken[policy], policies[policy], terms)
    assert compounded > 2
    taken, policies = steps.found[1]  # the critic learns beside the first policy
    errors = []
    for message in messages:
        values, _ = policies["critic"].values(message["chain"])
        errors.append((values[message["at"][0]] - message["target"]) ** 2)
    assert any(e > 0.2 for e in errors) and any(e < 0.2 for e in errors)
    loss = sum(0.4 * e.clamp(max=0.2) for e in errors) / len(errors)
    assert_gradient(taken["critic"], policies["critic"], {"critic": loss})
