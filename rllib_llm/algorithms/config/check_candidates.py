"""Checks of ``rollouts(candidates=...)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.one_agent import one_agent_obstacle
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.components.registry import bind_all
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.combine import ENVIRONMENT, Rewards

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

BEST = "best_candidates"  # value of save_as
MATCH = "candidates"  # value of Pref's match


def validate_candidates(config: LLMConfig) -> None:
    """Check the number of candidates, their scores, and what reads them.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    readers = {
        f"rollouts.save_as={BEST!r}": config.save_as == BEST,
        f"match={MATCH!r}": getattr(config, "match", None) == MATCH,
    }
    named = [reader for reader, is_set in readers.items() if is_set]
    if config.candidates == 1:
        if named:
            raise ConfigError(
                f"{named[0]} compares the replies that were sampled at a turn, but "
                "rollouts.candidates=1. Set it to their number, e.g. 4."
            )
        why = "each turn has one reply alone. Set rollouts.candidates."
        refuse_without_effect(config, ("candidate_scores",), why)
        return
    if not named:
        raise ConfigError(
            f"rollouts.candidates={config.candidates} samples replies that nothing "
            f"reads. Set {' or '.join(readers)}, or leave it out."
        )
    _check_scores(config)
    obstacle = _obstacle(config)
    if obstacle is not None:
        raise ConfigError(f"rollouts.candidates={config.candidates}: {obstacle}")


def _check_scores(config: LLMConfig) -> None:
    parts = bind_all("reward", config.candidate_scores)
    if not parts:
        raise ConfigError(
            f"rollouts.candidates={config.candidates} needs rollouts.candidate_scores, "
            "a reward that scores a conversation up to a reply, e.g. 'logp'."
        )
    if ENVIRONMENT in [part.component.name for part in parts]:
        raise ConfigError(
            f"rollouts.candidate_scores names {ENVIRONMENT!r}, but the environment "
            "has received none of the replies that were not played. Leave it out."
        )
    Rewards(config.candidate_scores).try_out()


def _obstacle(config: LLMConfig) -> str | None:
    """Return why no candidates can be sampled; None: they can."""
    if config.action_head != "generate":
        return (
            f"head={config.action_head!r} chooses among the environment's actions. Use "
            "head='generate'."
        )
    if config.history != "append":
        return (
            f"history={config.history!r} does not keep the conversation before each "
            "turn, which scores read. Use history='append'."
        )
    return one_agent_obstacle(config)
