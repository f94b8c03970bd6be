"""Functions to be written and tested."""

from rllib_llm.envs.code_functions.env import CodeFunctions

__all__ = ["CodeFunctions"]
