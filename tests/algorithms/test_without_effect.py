"""Refusal of settings that would have no effect."""

from __future__ import annotations

import pytest

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.algorithms.grpo.grpo import GRPOConfig
from rllib_llm.algorithms.sft.sft_config import SFTConfig
from rllib_llm.errors import ConfigError


@pytest.mark.parametrize("algo", [GRPOConfig, SFTConfig])
def test_defaults_that_went_through_json_are_not_changes(algo):
    """As in Tune's record of a killed run: tuples come back as lists."""
    config = algo().environment("frozen_lake-v0")
    as_lists = {k: list(v) for k, v in config.items() if isinstance(v, tuple)}
    assert as_lists
    config.update_from_dict(as_lists).validate()


def test_a_changed_list_is_a_change():
    config = GRPOConfig().environment("frozen_lake-v0")
    config.replay_keep = ["success"]
    with pytest.raises(ConfigError, match="replay_keep"):
        refuse_without_effect(config, ("replay_keep",), "nothing is replayed.")
