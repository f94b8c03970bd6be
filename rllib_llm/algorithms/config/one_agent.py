"""Check of methods that play from the middle of an episode of one agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.env_runner.agents import agents_of, program_envs

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def one_agent_obstacle(config: LLMConfig) -> str | None:
    """Return why the environment's turns are not those of one agent; None: they are."""
    env = config.make_text_env()
    agents, programs = agents_of(env), program_envs(env)
    env.close()
    if agents is not None:
        return f"{config.env} has the agents {', '.join(agents)}. Use one agent."
    if programs:
        return (
            f"{config.env} runs programs, which choose what is sampled and cannot be "
            "set back."
        )
    return None
