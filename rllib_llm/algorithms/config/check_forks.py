"""Checks of ``rollouts(fork=...)``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rllib_llm.advantages.estimators.forked import OF_TREES
from rllib_llm.algorithms.config.one_agent import program_obstacle
from rllib_llm.components.registry import bind
from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.advantages.estimators.combine import AdvantageEstimators
    from rllib_llm.types import LLMConfig


def validate_forks(config: LLMConfig) -> None:
    """Check the fork rule, the size of a group and the environment.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    if config.fork is None:
        return
    bound = bind("fork", config.fork)
    name, roots = bound.component.name, getattr(bound.call, "roots", None)
    if not isinstance(roots, int) or roots < 1:
        raise ConfigError(
            f"fork {name!r} has roots={roots!r}. A fork rule is a class; its attribute "
            "roots is the number of a group's episodes that begin at the prompt, >= 1."
        )
    if config.group_size <= roots:
        raise ConfigError(
            f"fork {name!r}: all {config.group_size} episodes of a group begin at the "
            f"prompt, because roots={roots} leaves none to fork. Use group_size > "
            f"{roots}, or fewer roots."
        )
    if (obstacle := fork_obstacle(config)) is not None:
        raise ConfigError(f"fork {name!r}: {obstacle} Leave fork out.")


def fork_obstacle(config: LLMConfig) -> str | None:
    """Return why episodes cannot begin at places of others; None: they can."""
    if config.action_head != "generate":
        return (
            f"head={config.action_head!r} samples no tokens, at which forks begin; "
            "head='generate' does."
        )
    if config.non_llm_module_ids:
        return (
            f"the policy {config.non_llm_module_ids[0]!r} reads numbers, and places "
            "hold texts alone. Map its agents to a language model or a script."
        )
    return program_obstacle(config)


def refuse_tree_estimators(estimators: Iterable[AdvantageEstimators]) -> None:
    """Refuse advantages in trees of a run whose episodes are not forked.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    for bound in (bound for each in estimators for bound in each.estimators):
        if (name := bound.component.name) in OF_TREES:
            raise ConfigError(
                f"advantage_estimator {name!r} compares episodes that share turns, but "
                "fork is None, so none do. Set rollouts.fork, e.g. "
                "{name: every_turn}, or use 'group'."
            )
