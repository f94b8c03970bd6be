"""Questions about a database that is asked in SQL."""

from rllib_llm.envs.sql_agent.env import SQLAgent

__all__ = ["SQLAgent"]
