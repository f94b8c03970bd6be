"""Household tasks in text: ALFWorld's rules in AI2-THOR's rooms."""

from rllib_llm.envs.household.household import Household

__all__ = ["Household"]
