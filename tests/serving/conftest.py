"""Servers that the tests of this folder share."""

from __future__ import annotations

import pytest
from serving_helpers import serving
from team_helpers import team_config

from rllib_llm import LLMPPOConfig


@pytest.fixture(scope="session")
def single():
    """A server of one policy with a system message."""
    with serving() as one:
        yield one


@pytest.fixture(scope="session")
def team():
    """A server of an adviser and a solver."""
    config = team_config(
        "team-v0",
        LLMPPOConfig,
        env_config={"task": "copy_probe-v0"},
        policies=("a", "b"),
        mapping={"adviser": "a", "solver": "b"},
    )
    with serving(config) as one:
        yield one
