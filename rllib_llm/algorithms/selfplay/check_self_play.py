"""Policies of a self-play run, and checks of its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm.algorithms.config.league import MIRROR
from rllib_llm.algorithms.config.validation import register_env
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.algorithms.selfplay.assign_opponents import assigned_policy
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.envs.adapters.open_spiel_text import GameText
from rllib_llm.envs.mixture_members import MIXTURE
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.policy_mapping import MappedPolicies
from rllib_llm.selfplay.exploiter import EXPLOITER, no_best_response
from rllib_llm.selfplay.positions import is_by_position

if TYPE_CHECKING:
    from rllib_llm.algorithms.selfplay.self_play import SelfPlayConfig

_POOL_SETTINGS = (
    "league_mirror_fraction",
    "league_pool_size",
    "league_snapshot_win_rate",
    "league_snapshot_min_games",
    "league_snapshot_max_games",
)


def declare_slots(config: SelfPlayConfig) -> None:
    """Add a frozen policy for each opponent to the user's policies.

    They exist from the start and their weights are replaced later: RLModules that are
    added during a run are missing when RLlib rebuilds it from a checkpoint.

    Raises:
        ConfigError: If the user's policies conflict with the league.
    """
    if config.env == MIXTURE:
        raise ConfigError(
            "SelfPlay rates policies by the results of one game, but env is a mixture. "
            "Use one game, or GRPO, LLMPPO or MARFT."
        )
    register_env(config.env, config.env_config)
    if config.policy_mapping_fn is not assigned_policy:
        config.fixed_policies = _fixed_policies(config)
    agents = config.assign_league_opponents()
    if len(agents) < 2:
        raise ConfigError(
            f"SelfPlay needs two or more agents to assign; {config.env!r} leaves "
            f"{list(agents)}. Choose a PettingZoo game, or map fewer agents to "
            "policies of your own."
        )
    _check_trained(config)
    user_policies = [m for m in config.policies if m not in config.declared_slots]
    exploiters = (EXPLOITER,) if config.league_exploiter_fraction else ()
    slots = (*config.opponent_slots, *exploiters)
    names = dict.fromkeys([DEFAULT_MODULE_ID, *user_policies, *slots])
    for name in set(user_policies).intersection(slots):
        raise ConfigError(
            f"The policy {name!r} has the name of an opponent's. Give yours another "
            "name."
        )
    opponent = config.league_evaluation_opponent
    if opponent is not None and opponent not in names:
        raise ConfigError(
            f"evaluation_opponent={opponent!r} is not a policy. "
            f"{did_you_mean(opponent, names)}"
        )
    for slot in config.declared_slots:
        config.policy_settings.pop(slot, None)
    config.declared_slots = slots
    config.policy_settings |= {
        name: {"scripted_policy": no_best_response} for name in exploiters
    }
    if config.ref_kl_coeff:  # an opponent needs no reference policy
        off = {"training": {"ref_kl_coeff": 0.0, "ref_kl_target": None}}
        config.policy_settings |= dict.fromkeys(config.opponent_slots, off)
    # RLlib's method: it takes the names only, so the user's settings remain.
    AlgorithmConfig.multi_agent(
        config,
        policies=list(names),
        policy_mapping_fn=assigned_policy,
        policies_to_train=[DEFAULT_MODULE_ID],
    )


def _fixed_policies(config: SelfPlayConfig) -> dict[str, str]:
    """Return the policies that the user's table assigns to agents in all games."""
    table = config.policy_mapping_fn
    if not isinstance(table, MappedPolicies):
        raise ConfigError(
            "policy_mapping_fn: SelfPlay assigns its policies itself. Give a table of "
            "only those agents that a policy of yours plays, e.g. {dealer: scripted}, "
            "or leave it out."
        )
    env = config.make_text_env()
    agents = agents_of(env) or []
    env.close()
    stems = {*agents, *(agent.rpartition("_")[0] for agent in agents), "*"}
    for name in table.table:
        if name not in stems:
            raise ConfigError(
                f"policy_mapping_fn names the agent {name!r}, which {config.env!r} "
                f"does not have. {did_you_mean(name, agents)}"
            )
    table = MappedPolicies({"*": DEFAULT_MODULE_ID, **table.table})
    assigned = {agent: table(agent) for agent in agents}
    return {
        agent: name for agent, name in assigned.items() if name != DEFAULT_MODULE_ID
    }


def _check_trained(config: SelfPlayConfig) -> None:
    names = config.policies_to_train
    if names is not None and (callable(names) or set(names) != {DEFAULT_MODULE_ID}):
        raise ConfigError(
            f"policies_to_train={names!r}: SelfPlay trains {DEFAULT_MODULE_ID!r} only "
            "and freezes its opponents. Leave it out."
        )


def validate_league(config: SelfPlayConfig) -> None:
    """Check the settings of the league.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    _validate_use(config)
    config.build_matchmaker()  # checks its settings, and that openskill is installed
    if config.league_opponents == MIRROR:
        why = "opponents='mirror' has no frozen ones. Choose others, or leave it out."
        refuse_without_effect(config, _POOL_SETTINGS, why)
    _validate_exploitability(config)
    _validate_exploiter(config)
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    if not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            f"SelfPlay needs LLMEnvRunner; RLlib's {config.env_runner_cls.__name__} "
            "ignores the policy assignment of tasks. Leave env_runner_cls out."
        )


def _validate_use(config: SelfPlayConfig) -> None:
    opponent = config.league_evaluation_opponent
    used = {*config.fixed_policies.values(), opponent, DEFAULT_MODULE_ID}
    for module_id in config.module_ids:
        if module_id not in used and module_id not in config.declared_slots:
            raise ConfigError(
                f"The policy {module_id!r} is assigned to no agent. Map an agent to it "
                "in policy_mapping_fn, make it the evaluation_opponent, or leave it "
                "out."
            )


def validate_advantage_estimators(config: SelfPlayConfig) -> None:
    why = "opponents are not a team. Omit it."
    refuse_without_effect(config, ("shared_reward_fraction",), why)
    if config.advantage_estimator is not None or config.advantage_baseline != "role":
        why = "it belongs to advantage_baseline='role'. Leave it out."
        refuse_without_effect(config, ("role_decay",), why)
        return
    if config.advantage_scale not in ("none", "batch"):
        raise ConfigError(
            f"advantage_scale={config.advantage_scale!r}: with "
            "advantage_baseline='role' there are no groups; use 'none' or 'batch'."
        )
    if config.drop_zero_variance_groups:
        raise ConfigError(
            "drop_zero_variance_groups=True compares the rollouts of a task, but "
            "advantage_baseline='role' does not. Set it to False."
        )
    why = "advantage_baseline='role' has a baseline for each agent. Leave it out."
    refuse_without_effect(config, ("advantage_group_by",), why)


def _validate_exploitability(config: SelfPlayConfig) -> None:
    if config.league_exploitability_interval:
        game_text(config)


def _validate_exploiter(config: SelfPlayConfig) -> None:
    if not config.league_exploiter_fraction:
        why = "exploiter_fraction=0 has no exploiter. Set it, or leave this out."
        refuse_without_effect(config, ("league_exploiter_noise",), why)
        return
    if config.history != "latest" or not is_by_position(game_text(config).game):
        raise ConfigError(
            f"exploiter_fraction={config.league_exploiter_fraction}: an exact best "
            "response is computed position by position, which needs a game of perfect "
            "information and language_model.history='latest'; this is "
            f"{config.env!r} with history={config.history!r}. Set it to 0."
        )


def game_text(config: SelfPlayConfig) -> GameText:
    """Return the game's text interface.

    Raises:
        ConfigError: If it is not a game of OpenSpiel.
    """
    env = config.make_text_env()
    game_text = getattr(env.unwrapped, "game_text", None)
    env.close()
    if not isinstance(game_text, GameText):
        raise ConfigError(
            f"Exploitability is computed by OpenSpiel, but {config.env!r} is not one "
            "of its games. Set exploitability_interval=0."
        )
    return game_text
