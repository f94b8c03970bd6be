"""Questions about a database, answered with SQL."""

from rllib_llm.envs.sql_agent.env import SQLAgent

__all__ = ["SQLAgent"]
