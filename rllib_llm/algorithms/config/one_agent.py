"""Check of methods that play from the middle of an episode of one agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.env_runner.agents import agents_of, program_envs

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def one_agent_obstacle(config: LLMConfig) -> str | None:
    """Return why the environment's turns are not those of one agent; None: they are."""
    env = config.make_text_env()
    agents = agents_of(env)
    env.close()
    if agents is not None:
        return f"{config.env} has the agents {', '.join(agents)}. Use one agent."
    return program_obstacle(config)


def program_obstacle(config: LLMConfig) -> str | None:
    """Return why what is sampled is not the environment's to say; None: it is."""
    env = config.make_text_env()
    programs = program_envs(env)
    env.close()
    if not programs:
        return None
    return (
        f"{config.env} runs programs, which choose what is sampled and cannot be set "
        "back."
    )
