"""Settings of ``rollouts`` that save sampled episodes, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.env_runner.agents import agents_of, program_envs
from rllib_llm.envs.back import Back
from rllib_llm.errors import ConfigError
from rllib_llm.filters.apply import Filters
from rllib_llm.offline.demonstrations import demonstrate
from rllib_llm.offline.self_labels import ANSWER

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

# Values of save_as.
CORRECTIONS = "corrections"
ROLLBACKS = "rollbacks"
CALIBRATIONS = "calibrations"
EXPERT_REPLIES = "expert_replies"
SELF_LABELS = "self_labels"
_OF_GROUPS = (CORRECTIONS, ROLLBACKS, CALIBRATIONS)  # compare the episodes of a task


def validate_saving(config: LLMConfig) -> None:
    """Check ``save_episodes``, ``save_as`` and ``save_where``.

    Raises:
        ConfigError: If one is wrong or would have no effect.
    """
    given = config.save_episodes
    if not given:
        why = "nothing is saved. Set rollouts.save_episodes."
        refuse_without_effect(config, ("save_as", "save_where"), why)
        return
    if isinstance(given, str) and "://" in given:
        raise ConfigError(
            f"save_episodes={given!r} must be a folder that this machine can write. "
            "Copy its files afterwards."
        )
    Filters(config.save_where).try_out()
    if config.save_as != CALIBRATIONS:
        why = f"save_as={config.save_as!r} compares no values. Use {CALIBRATIONS!r}."
        refuse_without_effect(config, ("calibration_margin",), why)
    if config.save_as == SELF_LABELS:
        _validate_self_labels(config)
    else:
        why = f"save_as={config.save_as!r} has no known answers. Use {SELF_LABELS!r}."
        refuse_without_effect(config, ("call_margin", "answer_template"), why)
    if config.save_as in _OF_GROUPS:
        _validate_corrections(config)
        return
    why = f"save_as={config.save_as!r} splices no episodes. Use {CORRECTIONS!r}."
    refuse_without_effect(config, ("correction",), why)
    if config.save_as == EXPERT_REPLIES:
        _validate_conversations(config, "needs conversations")
        _try_expert(config)


def _validate_self_labels(config: LLMConfig) -> None:
    why = f"save_as={SELF_LABELS!r} writes a row for each task. Leave it out."
    refuse_without_effect(config, ("save_where",), why)
    if config.answer_template.count(ANSWER) != 1:
        raise ConfigError(
            f"answer_template={config.answer_template!r} must contain {ANSWER} once, "
            f"where the known answer stands. Use e.g. '<answer>{ANSWER}</answer>'."
        )
    _validate_conversations(config, "writes conversations")
    env = config.make_text_env()
    env.reset(seed=0)
    *_, info = env.step("?")
    env.close()
    if not info.get("gold_answers") or "tool" not in info:
        raise ConfigError(
            f"save_as={SELF_LABELS!r} needs tool calls and known answers, but "
            f"{config.env} has {_named(info)} in info. Use an environment that sets "
            "info['tool'] and info['gold_answers'] in each turn, e.g. python_tool-v0."
        )


def _named(info: Mapping[str, object]) -> str:
    names = [name for name in ("tool", "gold_answers") if info.get(name)]
    return f"only {names}" if names else "neither 'tool' nor 'gold_answers'"


def _validate_corrections(config: LLMConfig) -> None:
    why = f"save_as={config.save_as!r} chooses the episodes itself. Leave it out."
    refuse_without_effect(config, ("save_where",), why)
    if config.group_size < 2:
        raise ConfigError(
            f"save_as={config.save_as!r} splices failed episodes with solved ones of "
            f"their task, but group_size={config.group_size}. Use group_size >= 2."
        )
    _validate_conversations(config, "splices conversations")
    if config.save_as == ROLLBACKS:
        _validate_rollbacks(config)
    if config.save_as == CALIBRATIONS and config.fork is None:
        raise ConfigError(
            f"save_as={CALIBRATIONS!r} compares values of replies at one place, but "
            "fork is None, so no place has two. Set fork, e.g. every_turn."
        )


def _validate_rollbacks(config: LLMConfig) -> None:
    env = config.make_text_env()
    game = env.unwrapped
    env.close()
    if not isinstance(game, Back) or not game.options()["thoughts"]:
        raise ConfigError(
            f"save_as={ROLLBACKS!r} writes replies that reflect and use the tool "
            f"`back`, which {config.env} with env_config={config.env_config} does not "
            "read. Use env='back-v0' with env_config={'thoughts': True}."
        )


def _validate_conversations(config: LLMConfig, what: str) -> None:
    """Refuse environments and histories whose conversations are no single text."""
    env = config.make_text_env()
    agents, programs = agents_of(env), program_envs(env)
    env.close()
    if agents is not None or programs or config.history != "append":
        raise ConfigError(
            f"save_as={config.save_as!r} {what} of one agent with "
            f"history='append', but {config.env} has "
            f"{'several agents' if agents else 'programs' if programs else 'one'} and "
            f"history={config.history!r}. Save episodes."
        )


def _try_expert(config: LLMConfig) -> None:
    """Play an episode of the expert, which not every environment has."""
    env = config.make_text_env()
    try:
        demonstrate(env, seed=0, mistake_rate=0.0)
    except ConfigError as error:
        raise ConfigError(
            f"save_as={EXPERT_REPLIES!r} needs a scripted expert, and {config.env} has "
            "none. Implement expert_action(), or save episodes."
        ) from error
    finally:
        env.close()
