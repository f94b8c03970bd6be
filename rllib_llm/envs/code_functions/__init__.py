"""Writing small functions that pass unit tests."""

from rllib_llm.envs.code_functions.env import CodeFunctions

__all__ = ["CodeFunctions"]
