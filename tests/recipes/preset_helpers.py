"""Shipped presets as configurations, and small rollouts to hold them against."""

from __future__ import annotations

import functools

import torch

from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.data.types import Task
from rllib_llm.losses.token_batch import TokenBatch
from rllib_llm.recipes import load_recipe, search_spaces


@functools.cache
def config_of(name, stage=-1, value=search_spaces.first_of):
    """Return the configuration of a preset, of its last stage if it has several."""
    return load_recipe(name).stages[stage].build_config(value)


def rollout(index, rewards, *, task=0, greedy=None, **fields):
    """Return a trajectory; what is not given is uneventful."""
    turns = len(rewards)
    given = {
        "observations": [f"place {i}" for i in range(turns)],
        "completions": ["so"] * turns,
        "steps": list(range(turns)),
        "num_tokens": [2] * turns,
        "invalid": [False] * turns,
        "success": sum(rewards) > 0.5,
    }
    return Trajectory(
        task=Task(group_id=task, rollout=index, seed=task),
        episode=100 * task + index,
        agent=0,
        agent_id="agent",
        module_id="policy",
        rewards=[float(r) for r in rewards],
        greedy_return=greedy,
        **given | fields,
    )


def searcher(index, searches, answer, *, failed=0, task=0, **fields):
    """Return a rollout that makes queries, and says an answer in its last turn.

    Args:
        index: Number of the rollout.
        searches: Pairs of a query and the documents that it found.
        answer: The final answer; None: a completion without one. "right" is correct.
        failed: How many of the searches, the first ones, found nothing.
        task: Number of the task.
        fields: See ``rollout``.
    """
    known = {
        "gold_answers": ["right"],
        "gold_documents": ["zanos lives in ratal", "ratal has a river"],
        "gold_queries": ["home of Zanos", "river of Ratal"],
    }
    infos = [
        {"tool": "search", "tool_error": i < failed, "query": q, "documents": found}
        for i, (q, found) in enumerate(searches)
    ] + [{"tool": None, "tool_error": False, "query": None, "documents": []}]
    completions = [f"<search>{query}</search>" for query, _ in searches]
    completions.append("well" if answer is None else f"<answer>{answer}</answer>")
    turns = len(completions)
    defaults = {
        "infos": [known | info for info in infos],
        "completions": completions,
        "invalid": [False] * (turns - 1) + [answer is None],
        "success": answer == "right",
    }
    rewards = [0.0] * (turns - 1) + [float(answer == "right")]
    return rollout(index, rewards, task=task, **defaults | fields)


def advantages_of(name, trajectories, **of):
    """Return what a preset credits to each turn of each trajectory."""
    table = TurnTable(trajectories)
    found = config_of(name, **of).build_advantage_estimators().advantages(table)
    return [part.tolist() for part in table.split(found)]


def tokens(ratios, advantages, **fields):
    """Return a row of one episode's tokens, and its log-probabilities to derive by."""
    ratio = torch.tensor([ratios], dtype=torch.float64)
    logp = (ratio.log() - 2.0).requires_grad_()
    given = {
        "old_logp": torch.full_like(ratio, -2.0),
        "advantages": torch.tensor([advantages], dtype=torch.float64),
        "mask": torch.ones_like(ratio, dtype=torch.bool),
        "entropy": torch.zeros_like(ratio),
        "turn_ids": torch.zeros_like(ratio, dtype=torch.int64),
        "episode_index": torch.zeros(1, dtype=torch.int64),
        "success": torch.ones(1, dtype=torch.float64),
        "ref_logp": torch.full_like(ratio, -2.0),
    }
    return TokenBatch(logp=logp, **given | fields), logp


def loss_of(name, ratios, advantages):
    """Return a preset's policy loss at tokens of some ratios and advantages."""
    batch, _ = tokens(ratios, advantages)
    loss, _ = config_of(name).build_composed_loss().policy_loss(batch)
    return loss[0].tolist()


def slope_of(name, ratios, advantages):
    """Return what it does to the log-probabilities of these tokens."""
    batch, logp = tokens(ratios, advantages)
    loss, _ = config_of(name).build_composed_loss().policy_loss(batch)
    return torch.autograd.grad(loss.sum(), logp)[0][0].tolist()
