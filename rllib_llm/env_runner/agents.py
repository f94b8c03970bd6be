"""What samplers and settings need to know about an environment's agents."""

from __future__ import annotations

from typing import Any

from ray.rllib.core import DEFAULT_AGENT_ID


def as_playable(env: Any) -> Any:
    """Return a Gymnasium environment as it is, one of several agents as a "
    "MultiAgentAdapter."""
    from rllib_llm.envs.kinds import is_multi_agent
    from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter

    return MultiAgentAdapter(env) if is_multi_agent(env) else env


def agents_of(env: Any) -> list[str] | None:
    """Return the declared agents of a MultiAgentAdapter; None for a Gymnasium "
    "environment."""
    return getattr(env, "possible_agents", None)


def texts_of(env: Any, told: Any) -> dict[str, str]:
    """Return what agents of text read in a step of a MultiAgentAdapter."""
    read = told.observations
    return {a: text for a, text in read.items() if env.number_spaces(a) is None}


def role_prompts(env: Any) -> dict[str, str]:
    """Return the system prompt of each agent that has one, by AgentID."""
    agents = agents_of(env)
    if agents is None:
        prompts = {DEFAULT_AGENT_ID: getattr(env.unwrapped, "system_prompt", None)}
    else:
        prompts = {agent: env.system_prompt_for(agent) for agent in agents}
    return {agent: prompt for agent, prompt in prompts.items() if prompt}
