"""Checks of ``scorer``: settings without effect, and runs that it does not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.algorithms.scorer.scorer_settings import PROCESS, VTRACE, ScorerSettings
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError
from rllib_llm.modules.scorer import SCORER_MODULE
from rllib_llm.offline.demonstrations import play_expert_with_mistakes

if TYPE_CHECKING:
    from rllib_llm.algorithms.grpo.grpo import GRPOConfig
    from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig
    from rllib_llm.algorithms.pref.pref_config import PrefConfig
    from rllib_llm.types import LLMConfig

    ScoredConfig: TypeAlias = GRPOConfig | LLMPPOConfig | PrefConfig

TURN_CRITIC = "turn_critic"  # the advantage estimator
_FILTERS = (SCORER_MODULE, "scored_turns")
_OF_TD = ("scorer_expectile", "scorer_twin", "scorer_tau")
_OF_DISCOUNTED = ("scorer_gamma",)
_OF_VTRACE = ("scorer_clip_rho_threshold",)
_OF_CAUSAL = ("scorer_span", "scorer_num_actions")
_OF_PAIRS = ("scorer_match", "scorer_pair_margin", "scorer_max_pairs_per_task")


def validate_scorer(config: ScoredConfig) -> None:
    """Check the settings of ``scorer``.

    Raises:
        ConfigError: If one is wrong or would have no effect.
    """
    reader = TURN_CRITIC if config.is_turn_critic else SCORER_MODULE
    is_read = _is_read(config, reader) or reads_candidates(config)
    if config.action_labels is not None:
        _check_causal(config)
        return
    _check_readers(config)
    if not config.uses_scorer:
        if is_read:
            raise ConfigError(
                "A reward, filter or advantage estimator reads the scores of a scorer, "
                "but scorer.loss is not set. Set it, or leave the component out."
            )
        names = set(ScorerSettings._declared) - {"scorer_loss"}
        why = "there is no scorer. Set scorer.loss."
        refuse_without_effect(config, tuple(sorted(names)), why)
        return
    if not is_read:
        places = "" if config.is_turn_critic else "to rollouts.rewards, or "
        raise ConfigError(
            f"scorer.loss={config.scorer_loss!r} trains a scorer that nothing reads. "
            f"Add {{name: {reader}}} {places}to training.advantage_estimator of GRPO, "
            "or {name: scorer} to rollouts.filters or rollouts.candidate_scores."
        )
    _check_loss(config)
    _check_run(config)


def _check_causal(config: ScoredConfig) -> None:
    """Check a scorer that weighs the tokens of replies."""
    for name in (SCORER_MODULE, TURN_CRITIC):
        if _is_read(config, name) or reads_candidates(config):
            raise ConfigError(
                f"A component reads the scores of {name!r}, but scorer.loss='causal' "
                "weighs tokens and scores nothing. Leave the component out, or use "
                "another scorer.loss."
            )
    policy = config.get_config_for_module(config.trained_module_ids[0])
    if not policy.components_need("causal"):
        raise ConfigError(
            "scorer.loss='causal' trains a scorer that nothing reads. Add {name: "
            "entropy, weights: causal, weight: 0.01} to training.loss_terms."
        )
    if config.scorer_scores != "head":
        raise ConfigError(
            f"scorer.scores={config.scorer_scores!r} is for losses that score turns, "
            "not for scorer.loss='causal'. Leave it out."
        )
    why = "scorer.loss='causal' scores no turns and compares nothing. Leave it out."
    of_scores = (
        "scorer_privileged",
        "scorer_pool",
        "scorer_beta",
        "scorer_label_noise",
        "scorer_labels",
    )
    names = (*of_scores, *_OF_PAIRS, *_OF_TD, *_OF_DISCOUNTED, *_OF_VTRACE)
    refuse_without_effect(config, names, why)
    _check_run(config)


def _check_readers(config: ScoredConfig) -> None:
    """Refuse components that read another kind of scores."""
    name = SCORER_MODULE if config.is_turn_critic else TURN_CRITIC
    if not _is_read(config, name):
        return
    if config.is_turn_critic:
        raise ConfigError(
            f"The component {name!r} reads scores, but scorer.loss="
            f"{config.scorer_loss!r} estimates values. Use the advantage estimator "
            f"{TURN_CRITIC!r}, or another scorer.loss."
        )
    raise ConfigError(
        f"The advantage estimator {name!r} reads values, but scorer.loss is "
        f"{config.scorer_loss!r}. Set it to 'td', 'monte_carlo' or 'vtrace'."
    )


def _is_read(config: ScoredConfig, name: str) -> bool:
    specs = config.component_specs().values()
    if name == SCORER_MODULE and any(
        _names(each, s.filters) for each in _FILTERS for s in specs
    ):
        return True
    read = [(s.rewards, s.reward_transforms) for s in specs]
    estimators = (
        getattr(config.get_config_for_module(module_id), "advantage_estimator", None)
        for module_id in config.trained_module_ids
    )
    return _names(name, [*read, *estimators])


def reads_candidates(config: LLMConfig) -> bool:
    """Return whether a scorer scores the replies at a turn."""
    return _names(SCORER_MODULE, config.candidate_scores)


def _names(name: str, specs: Any) -> bool:
    """Return whether a component is named so, also inside of others."""
    if isinstance(specs, Mapping):
        return any(_names(name, each) for each in specs.values())
    if isinstance(specs, list | tuple):
        return any(_names(name, each) for each in specs)
    return isinstance(specs, str) and specs == name


def _check_loss(config: ScoredConfig) -> None:
    loss = config.scorer_loss
    why = "it is for scorer.loss='causal'. Leave it out."
    refuse_without_effect(config, _OF_CAUSAL, why)
    if loss != "pairwise":
        why = f"scorer.loss={loss!r} compares nothing. Leave it out."
        refuse_without_effect(config, _OF_PAIRS, why)
    elif config.group_size < 2:
        raise ConfigError(
            f"group_size={config.group_size}: a pair needs two episodes of a task. Use "
            "group_size >= 2, or another scorer.loss."
        )
    if loss not in ("pairwise", "outcome"):
        why = "it is for scorer.loss='pairwise' and 'outcome'. Leave it out."
        refuse_without_effect(config, ("scorer_label_noise",), why)
    _check_critics(config)
    if config.scorer_privileged and (config.is_turn_critic or loss == "expert"):
        raise ConfigError(
            f"scorer.privileged=True: the scorer of loss={loss!r} also reads episodes "
            "without the environment's infos (replayed ones, the expert's). Leave it "
            "out, or use another scorer.loss."
        )
    if loss != PROCESS:
        why = f"it is for scorer.loss={PROCESS!r}. Leave it out."
        refuse_without_effect(config, ("scorer_labels",), why)
    elif config.fork is None:
        raise ConfigError(
            f"scorer.loss={loss!r} labels a turn by the episodes that go through it, "
            "and without rollouts.fork each turn has one. Set rollouts.fork, e.g. to "
            "{name: every_turn}, or use scorer.loss='outcome'."
        )
    if config.scorer_scores == "head":
        why = "it is for scorer.scores='log_ratio'. Leave it out."
        refuse_without_effect(config, ("scorer_beta",), why)
    elif loss not in ("pairwise", "outcome") or config.scorer_pool == "last":
        raise ConfigError(
            f"scorer.scores='log_ratio' with scorer.loss={loss!r} and "
            f"scorer.pool={config.scorer_pool!r}: log-ratios of turns are compared or "
            "classified by their sum or mean. Use loss='pairwise' or 'outcome', and "
            "pool='sum' or 'mean'."
        )
    if loss in ("expert", PROCESS) or config.is_turn_critic:
        why = f"scorer.loss={loss!r} scores single turns. Leave it out."
        refuse_without_effect(config, ("scorer_pool",), why)


def _check_critics(config: ScoredConfig) -> None:
    """Check the settings of turn critics."""
    loss = config.scorer_loss
    if loss != "td":
        why = "it is for scorer.loss='td'. Leave it out."
        refuse_without_effect(config, _OF_TD, why)
    if loss not in ("td", VTRACE):
        why = "it is for scorer.loss='td' and 'vtrace'. Leave it out."
        refuse_without_effect(config, _OF_DISCOUNTED, why)
    if loss == VTRACE:
        if config.uses_replay:
            _check_replayed_turns(cast("GRPOConfig", config))
    else:
        why = f"it is for scorer.loss={VTRACE!r}. Leave it out."
        refuse_without_effect(config, _OF_VTRACE, why)
    if loss in ("monte_carlo", VTRACE) and reads_candidates(config):
        raise ConfigError(
            f"rollouts.candidate_scores reads the scorer, but scorer.loss={loss!r} "
            "values places and not the replies there. Use scorer.loss='td', whose Q "
            "does, or another loss."
        )


def _check_replayed_turns(config: GRPOConfig) -> None:
    """Check that V-trace alone makes and weighs the advantages of replayed turns."""
    makers = (
        config.replay_advantages,
        config.replay_positive_only,
        _name_of(config.advantage_estimator),
        bool(config.advantage_transforms),
    )
    if makers != ("stored", False, TURN_CRITIC, False):
        raise ConfigError(
            f"scorer.loss={VTRACE!r} computes the advantages of replayed turns anew, "
            "which replay.advantages, replay.positive_only, other estimators and "
            "transforms do not reach. Leave them out, and set "
            f"advantage_estimator to {TURN_CRITIC!r}."
        )
    loss = _name_of(config.replay_loss or config.policy_loss)
    if loss != "pg" or config.replay_old_logps != "engine":
        raise ConfigError(
            f"scorer.loss={VTRACE!r} weighs the advantages of replayed turns by the "
            f"policy's ratio, but replay.loss={loss!r} with replay.old_logps="
            f"{config.replay_old_logps!r} would weigh them once more. Use the loss "
            "'pg' and old_logps='engine'."
        )


def _name_of(spec: object) -> object:
    """Return the name of the only component, if it has no settings; else None."""
    if isinstance(spec, list | tuple):
        spec = spec[0] if len(spec) == 1 else None
    if isinstance(spec, Mapping):
        return spec.get("name") if len(spec) == 1 else None
    return spec


def _check_run(config: ScoredConfig) -> None:
    if SCORER_MODULE in config.module_ids:
        raise ConfigError(
            f"{SCORER_MODULE!r} is the ModuleID of the scorer. Give the policy another "
            "name."
        )
    is_like_policy = config.action_labels is None
    for is_wrong, problem in (
        (
            config.sharding is not None,
            "shards of its own are not supported. Leave learners.sharding out.",
        ),
        (
            config.history != "append" and is_like_policy,
            f"it reads whole conversations, but history={config.history!r}. Use "
            "history='append'.",
        ),
        (
            config.action_head != "generate",
            f"it reads texts, but head={config.action_head!r}. Use head='generate'.",
        ),
        (
            bool(config.initial_checkpoint and config.lm_lora) and is_like_policy,
            "it begins with the policy's weights, which under LoRA are those of the "
            "base model and not of the stage before. Train all weights (lora: null).",
        ),
        (
            bool(getattr(config, "needs_greedy", False)) and is_like_policy,
            "greedy rollouts get no scores. Use another advantage_baseline.",
        ),
    ):
        if is_wrong:
            raise ConfigError(f"scorer.loss={config.scorer_loss!r}: {problem}")
    env = config.make_text_env()
    agents = agents_of(env)
    if agents is None and config.scorer_loss == "expert":
        play_expert_with_mistakes(env, seed=0, mistake_rate=0.0)
    parses = callable(getattr(env, "parse", None))
    env.close()
    if not (is_like_policy or parses or agents):
        raise ConfigError(
            "scorer.loss='causal' learns from parsed actions, but "
            f"{type(env).__name__} has no parse(). Use a TextEnv, or another "
            "scorer.loss."
        )
    if agents is not None or len(config.module_ids) > 1:
        names = ", ".join(agents or config.module_ids)
        raise ConfigError(
            "A scorer scores episodes of one agent and one policy, not of "
            f"{names}. Leave scorer out."
        )
