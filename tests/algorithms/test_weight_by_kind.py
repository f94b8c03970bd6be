"""Difficulty of a kind of task, from collected episodes to the gradient."""

from __future__ import annotations

import numpy as np
import torch
from learner_helpers import assert_close, fake_episode, gradients, make_config, moved
from setting_places import Fake

from rllib_llm import GRPOConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import MIXTURE_ENVIRONMENT

# Two groups of each environment, four rollouts each.
SUCCESS = {"find": ([1, 0, 0, 0], [1, 1, 0, 0]), "count": ([1, 1, 1, 0], [1, 0, 1, 1])}


def gradient(transforms=(), scales=None):
    """Return the gradient of a step; advantages are scaled by environment at last."""
    config = make_config(
        GRPOConfig, advantage_transforms=list(transforms), micro_batch_tokens=None
    )
    config.rollouts(group_size=4, episodes_per_iteration=16)
    episodes = []
    for number, (name, groups) in enumerate(SUCCESS.items()):
        for part, solved in enumerate(groups):
            for rollout, success in enumerate(solved):
                group = 2 * number + part
                episode = fake_episode(
                    10 * group + rollout, turns=2, reward=float(success), group=group
                )
                data = episode_data(episode)
                data.success = bool(success)
                data.task.options[MIXTURE_ENVIRONMENT] = name
                episodes.append(episode)
    left = Fake(config, episodes).collect()
    assert len(left) == 16
    for episode in left:
        data = episode_data(episode)
        assert np.any(data.advantage)
        data.advantage *= (scales or {}).get(data.task.environment, 1.0)
    return gradients(moved(config), left)


def test_the_gradient_of_each_environment_is_weighed_by_its_difficulty():
    alone = {
        name: gradient(scales={n: float(n == name) for n in SUCCESS})
        for name in SUCCESS
    }
    rate = {name: np.mean(groups) for name, groups in SUCCESS.items()}
    assert rate == {"find": 0.375, "count": 0.75}
    weight = {"name": "weight", "by": "environment", "strength": 0.5}
    found = gradient([weight])
    assert_close(
        found,
        {
            name: sum((0.5 + 0.5 * (1 - rate[n])) * alone[n][name] for n in SUCCESS)
            for name in found
        },
    )
    changed = [not torch.equal(found[name], g) for name, g in gradient().items()]
    assert all(changed)
