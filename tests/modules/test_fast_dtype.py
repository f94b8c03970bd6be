"""``dtype: auto``: bfloat16 where it is fast."""

from __future__ import annotations

import pytest
import torch

from rllib_llm import LLMPPOConfig
from rllib_llm.modules import fast_dtype


@pytest.fixture
def speedup(monkeypatch):
    """Return a function that sets the measured speedup of bfloat16."""

    def measured(ratio):
        seconds = {torch.float32: ratio, torch.bfloat16: 1.0}
        monkeypatch.setattr(fast_dtype, "_seconds", seconds.__getitem__)
        fast_dtype.bfloat16_speedup.cache_clear()

    yield measured
    fast_dtype.bfloat16_speedup.cache_clear()


@pytest.mark.parametrize(
    ("ratio", "gpus", "expected"),
    [
        (4.0, 0, "bfloat16"),
        (1.2, 0, "float32"),
        (0.3, 0, "float32"),
        (0.3, 1, "bfloat16"),
    ],
)
def test_auto_is_bfloat16_where_it_is_clearly_faster(speedup, ratio, gpus, expected):
    speedup(ratio)
    assert fast_dtype.resolve_dtype("auto", gpus) == expected
    assert fast_dtype.resolve_dtype("float32", gpus) == "float32"
    assert fast_dtype.resolve_dtype("bfloat16", gpus) == "bfloat16"


def config(**language_model) -> LLMPPOConfig:
    return (
        LLMPPOConfig()
        .environment("guess_number-v0")
        .language_model(model="tiny", **language_model)
    )


@pytest.mark.parametrize(("ratio", "expected"), [(4, "bfloat16"), (1, "float32")])
def test_validated_configs_name_the_dtype(speedup, ratio, expected):
    speedup(ratio)
    chosen = config(dtype="auto")
    assert chosen.language_model_config()["dtype"] == expected  # without validate()
    chosen.validate()
    assert chosen.lm_dtype == expected
    assert chosen.engine_is_exact == (expected == "float32")


def test_the_default_is_not_measured(monkeypatch):
    monkeypatch.setattr(fast_dtype, "_seconds", None)
    fast_dtype.bfloat16_speedup.cache_clear()
    plain = config()
    plain.validate()
    assert plain.lm_dtype == "float32"


def test_the_speedup_of_this_machine_is_a_positive_number():
    fast_dtype.bfloat16_speedup.cache_clear()
    assert 0.01 < fast_dtype.bfloat16_speedup() < 100
