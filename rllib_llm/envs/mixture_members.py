"""Environments of a mixture: their names, weights, options and components."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.schema import is_number, show

if TYPE_CHECKING:
    from rllib_llm.envs.make import EnvSpec

MIXTURE = "mixture"  # name of the environment, and its field in recipes
ENVIRONMENTS = "environments"
# Components of an environment in place of those in the section rollouts.
COMPONENTS = (
    "rewards",
    "reward_transforms",
    "filters",
    "curriculum",
    "prompt_text",
)
_KEYS = ("env", "name", "weight", "env_config", *COMPONENTS)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_EXAMPLE = "[{env: guess_number-v0, weight: 2}, {env: frozen_lake-v0, weight: 1}]"


@dataclasses.dataclass(frozen=True)
class MixtureMember:
    """One environment of a mixture.

    Attributes:
        name: Its name in metrics and results.
        env: The environment, as :func:`rllib_llm.envs.make_env` accepts it.
        env_config: Its options.
        weight: Its share of the training tasks, relative to the others' weights.
        components: Settings of ``rollouts`` that it has in place of the run's:
            ``rewards``, ``reward_transforms``, ``filters``, ``curriculum``,
            ``prompt_text``.
    """

    name: str
    env: EnvSpec
    env_config: dict[str, Any]
    weight: float
    components: dict[str, Any]


def read_members(env_config: Mapping[str, Any]) -> list[MixtureMember]:
    """Return the environments that the options of a mixture describe.

    Args:
        env_config: ``{"environments": [...]}``, one mapping for each environment.

    Raises:
        ConfigError: If an entry is unknown or has an invalid value.
    """
    unknown = [key for key in env_config if key != ENVIRONMENTS]
    if unknown:
        raise ConfigError(
            f"A mixture has no option {show(unknown[0], 60)}. Its only option is "
            f"{ENVIRONMENTS!r}; give options of an environment in its env_config."
        )
    given = env_config.get(ENVIRONMENTS)
    if not isinstance(given, list | tuple) or len(given) < 2:
        raise ConfigError(
            f"mixture: {show(given)} must be a list of two or more environments, e.g. "
            f"{_EXAMPLE}. For one environment use env: NAME."
        )
    members = [_member(each, number) for number, each in enumerate(given, start=1)]
    names: dict[str, int] = {}
    for number, member in enumerate(members, start=1):
        if member.name in names:
            raise ConfigError(
                f"mixture: environments {names[member.name]} and {number} are both "
                f"named {member.name!r}. Give each a unique name, e.g. "
                f"name: {member.name}_{number}."
            )
        names[member.name] = number
    return members


def _member(given: object, number: int) -> MixtureMember:
    where = f"mixture: environment {number}"
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{where} is {show(given)}; it must be a mapping, e.g. "
            "{env: guess_number-v0, weight: 1}."
        )
    for key in given:
        if key not in _KEYS:
            raise ConfigError(
                f"{where} has no entry {show(key, 60)}. "
                f"{did_you_mean(str(key)[:60], _KEYS)} Entries: {', '.join(_KEYS)}."
            )
    env = given.get("env")
    if env is None or isinstance(env, Mapping) or env == MIXTURE:
        raise ConfigError(
            f"{where} has env={show(env)}; it must be one environment, e.g. "
            "env: guess_number-v0. Mixtures cannot be nested: list all environments "
            "in one."
        )
    env_config = given.get("env_config") or {}
    if not isinstance(env_config, Mapping):
        raise ConfigError(
            f"{where} has env_config={show(env_config)}; it must map options to "
            "values, e.g. {size: 4}."
        )
    return MixtureMember(
        name=_name(given.get("name"), env, where),
        env=env,
        env_config=dict(env_config),
        weight=_weight(given.get("weight", 1), where),
        components={key: given[key] for key in COMPONENTS if key in given},
    )


def _weight(weight: Any, where: str) -> float:
    if not is_number(weight) or not math.isfinite(weight) or weight <= 0:
        raise ConfigError(
            f"{where} has weight={show(weight)}; it must be a finite number > 0, e.g. "
            "weight: 2 for twice the tasks of weight: 1. Remove an environment that "
            "shall not be sampled."
        )
    return float(weight)


def _name(name: Any, env: EnvSpec, where: str) -> str:
    if name is None:
        text = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
        # Names are levels of metric keys, which '/' separates.
        name = re.split(r"[/:]", text)[-1]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where} has the name {show(name)}; it must consist of letters, digits, "
            "'_', '.' and '-'. Set name, e.g. name: maze."
        )
    return name
