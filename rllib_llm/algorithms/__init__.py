"""Algorithms, imported as RLlib's are: a Config class and an Algorithm class each."""

from __future__ import annotations

from rllib_llm.algorithms.registry import ALGORITHMS, register_algorithm

__all__ = ["ALGORITHMS", "register_algorithm"]
