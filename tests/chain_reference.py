"""MARFT's advantages and loss as slow loops over episodes."""

from __future__ import annotations

import copy

import torch
from team_helpers import turns_of

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data


def conversation(episode, agent):
    """Return all (step, prompt ids, completion ids) of one agent."""
    return [
        (t.env_t, t.prompt_ids.tolist(), t.action_ids.tolist())
        for who, t in turns_of(episode)
        if who == agent
    ]


def everything(episode):
    """Return the same of all agents; the prompts of a step precede its completions."""
    turns = turns_of(episode)
    whole = []
    for step in sorted({t.env_t for _, t in turns}):
        now = [t for _, t in turns if t.env_t == step]
        read = [i for t in now for i in t.prompt_ids.tolist()]
        whole.append((step, read, [i for t in now for i in t.action_ids.tolist()]))
    return whole


@torch.no_grad()
def value_after(module, ids):
    """Return a critic's value after exactly these ids."""
    hidden = module.lm.base_model(input_ids=torch.tensor([ids])).last_hidden_state
    return float(module.value_head(hidden)[0, -1])


def value_at(module, parts, step, extra=()):
    """Return the value of a message, after all prompts before its completion."""
    ids = []
    for env_t, read, completion in parts:
        ids += read
        if env_t == step:
            return value_after(module, ids)
        ids += completion
    return value_after(module, [*ids, *extra])


def chain(episode, value_of, *, gamma, lambda_, how="mean", trained=None):
    """Return advantages and value targets by environment step, by the definition.

    Args:
        episode: A MultiAgentEpisode.
        value_of: Value of an agent's message: (agent, step), None for the end.
        gamma: Discount per step.
        lambda_: GAE parameter per step.
        how: "mean" or "sum" of rewards over agents.
        trained: Agents whose messages make up the chain; None: all that spoke.
    """
    speakers = {}
    for agent, turn in turns_of(episode):
        if trained is None or agent in trained:
            speakers.setdefault(turn.env_t, []).append(agent)
    steps = sorted(speakers)
    count = len(episode.agent_episodes) if how == "mean" else 1
    rewards = dict.fromkeys(steps, 0.0)
    for env_t, _, reward in episode.custom_data[columns.REWARD_LOG]:
        before = [s for s in steps if s < env_t]
        rewards[before[-1] if before else steps[0]] += reward / count
    values = {
        s: sum(value_of(a, s) for a in speakers[s]) / len(speakers[s]) for s in steps
    }
    following = value_of(None, None)
    advantages, trace = {}, 0.0
    for step in reversed(steps):
        delta = rewards[step] + gamma * following - values[step]
        advantages[step] = trace = delta + gamma * lambda_ * trace
        following = values[step]
    targets = {s: values[s] + advantages[s] for s in steps}
    return advantages, targets


def shared_values(module, episode):
    """Return value_of for a critic that reads each agent's own conversation."""

    def value_of(agent, step):
        if agent is not None:
            return value_at(module, conversation(episode, agent), step)
        asked = [p for p in episode.agent_episodes.values() if episode_data(p).prompt]
        asked = [p for p in asked if p.is_truncated]
        ends = [
            value_at(
                module,
                conversation(episode, p.agent_id),
                None,
                episode_data(p).prompt.ids,
            )
            for p in asked
        ]
        return sum(ends) / len(ends) if ends else 0.0

    return value_of


def central_values(module, episode):
    """Return value_of for a critic that reads all conversations."""

    def value_of(agent, step):
        if agent is not None:
            return value_at(module, everything(episode), step)
        if not episode.is_truncated:
            return 0.0
        parts = [episode_data(p) for p in episode.agent_episodes.values()]
        extra = [i for d in parts if d.prompt for i in d.prompt.ids]
        return value_at(module, everything(episode), None, extra)

    return value_of


def in_float64(module):
    return copy.deepcopy(module).double()


def message_loss(lm, episodes, agents, advantages, settings):
    """Return PPO's loss over the messages of some agents, one at a time, in float64.

    Args:
        lm: Their language model, in float64.
        episodes: Of the batch.
        agents: Whose messages.
        advantages: Of each episode and step.
        settings: ``clip``, ``entropy_coeff``, ``how`` ("mean" or "sum").
    """
    total, count = 0.0, 0
    for index, episode in enumerate(episodes):
        for agent in agents:
            ids = []
            for who, turn in turns_of(episode):
                if who != agent:
                    continue
                ids += turn.prompt_ids.tolist()
                start = len(ids)
                ids += turn.action_ids.tolist()
                logits = lm(input_ids=torch.tensor([ids])).logits[0]
                table = torch.log_softmax(logits, dim=-1)
                logps, entropies = [], []
                for place in range(start, len(ids)):
                    logps.append(table[place - 1, ids[place]])
                    row = table[place - 1]
                    entropies.append(-(row.exp() * row).sum())
                old = torch.tensor(turn.action_logps).double()
                log_ratio = (torch.stack(logps) - old).sum()
                if settings["how"] == "mean":
                    log_ratio = log_ratio / len(logps)
                ratio, clip = log_ratio.exp(), settings["clip"]
                advantage = advantages[index, turn.env_t]
                gain = torch.minimum(
                    ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
                )
                entropy = torch.stack(entropies).mean()
                total = total - gain - settings["entropy_coeff"] * entropy
                count += 1
    return total / count
