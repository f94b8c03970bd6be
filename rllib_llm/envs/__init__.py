"""Text environments: base classes, shipped games, adapters and contract checks."""

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.check import check_env
from rllib_llm.envs.check_common import CheckReport
from rllib_llm.envs.gym_text import GymTextEnv
from rllib_llm.envs.make import make_env
from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter, MultiAgentStep
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv, Outcome
from rllib_llm.envs.multi_checks import check_multi_env
from rllib_llm.envs.random_states import IsolatedRandomState
from rllib_llm.envs.registry import TEXT_ENVS, register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.envs.tool_env import ToolEnv

__all__ = [
    "TEXT_ENVS",
    "CheckReport",
    "GymTextEnv",
    "IsolatedRandomState",
    "MultiAgentAdapter",
    "MultiAgentStep",
    "MultiAgentTextEnv",
    "Outcome",
    "TextEnv",
    "ToolEnv",
    "TurnResult",
    "check_env",
    "check_multi_env",
    "in_split",
    "make_env",
    "register_text_env",
]
