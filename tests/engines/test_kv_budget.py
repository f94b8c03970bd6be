"""Memory budget of the key-value cache."""

from __future__ import annotations

import os

import pytest
import torch

from rllib_llm.algorithms.grpo.grpo import GRPOConfig
from rllib_llm.engines.kv_budget import DEVICE_SHARE, RAM_SHARE, kv_budget_bytes
from rllib_llm.errors import ConfigError


def test_budgets_in_bytes(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda", 0)
    assert kv_budget_bytes(0.5, cpu) == 2**29
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert kv_budget_bytes(None, cpu) == int(RAM_SHARE * ram)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 500)
    assert kv_budget_bytes(None, cuda) == int(DEVICE_SHARE * 1200)
    assert kv_budget_bytes(None, cuda, planned=1600) == int(DEVICE_SHARE * 100)
    with pytest.raises(ConfigError, match="are available"):
        kv_budget_bytes(None, cuda, planned=1700)


def _config(**settings) -> GRPOConfig:
    return GRPOConfig().environment("guess_number-v0").generation(**settings)


def test_kv_cache_gib_limits_the_engine(model):
    config = _config(
        max_context_tokens=128, kv_cache_gib=2**-12, engine_forward="plain"
    )
    config.chat_renderer = lambda: type(
        "Renderer", (), {"tokenizer": None, "pictures": None}
    )
    config.env_runners(num_envs_per_env_runner=64)
    holder = torch.nn.Module()
    holder.lm, holder.vocabulary = model, None
    engine = config.build_generation_engine(holder)
    per_token = 2 * 2 * 2 * 16 * 4
    assert engine.max_slots == 2**18 // (128 * per_token)
    assert not engine.is_fused
    config.generation(kv_cache_gib=None, engine_forward="auto")
    engine = config.build_generation_engine(holder)
    assert engine.max_slots == 64
    assert engine.is_fused


@pytest.mark.parametrize("value", [0, -1.0, True, "1", float("nan"), float("inf")])
def test_invalid_budgets_are_refused(value):
    with pytest.raises(ConfigError, match="kv_cache_gib"):
        _config(kv_cache_gib=value).validate()


def test_settings_of_the_torch_engine_are_refused_for_vllm():
    with pytest.raises(ConfigError, match="engine_forward"):
        _config(engine_forward="fused").validate()
    with pytest.raises(ConfigError, match="would have no effect"):
        _config(engine="vllm", kv_cache_gib=1.0).validate()
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        _config(engine="vllm", num_speculative_tokens=4).validate()
