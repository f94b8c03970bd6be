"""Builders of an EnvRunner's action sources, recorders, limits and monitor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rllib_llm.components.registry import bind
from rllib_llm.connectors.requested_prompts import ServedPolicy
from rllib_llm.data.types import Task
from rllib_llm.env_runner.agents import agents_of, program_envs
from rllib_llm.env_runner.episode_limits import RolloutLimits
from rllib_llm.env_runner.forks import ForkRule
from rllib_llm.env_runner.monitor import RolloutMonitor
from rllib_llm.env_runner.multi_agent_recorder import MultiAgentRecorder
from rllib_llm.env_runner.non_llm_policies import Encoder, NonLLMActor
from rllib_llm.env_runner.non_llm_spaces import non_llm_spaces
from rllib_llm.env_runner.recorder import SingleAgentRecorder
from rllib_llm.env_runner.scored_actions import ActionScorer
from rllib_llm.env_runner.scripted_policies import Script
from rllib_llm.env_runner.slots import ActionSource
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError
from rllib_llm.monitoring.live.board import Publisher
from rllib_llm.policy_mapping import MappedPolicies, mapped_policies

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


@dataclasses.dataclass(frozen=True)
class PolicyAssignment:
    """Policy of each agent, in place of the config's ``policy_mapping_fn``.

    Attributes:
        policies: ModuleID, or name of a scripted policy, by AgentID.
        scripts: Scripted policies by name.
    """

    policies: Mapping[str, str]
    scripts: Mapping[str, Script] = dataclasses.field(default_factory=dict)


def action_sources(
    config: LLMConfig,
    engines: Mapping[str, Any],
    actors: Mapping[str, NonLLMActor],
    action_scorers: Mapping[str, ActionScorer],
    assignment: PolicyAssignment | None,
) -> dict[str, ActionSource]:
    """Return the ActionSource of each policy and of each assigned script, by name."""
    sources = {
        m: ActionSource(actor=actors[m])
        if m in actors
        else _action_source(config, engines, action_scorers, m)
        for m in config.module_ids
    }
    if assignment is not None:
        sources |= {
            name: ActionSource(script=s) for name, s in assignment.scripts.items()
        }
    return sources


def _action_source(
    config: LLMConfig,
    engines: Mapping[str, Any],
    action_scorers: Mapping[str, ActionScorer],
    module_id: str,
) -> ActionSource:
    script = config.script_of(module_id)
    if script is not None:
        return ActionSource(script=script)
    policy_config = config.get_config_for_module(module_id)
    if module_id in action_scorers:
        return ActionSource(
            action_scorer=action_scorers[module_id],
            max_context_tokens=policy_config.resolved_context_tokens(),
        )
    engine = engines[module_id]
    # A shared engine numbers the adapters of its policies in this order.
    sharing = [m for m, other in engines.items() if other is engine]
    adapter = sharing.index(module_id)
    return ActionSource(
        engine=engine,
        open_settings={"adapter": adapter} if len(sharing) > 1 else {},
        max_new_tokens=policy_config.max_new_tokens,
        max_context_tokens=policy_config.resolved_context_tokens(),
        max_tokens_per_episode=policy_config.max_tokens_per_episode,
        candidates=1 if config.in_evaluation else config.candidates,
    )


def action_scorers(
    config: LLMConfig, modules: Mapping[str, Any]
) -> dict[str, ActionScorer]:
    """Return the ActionScorer of each policy with ``head="score"``, by ModuleID.

    Args:
        config: The run's config.
        modules: The LLMRLModules, by ModuleID.

    Raises:
        ConfigError: If ``top_p`` or ``top_k`` restricts the vocabulary.
    """
    scorers = {}
    for module_id, module in modules.items():
        policy_config = config.get_config_for_module(module_id)
        if policy_config.action_head != "score":
            continue
        # The training config is checked earlier; evaluation_config may still set them.
        if policy_config.top_p != 1.0 or policy_config.top_k != 0:
            raise ConfigError(
                f"top_p={policy_config.top_p}, top_k={policy_config.top_k} restrict "
                "the vocabulary, but head='score' chooses among whole actions. Remove "
                "both settings."
            )
        scorers[module_id] = ActionScorer(
            module,
            module_id,
            policy_config.chat_renderer(),
            policy_config.score_norm,
            config.micro_batch_tokens,
        )
    return scorers


def recorder_factory(
    config: LLMConfig, assignment: PolicyAssignment | None
) -> Callable[[Task], Any]:
    """Return a function that builds the episode recorder of a task."""
    # One environment for the agents' names; slots build their own.
    env = config.make_text_env()
    agents = agents_of(env)
    env.close()
    if agents is None:
        text = (UnicodeText(), UnicodeText())
        return lambda task: SingleAgentRecorder(task, text)
    mapping, names = config.policy_mapping_fn, config.module_ids
    if assignment is not None:
        mapping, names = (
            MappedPolicies(assignment.policies),
            (*names, *assignment.scripts),
        )
    spaces = non_llm_spaces(config)
    encoders = {m: Encoder(observed) for m, (observed, _) in spaces.items()}
    is_forked = fork_rule(config) is not None
    return lambda task: MultiAgentRecorder(
        task, agents, mapping, names, encoders, is_forked
    )


def env_factory(config: LLMConfig) -> Callable[[], Any]:
    """Return a function that builds an environment of this EnvRunner.

    Environments of programs get the policies that they serve.
    """
    env = config.make_text_env()
    serves = bool(program_envs(env))
    policies = _served_policies(config, agents_of(env) or []) if serves else {}
    env.close()
    if not serves:
        return config.make_sampled_env

    def make() -> Any:
        env = config.make_sampled_env()
        for each in program_envs(env):
            each.serve_policies(policies)
        return env

    return make


def _served_policies(config: LLMConfig, agents: list[str]) -> dict[str, ServedPolicy]:
    served = {}
    for agent, module_id in mapped_policies(config, agents).items():
        if module_id not in config.llm_module_ids:
            continue  # a script has no limits
        policy_config = config.get_config_for_module(module_id)
        served[agent] = ServedPolicy(
            renderer=policy_config.chat_renderer(),
            max_context_tokens=policy_config.resolved_context_tokens(),
            temperature=policy_config.temperature,
            top_p=policy_config.top_p,
            system=policy_config.system_prompt,
        )
    return served


def monitor(config: LLMConfig, worker_index: int) -> RolloutMonitor:
    """Return the RolloutMonitor of an EnvRunner."""
    stalled = config.chosen_alarms().get("stalled")
    kind = "eval" if config.in_evaluation else "train"
    return RolloutMonitor(
        stalled.thresholds["after_s"] if stalled is not None else None,
        Publisher(config.live_topic, f"{kind}_{worker_index}"),
    )


def fork_rule(config: LLMConfig) -> ForkRule | None:
    """Return the rule of ``rollouts(fork=...)``; None if episodes are not forked."""
    # Evaluation plays single episodes of its tasks.
    if config.fork is None or config.in_evaluation:
        return None
    rule: ForkRule = bind("fork", config.fork).call
    return rule


def limits(config: LLMConfig) -> RolloutLimits:
    """Return the limits of an episode."""
    return RolloutLimits(
        max_tokens_per_episode=config.max_tokens_per_episode,
        max_turns=config.max_turns,
        step_timeout_s=config.step_timeout_s,
        turn_timeout_s=config.turn_timeout_s,
        episode_timeout_s=config.episode_timeout_s,
        max_retries=config.max_retries,
        max_failed_fraction=config.max_failed_fraction,
        stop_policies=config.resolved_stop_policies(),
    )
