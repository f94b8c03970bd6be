"""Standardisation of advantages: all together, by agent, over messages alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from team_helpers import Pair, Run, batches, team_config

from rllib_llm import LLMPPOConfig
from rllib_llm.connectors.learner.whiten_rows import whiten_rows
from rllib_llm.data import columns
from rllib_llm.errors import ConfigError

CPU = torch.device("cpu")


def drawn():
    """Advantages, masks and agents of two batches, of three agents in all."""
    rng = np.random.default_rng(0)
    shapes = [(4, 5), (3, 7)]
    arrays = [rng.normal(2.0, 3.0, s) for s in shapes]
    masks = [rng.random(s) < 0.6 for s in shapes]
    agents = [np.array([0, 1, 0, 2]), np.array([2, 0, 1])]
    return arrays, masks, agents


def slowly(arrays, masks, keys, counted):
    """Standardise token by token: lists of values by key, then their moments."""
    values = {}
    for array, mask, key, counts in zip(arrays, masks, keys, counted, strict=True):
        for place in np.argwhere(mask & counts):
            values.setdefault(key[place[0]], []).append(array[tuple(place)])
    out = []
    for array, mask, key in zip(arrays, masks, keys, strict=True):
        new = array.copy()
        for place in np.argwhere(mask):
            own = np.array(values[key[place[0]]])
            deviation = np.sqrt(((own - own.mean()) ** 2).sum() / (len(own) - 1))
            new[tuple(place)] = (array[tuple(place)] - own.mean()) / deviation
        out.append(new)
    return out


@pytest.mark.parametrize("by_agent", [True, False])
@pytest.mark.parametrize("some", [True, False])
def test_moments_are_those_of_an_agent_or_of_all(by_agent, some):
    arrays, masks, agents = drawn()
    rng = np.random.default_rng(1)
    counted = [rng.random(m.shape) < 0.7 for m in masks] if some else masks
    keys = agents if by_agent else [np.zeros_like(a) for a in agents]
    expected = slowly(arrays, masks, keys, counted)
    whiten_rows(
        arrays,
        masks,
        CPU,
        agents=agents if by_agent else None,
        counted=counted if some else None,
    )
    for found, slow in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(found, slow, rtol=1e-6)


def test_nothing_is_standardised_without_rows():
    whiten_rows([], [], CPU)
    whiten_rows([], [], CPU, agents=[])


def ppo(**training):
    return team_config(
        Pair,
        LLMPPOConfig,
        policies=["one"],
        mapping=dict.fromkeys(("ann", "ben"), "one"),
        training=training,
    )


def test_ppo_standardises_the_agents_of_a_policy_apart():
    run = Run(ppo(whiten_by="agent"))
    plain = Run(ppo(whiten_advantages=False))
    episodes = run.sample(4)
    rows, bare = (batches(each.learner, episodes)["one"] for each in (run, plain))
    mask = bare[Columns.LOSS_MASK].numpy()
    found, raw = (b[Columns.ADVANTAGES].numpy().astype(float) for b in (rows, bare))
    agents = bare[columns.AGENT_INDEX].numpy()
    assert set(agents) == {0, 1}
    (expected,) = slowly([raw], [mask], [agents], [mask])
    np.testing.assert_allclose(found[mask], expected[mask], rtol=1e-4, atol=1e-5)


def test_one_agent_is_refused():
    config = LLMPPOConfig().environment("frozen_lake-v0").training(whiten_by="agent")
    with pytest.raises(ConfigError, match="whiten_by='agent' would have no effect"):
        config.validate()
