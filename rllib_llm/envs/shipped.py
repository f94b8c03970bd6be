"""Imports every shipped environment, so that its decorator registers it."""

from rllib_llm.envs import (  # noqa: F401
    countdown,
    frozen_lake,
    guess_number,
    probes,
    sokoban,
)
