"""Programs from outside as environments, with an OpenAI-compatible endpoint."""

from rllib_llm.envs.agent_programs.env import AgentProgramEnv
from rllib_llm.envs.agent_programs.programs import ProgramEndpoint

__all__ = ["AgentProgramEnv", "ProgramEndpoint"]
