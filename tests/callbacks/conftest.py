"""Fixtures of the callback tests."""

from __future__ import annotations

import pytest

from rllib_llm import LLMPPOConfig


@pytest.fixture
def config():
    """Config of a minimal run: a random model on a five-turn game."""
    return (
        LLMPPOConfig()
        .environment("guess_number-v0", env_config={"upper": 15, "max_turns": 5})
        .language_model(tiny={"hidden_size": 32})
        .generation(max_new_tokens=16)
        .rollouts(episodes_per_iteration=8)
    )
