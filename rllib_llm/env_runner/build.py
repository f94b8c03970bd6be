"""From a configuration to who speaks how, who sits where, and for how long."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rllib_llm.data.types import Task
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.env_runner.limits import RolloutLimits
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
from rllib_llm.policy_mapping import MappedPolicies


@dataclasses.dataclass(frozen=True)
class PolicyAssignment:
    """Who acts for whom in place of what the configuration says.

    Attributes:
        policies: ModuleID, or name of a script, by AgentID.
        scripts: Functions that play, by name.
    """

    policies: Mapping[str, str]
    scripts: Mapping[str, Script] = dataclasses.field(default_factory=dict)


def action_sources(
    config: Any,
    engines: Mapping[str, Any],
    actors: Mapping[str, NonLLMActor],
    action_scorers: Mapping[str, ActionScorer],
    assignment: PolicyAssignment | None,
) -> dict[str, ActionSource]:
    """Return how each policy and script makes turns, by its name."""
    found = {
        m: ActionSource(actor=actors[m])
        if m in actors
        else _action_source(config, engines, action_scorers, m)
        for m in config.module_ids
    }
    if assignment is not None:
        found |= {
            name: ActionSource(script=s) for name, s in assignment.scripts.items()
        }
    return found


def _action_source(
    config: Any,
    engines: Mapping[str, Any],
    action_scorers: Mapping[str, ActionScorer],
    module_id: str,
) -> ActionSource:
    script = config.script_of(module_id)
    if script is not None:
        return ActionSource(script=script)
    own = config.get_config_for_module(module_id)
    if module_id in action_scorers:
        return ActionSource(
            action_scorer=action_scorers[module_id],
            max_context_tokens=own.resolved_context_tokens(),
        )
    engine = engines[module_id]
    together = [m for m, other in engines.items() if other is engine]
    place = together.index(module_id)
    return ActionSource(
        engine=engine,
        open_settings={"adapter": place} if len(together) > 1 else {},
        max_new_tokens=own.max_new_tokens,
        max_context_tokens=own.resolved_context_tokens(),
        max_tokens_per_episode=own.max_tokens_per_episode,
    )


def action_scorers(config: Any, modules: Mapping[str, Any]) -> dict[str, ActionScorer]:
    """Return what acts for the policies with ``head="score"``.

    Args:
        config: The run's config.
        modules: The LLMRLModules, by ModuleID.

    Raises:
        ConfigError: If evaluation asks for a part of the vocabulary.
    """
    found = {}
    for module_id, module in modules.items():
        own = config.get_config_for_module(module_id)
        if own.action_head != "score":
            continue
        if own.top_p != 1.0 or own.top_k != 0:  # possible in evaluation_config
            raise ConfigError(
                f"top_p={own.top_p}, top_k={own.top_k} cut the vocabulary, but "
                "head='score' chooses among whole actions. Leave them out."
            )
        found[module_id] = ActionScorer(
            module,
            module_id,
            own.chat_renderer(),
            own.score_norm,
            config.micro_batch_tokens,
        )
    return found


def recorder_factory(
    config: Any, assignment: PolicyAssignment | None
) -> Callable[[Task], Any]:
    """Return what starts the record of a task."""
    env = config.make_text_env()
    agents = agents_of(env)
    env.close()
    if agents is None:
        spaces = (UnicodeText(), UnicodeText())
        return lambda task: SingleAgentRecorder(task, spaces)
    mapping, names = config.policy_mapping_fn, config.module_ids
    if assignment is not None:
        mapping, names = (
            MappedPolicies(assignment.policies),
            (*names, *assignment.scripts),
        )
    spaces = non_llm_spaces(config)
    encoders = {m: Encoder(reads) for m, (reads, _) in spaces.items()}
    return lambda task: MultiAgentRecorder(task, agents, mapping, names, encoders)


def monitor(config: Any, worker_index: int) -> RolloutMonitor:
    """Return what watches the rollouts of an EnvRunner."""
    stalled = config.chosen_alarms().get("stalled")
    kind = "eval" if config.in_evaluation else "train"
    return RolloutMonitor(
        stalled.thresholds["after_s"] if stalled is not None else None,
        Publisher(config.live_topic, f"{kind}_{worker_index}"),
    )


def limits(config: Any) -> RolloutLimits:
    """Return the bounds of an episode."""
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
