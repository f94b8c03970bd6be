"""Servers that the tests of this folder share."""

from __future__ import annotations

import pytest
from serving_helpers import serving
from team_helpers import team_config, tiny_model

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


@pytest.fixture(scope="session")
def voters():
    """A server of five agents of two policies, who vote without reading another."""
    agents = ["first", "second", "third", "fourth", "last"]
    config = team_config(
        "team-v0",
        LLMPPOConfig,
        env_config={
            "task": "copy_probe-v0",
            "agents": agents,
            "topology": {},
            "decide": "vote",
        },
        policies={
            name: {"language_model": {"model": tiny_model(seed)}}
            for name, seed in {"a": 13, "b": 2}.items()
        },
        mapping=dict(zip(agents, "abbba", strict=True)),
    )
    with serving(config) as one:
        yield one
