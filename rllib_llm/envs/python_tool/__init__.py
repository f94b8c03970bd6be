"""Questions that a short Python program answers."""

from rllib_llm.envs.python_tool.env import PythonTool

__all__ = ["PythonTool"]
