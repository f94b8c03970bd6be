"""Learners on a CPU have the shorter passes, and the gradients of whole ones."""

import contextlib

import pytest
import torch
from learner_helpers import (
    fake_episode,
    gradients,
    make_config,
    make_learner,
    moved,
    policy,
)

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.modules import last_mlp, llm_rl_module


def episodes():
    made = [fake_episode(seed, turns=6) for seed in range(8)]
    for index, episode in enumerate(made):
        episode_data(episode).advantage = index - 3.5
    return made


def has_shorter_passes(config):
    """Return whether the last MLP is limited, and whether all norms are replaced."""
    trunk = policy(make_learner(config)).lm.base_model
    norms = [m for m in trunk.modules() if type(m).__name__.endswith("RMSNorm")]
    limited = ["forward" in vars(layer.mlp) for layer in trunk.layers]
    assert norms and not any(limited[:-1])
    return limited[-1], all("forward" in vars(norm) for norm in norms)


def configured(config_class, **language_model):
    config = make_config(config_class)
    config.language_model(**language_model)
    config.validate()
    return config


@pytest.mark.parametrize(
    ("config_class", "settings", "limited"),
    [
        (GRPOConfig, {}, True),
        (GRPOConfig, {"dtype": "bfloat16"}, True),
        (GRPOConfig, {"gradient_checkpointing": True}, False),
        (LLMPPOConfig, {"value_model": "own"}, True),
        (LLMPPOConfig, {"value_model": "shared"}, False),
    ],
    ids=str,
)
def test_learners_have_them(config_class, settings, limited):
    assert has_shorter_passes(configured(config_class, **settings)) == (limited, True)


def test_compiled_models_are_left_alone():
    config = configured(GRPOConfig, compile="eager")
    assert has_shorter_passes(config) == (False, False)


@pytest.mark.parametrize("packing", [False, True])
def test_the_gradient_is_that_of_whole_passes(monkeypatch, packing):
    monkeypatch.setattr(last_mlp, "_STEP", 4)
    tokens, found = [], []
    for block in (llm_rl_module.only_read_at, contextlib.nullcontext):
        monkeypatch.setattr(llm_rl_module, "only_read_at", block)
        learner = moved(make_config(GRPOConfig, packing=packing))
        count = tokens.append
        policy(learner).lm.base_model.layers[-1].mlp.gate_proj.register_forward_hook(
            lambda layer, inputs, output, count=count: count(output[..., 0].numel())
        )
        before = len(tokens)
        found.append(gradients(learner, episodes()))
        tokens[before:] = [sum(tokens[before:])]
    limited, whole = tokens
    assert 0 < limited < 0.8 * whole
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[1].items():
        torch.testing.assert_close(found[0][name], gradient, atol=1e-6, rtol=1e-4)
    assert max(float(g.abs().max()) for g in found[1].values()) > 1e-3
