"""A Learner's second optimiser step, by slow loops in float64.

Nothing here calls the package's losses, advantages or normalisers: episodes are read
token by token, and formulas stand as in the papers. In the first step the weights are
moved by noise, so that in the second one ratios, values and clips are in force.
"""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data


@dataclasses.dataclass
class Token:
    """A sampled token: its position, and its recorded values."""

    row: int
    column: int
    turn: int
    is_last: bool
    reward: float
    behaviour: float


class Chain:
    """An agent's part of an episode: its rows of ids, and its tokens in time order."""

    def __init__(self, part):
        self.data, self.rows, self.tokens = episode_data(part), [], []
        self.module_id = part.module_id
        turns = part.get_extra_model_outputs(columns.TURN)
        for index, (turn, reward) in enumerate(
            zip(turns, part.get_rewards(), strict=True)
        ):
            if not self.rows or not turn.extends:
                self.rows.append([])
            ids = self.rows[-1]
            ids += list(turn.prompt_ids)
            count = len(turn.action_ids)
            for place, (token, logp) in enumerate(
                zip(turn.action_ids, turn.action_logps, strict=True)
            ):
                last = place == count - 1
                token_reward = float(reward) if last else 0.0
                self.tokens.append(
                    Token(
                        len(self.rows) - 1,
                        len(ids),
                        index,
                        last,
                        token_reward,
                        float(logp),
                    )
                )
                ids.append(token)
        self.bootstraps = bool(part.is_truncated)
        if self.bootstraps and self.data.prompt is not None:
            self.rows[-1] += list(self.data.prompt.ids)

    @property
    def count(self):
        return len(self.tokens)


class Policy(torch.nn.Module):
    """A copy of an LLMRLModule's weights in float64, with plain layers."""

    def __init__(self, module, temperature=1.0):
        super().__init__()
        self.temperature = temperature
        self.lm = fresh(module, module.lm)
        if hasattr(module, "value_head"):
            self.value_head = copy.deepcopy(module.value_head).double()
            if module.value_head.trunk is not None:
                own = fresh(module, module.lm).base_model
                own.load_state_dict(module.value_head.trunk.state_dict())
                self.value_head.trunk = own

    def row_logps(self, ids):
        """Log-probabilities of every next token. [T, V]"""
        logits = self.lm(torch.tensor([ids])).logits[0]
        return torch.log_softmax(logits / self.temperature, -1)

    def scores(self, chain):
        """Log-probability and entropy of each token. 2 x [N]"""
        rows = [self.row_logps(ids) for ids in chain.rows]
        found = []
        for token in chain.tokens:
            logps = rows[token.row][token.column - 1]
            chosen = logps[chain.rows[token.row][token.column]]
            found.append((chosen, -(logps.exp() * logps).sum()))
        return [torch.stack(each) for each in zip(*found, strict=True)]

    def values(self, chain):
        """The critic before each token [N], and after all that was read."""
        rows = []
        for ids in chain.rows:
            trunk = self.value_head.trunk or self.lm.base_model
            hidden = trunk(torch.tensor([ids])).last_hidden_state[0]
            if self.value_head.detach:
                hidden = hidden.detach()
            rows.append(self.value_head.out(self.value_head.body(hidden))[:, 0])
        before = [rows[t.row][t.column - 1] for t in chain.tokens]
        return torch.stack(before), rows[-1][-1]


def fresh(module, lm):
    """The language model as transformers loads it, with the weights of ``lm``."""
    made = AutoModelForCausalLM.from_pretrained(
        module.model_config["model"], dtype=torch.float64
    )
    made.load_state_dict(lm.state_dict())
    return made.eval()


def chains_of(episodes):
    return [Chain(part) for episode in episodes for part in agent_episodes(episode)]


@torch.no_grad()
def shake(parameters, size, seed):
    """Move parameters by noise."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter += size * torch.randn(parameter.shape, generator=generator)


@torch.no_grad()
def sample_near(policy, chains, noise=0.4, seed=0):
    """Set the recorded log-probabilities to those of a similar policy."""
    rng = np.random.default_rng(seed)
    for chain in chains:
        for token, logp in zip(chain.tokens, policy.scores(chain)[0], strict=True):
            token.behaviour = float(np.float32(float(logp) + noise * rng.normal()))


def record_behaviour(episodes, chains):
    """Write the chains' log-probabilities into the episodes' turns."""
    parts = [part for episode in episodes for part in agent_episodes(episode)]
    for part, chain in zip(parts, chains, strict=True):
        for index, turn in enumerate(part.get_extra_model_outputs(columns.TURN)):
            logps = [t.behaviour for t in chain.tokens if t.turn == index]
            turn.action_logps[:] = np.asarray(logps, np.float32)


class SecondStep:
    """Runs an update of two steps; the first one is replaced by noise.

    Attributes:
        before: Policies before the update, by module.
        after: As the second step finds them.
        gradients: Of the second step, by module and name.
    """

    def __init__(self, learner, episodes, *, temperature=1.0, noise=0.05):
        self.before, self.after, self.gradients = {}, {}, {}
        modules = {m: learner.module[m].unwrapped() for m in learner.module.keys()}
        names = {p: (m, n) for m, x in modules.items() for n, p in x.named_parameters()}

        def copies():
            return {m: Policy(x, temperature) for m, x in modules.items()}

        def step(grads):
            if not self.after:
                for seed, module in enumerate(modules.values()):
                    shake(module.parameters(), noise, 100 + seed)
                self.after.update(copies())
                return
            for parameter, gradient in grads.items():
                module_id, name = names[parameter]
                self.gradients.setdefault(module_id, {})[name] = gradient.clone()

        self.before.update(copies())
        learner.apply_gradients, learner.config.grad_clip = step, None
        self.result = learner.update(
            training_data=LLMTrainingData(episodes=episodes), timesteps={}, num_epochs=2
        )


def assert_gradient(found, policy, terms, *, rtol=3e-4, least=0.02):
    """The gradient is that of the sum of ``terms``, and each of them matters.

    Args:
        found: The Learner's, by name.
        policy: The reference, of which ``terms`` are functions.
        terms: Scalars by name; their sum is the loss.
        rtol: Allowed norm of the difference, relative to the norm of the gradient.
        least: Smallest norm of a term's own gradient, likewise: above ``rtol``, so
            that no term can be left out, doubled or negated.
    """
    named = dict(policy.named_parameters())

    def gradient(loss):
        grads = torch.autograd.grad(
            loss, named.values(), retain_graph=True, allow_unused=True
        )
        return {
            n: torch.zeros_like(named[n]) if g is None else g
            for n, g in zip(named, grads, strict=True)
        }

    def norm(tensors):
        return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))

    groups = {"lm": [], "value_head": []}
    for name in named:
        groups[name.split(".")[0]].append(name)
    each = {name: gradient(loss) for name, loss in terms.items()}
    total = {n: sum(g[n] for g in each.values()) for n in named}
    assert set(found) <= set(named)
    for names in groups.values():
        size = norm(total[n] for n in names)
        if not names or not size:
            assert not any(found[n].any() for n in names if n in found)
            continue
        apart = norm(found[n].double() - total[n] for n in names if n in found)
        missing = norm(total[n] for n in names if n not in found)
        assert apart + missing <= rtol * size, (names[0], apart / size, missing / size)
    sizes = {name: norm(g.values()) for name, g in each.items()}
    whole = norm(total.values())
    small = {n: s / whole for n, s in sizes.items() if s < least * whole}
    assert not small, f"terms that hardly matter: {small} of {sizes}"


# Formulas ----------------------------------------------------------------------------


def surrogate(ratio, advantage, low, high, dual=None):
    """PPO's clipped objective of one token (1707.06347, eq. 7; 1912.09729)."""
    held = ratio.clamp(1 - low, 1 + high)
    objective = torch.minimum(ratio * advantage, held * advantage)
    if dual is not None and advantage < 0:
        objective = torch.maximum(objective, torch.tensor(dual * advantage).double())
    return objective


def k3(logp, other):
    """Schulman's estimate of KL(p || other) from a token of p."""
    d = other - logp
    return d.exp() - d - 1


def gae(rewards, values, ends, last, *, gamma, lam, gamma_token, lam_token):
    """Advantages of one chain, by the recursion from the end."""
    out, following, next_value = [0.0] * len(rewards), 0.0, last
    for i in reversed(range(len(rewards))):
        g, trace = (gamma, lam) if ends[i] else (gamma_token, lam_token)
        error = rewards[i] + g * next_value - values[i]
        following = error + g * trace * following
        out[i], next_value = following, values[i]
    return out


def whitened(advantages):
    """Standard scores over all numbers of a list of lists."""
    every = [a for of in advantages for a in of]
    mean = sum(every) / len(every)
    std = math.sqrt(sum((a - mean) ** 2 for a in every) / (len(every) - 1))
    return [[(a - mean) / (std + 1e-8) for a in of] for of in advantages]


def mismatch(old, behaviour, *, tis=None, band=(None, None), sequence=(None, None)):
    """Weights of a sequence's tokens: truncated, or 0 outside a band."""
    logs = [o - b for o, b in zip(old, behaviour, strict=True)]
    mean = math.exp(sum(logs) / len(logs))
    kept = (sequence[0] or 0) <= mean <= (sequence[1] or math.inf)
    weights = []
    for log in logs:
        inside = (band[0] or 0) <= math.exp(log) <= (band[1] or math.inf)
        weight = min(math.exp(log), tis) if tis else 1.0
        weights.append(weight if kept and inside else 0.0)
    return weights
