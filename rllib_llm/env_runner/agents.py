"""Agents of an environment: their IDs, texts and system prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.core import DEFAULT_AGENT_ID

if TYPE_CHECKING:
    from rllib_llm.envs.make import AnyEnv
    from rllib_llm.envs.mixture import MultiAgentMixture
    from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter, MultiAgentStep
    from rllib_llm.types import PlayableEnv


def as_playable(env: AnyEnv) -> Any:
    """Return ``env``, wrapped in a MultiAgentAdapter if it has several agents."""
    from rllib_llm.envs.env_kinds import is_multi_agent
    from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter

    return MultiAgentAdapter(env) if is_multi_agent(env) else env


def agents_of(env: PlayableEnv) -> list[str] | None:
    """Return the agents that a MultiAgentAdapter declares.

    None for a Gymnasium environment, whose only agent is RLlib's default agent.
    """
    return getattr(env, "possible_agents", None)


def program_envs(env: PlayableEnv) -> list[Any]:
    """Return the environments that serve policies to programs, also of a mixture."""
    envs = [each.unwrapped for each in getattr(env, "environments", [env])]
    return [each for each in envs if hasattr(each, "serve_policies")]


def texts_of(
    env: MultiAgentAdapter | MultiAgentMixture, step: MultiAgentStep
) -> dict[str, str]:
    """Return the text observations of a MultiAgentStep, by AgentID."""
    observations = step.observations
    # Agents with a declared numeric space observe arrays, not text.
    return {a: text for a, text in observations.items() if env.number_spaces(a) is None}


def role_prompts(env: PlayableEnv) -> dict[str, str]:
    """Return the system prompt of each agent that has one, by AgentID."""
    agents = agents_of(env)
    if agents is None:
        prompts = {DEFAULT_AGENT_ID: getattr(env.unwrapped, "system_prompt", None)}
    else:
        prompts = {agent: env.system_prompt_for(agent) for agent in agents}
    return {agent: prompt for agent, prompt in prompts.items() if prompt}
