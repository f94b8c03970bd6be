"""Fixtures of the picture tests."""

from __future__ import annotations

import pytest
import torch
from picture_helpers import make_renderer, make_vlm_module, write_vlm


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Limit torch to one thread: tiny models run slower with more."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vlm(tmp_path_factory) -> str:
    """Write the folder of a tiny vision-language model."""
    return write_vlm(tmp_path_factory.mktemp("vlm"))


@pytest.fixture
def module(vlm):
    """Build a module of the folder."""
    return make_vlm_module(vlm)


@pytest.fixture(scope="session")
def renderer(vlm):
    """Return the folder's renderer."""
    return make_renderer(vlm)
