"""Fixtures of the engine tests."""

from __future__ import annotations

import pytest
import torch
from engine_reference import build_model


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Limit torch to one thread: tiny models run slower with more."""
    torch.set_num_threads(1)


@pytest.fixture
def model():
    """Build a new qwen3 model: grouped-query heads, rotary positions."""
    return build_model("qwen3")
