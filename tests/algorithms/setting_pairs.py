"""Effects of Pref's settings: on pairs, and on the gradient."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from learner_helpers import fake_episode, gradients, make_config, make_learner, policy

from rllib_llm import PrefConfig
from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.algorithms.pref.pref import Pref


def pair_gradient(algo, env=None, **sections):
    """Return the gradient on five pairs, away from the reference."""
    learner = make_learner(make_config(PrefConfig, **sections["training"]))
    with torch.no_grad():
        for p in policy(learner).lm.parameters():
            noise = torch.Generator().manual_seed(p.numel())
            p += 0.02 * torch.randn(p.shape, generator=noise)
    sides = [fake_episode(i, turns=1 + i % 3) for i in range(10)]
    pairs = [PreferencePair(*sides[i : i + 2]) for i in range(0, 10, 2)]
    found = gradients(learner, pairs)
    return torch.cat([g.flatten() for g in found.values()]).numpy()


def matched(algo, env=None, **sections):
    """Return the returns of the pairs of two tasks."""
    config = make_config(PrefConfig, **sections["training"])
    driver = Pref.__new__(Pref)
    driver.config = config.rollouts(group_size=4, episodes_per_iteration=8)
    returns = [0.0, 1.0, 0.5, 1.0, 0.2, 0.1, 0.0, 0.6]
    driver.sample_groups = lambda count: [
        fake_episode(i, reward=r, group=i // 4) for i, r in enumerate(returns)
    ]
    driver.process_episodes = list
    return [
        [sum(side.get_rewards()) for side in pair.agent_episodes.values()]
        for pair in driver._sampled()
    ]


def conversations() -> str:
    """Return the path of a file with one conversation, kept until the tests end."""
    reply = {"role": "assistant", "content": "from a file"}
    row = {"messages": [{"role": "user", "content": "a"}, reply]}
    path = Path(_FOLDER.name) / "rows.jsonl"
    path.write_text(json.dumps(row))
    return str(path)


_FOLDER = tempfile.TemporaryDirectory()
