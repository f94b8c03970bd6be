"""Options of single-agent and multi-agent environments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.schema import hints_of, is_number, require

SPLITS = ("train", "test")
TASK_NUMBER = "task_number"


class EnvOptions:
    """Options of an environment: the keyword parameters of ``start``, and three more.

    ``max_turns``, ``invalid_action`` and ``invalid_action_reward`` are fixed for a run.
    All others have defaults in the signature of ``start``; ``env_config`` overrides
    them for a run, ``reset(options=...)`` for one episode.
    """

    max_turns: int = 10
    invalid_action: str = "retry"
    invalid_action_reward: float = 0.0
    format_hint: str = "That was not a valid action. Please follow the format."
    system_prompt: str | None = None
    has_success: bool = True
    split: str = "train"
    # True: reset(options=...) receives "task_number", which counts the tasks of a split
    # from 0, and task_number holds it (None without one). For tasks in a list.
    numbered_tasks: bool = False
    task_number: int | None = None

    _BASE_OPTIONS: ClassVar[tuple[str, ...]] = (
        "max_turns",
        "invalid_action",
        "invalid_action_reward",
    )

    def options(self) -> dict[str, Any]:
        """Return the current options, defaults included."""
        return {**_start_options(type(self)), **self._options}

    def _read_config(self, env_config: dict[str, Any] | None) -> None:
        config = dict(env_config or {})
        for name in self._BASE_OPTIONS:
            if name in config:
                setattr(self, name, config.pop(name))
        self._options = self._checked_options(config, also=self._BASE_OPTIONS)
        self._check_base_options()

    def _read_reset_options(self, given: dict[str, Any] | None) -> dict[str, Any]:
        """Set ``split`` and return the options of ``start`` for one episode."""
        options = dict(given or {})
        self.split = options.pop("split", "train")
        if self.split not in SPLITS:
            raise ConfigError(f"split={self.split!r} must be one of {SPLITS}.")
        if self.numbered_tasks:
            self.task_number = options.pop(TASK_NUMBER, None)
        options = self._checked_options(options, also=("split",))
        return {**self._options, **options}

    def _checked_options(
        self, given: dict[str, Any], also: tuple[str, ...]
    ) -> dict[str, Any]:
        defaults = _start_options(type(self))
        for name in given:
            if name in self._BASE_OPTIONS and name not in also:
                raise ConfigError(
                    f"{name!r} cannot change between episodes. Set it in env_config."
                )
            if name not in defaults:
                raise ConfigError(
                    f"{type(self).__name__} has no option {name!r}. "
                    + did_you_mean(name, [*defaults, *also])
                )
            # By identity, so that a default of another type than its annotation passes.
            if given[name] is not defaults.get(name):
                kind = hints_of(_start_of(type(self))).get(name, Any)
                require(f"{type(self).__name__}.{name}", given[name], kind)
        return given

    def _check_base_options(self) -> None:
        if not is_number(self.max_turns, int) or self.max_turns < 1:
            raise ConfigError(f"max_turns={self.max_turns!r} must be an int >= 1.")
        if self.invalid_action not in ("retry", "end"):
            raise ConfigError(
                f"invalid_action={self.invalid_action!r} must be 'retry' (the model "
                "reads format_hint and tries again) or 'end' (the episode is over)."
            )
        if not is_number(self.invalid_action_reward):
            raise ConfigError(
                f"invalid_action_reward={self.invalid_action_reward!r} must be a "
                "finite number, e.g. -0.1."
            )


def is_finite(number: Any) -> bool:
    """Return whether ``number`` is a number, and neither infinite nor NaN."""
    try:
        return math.isfinite(number)
    except TypeError:
        return False


def _start_of(cls: type) -> Callable[..., Any]:
    return getattr(cls, "start")  # noqa: B009  (its signature is the author's)


def _start_options(cls: type) -> dict[str, Any]:
    """Return the keyword options of ``start`` and their defaults."""
    # Without self and the random generator.
    parameters = list(inspect.signature(_start_of(cls)).parameters.values())[2:]
    return {
        p.name: None if p.default is p.empty else p.default
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
