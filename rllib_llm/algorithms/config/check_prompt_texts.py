"""Checks of ``rollouts(prompt_text=...)``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rllib_llm.components.registry import bind
from rllib_llm.data.types import Task
from rllib_llm.env_runner.agents import agents_of, program_envs
from rllib_llm.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def validate_prompt_texts(config: LLMConfig) -> None:
    """Check that the texts of a run reach its agents.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    given = {
        environment: specs.prompt_text
        for environment, specs in config.component_specs().items()
        if specs.prompt_text is not None
    }
    if not given:
        return
    for obstacle in _obstacles(config):
        raise ConfigError(f"rollouts.prompt_text: {obstacle}")
    envs = config.make_each_env()
    try:
        for environment, spec in given.items():
            env = envs[environment or str(config.env)]
            if program_envs(env):
                raise ConfigError(
                    f"rollouts.prompt_text: {environment or config.env} runs programs, "
                    "which write their prompts themselves. Leave it out."
                )
            task = bind("prompt_text", spec).call.assign(Task(0, 0, 0), 0)
            agents = None if task.prompt_text is None else task.prompt_text.agents
            _check_agents(agents, agents_of(env))
    finally:
        for env in envs.values():
            env.close()


def _obstacles(config: LLMConfig) -> Iterator[str]:
    if config.sample_ahead:
        yield (
            f"sample_ahead={config.sample_ahead} samples tasks before the texts of the "
            "last episodes are known. Set sample_ahead to 0."
        )
    if config.fork is not None:
        yield "episodes that are forked have no texts of their own. Leave fork out."
    if getattr(config, "needs_greedy", False):
        yield "greedy rollouts have no texts. Use another advantage_baseline."


def _check_agents(named: frozenset[str] | None, agents: list[str] | None) -> None:
    for name in sorted(named or ()):
        if agents is None:
            raise ConfigError(
                f"rollouts.prompt_text: agents={sorted(named or ())}, but the "
                "environment has one agent. Leave agents out."
            )
        if name not in agents:
            raise ConfigError(
                f"rollouts.prompt_text: the environment has no agent {name!r}. "
                f"{did_you_mean(name, agents)}"
            )
