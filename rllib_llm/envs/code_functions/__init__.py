"""Writing small functions that pass unit tests, and such tests."""

from rllib_llm.envs.code_functions.env import CodeFunctions
from rllib_llm.envs.code_functions.own_tests import FunctionAndTest

__all__ = ["CodeFunctions", "FunctionAndTest"]
