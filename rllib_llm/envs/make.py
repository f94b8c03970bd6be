"""Construction of environments from a name, a Gymnasium id, a class or a function."""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium as gym
from pettingzoo import AECEnv, ParallelEnv

from rllib_llm.envs.env_kinds import (
    as_env_context,
    is_environment,
    is_multi_agent,
    is_rllib_env_class,
)
from rllib_llm.envs.gym_text import GymTextEnv
from rllib_llm.envs.mixture_members import MIXTURE
from rllib_llm.envs.registry import TEXT_ENVS
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError, EnvContractError, did_you_mean
from rllib_llm.imports import import_object

AnyEnv: TypeAlias = gym.Env | AECEnv | ParallelEnv
EnvSpec: TypeAlias = str | type[AnyEnv] | Callable[[dict[str, Any]], AnyEnv]

REMOTE = "remote"
# By its location, since this package does not import Ray.
_MAKE_REMOTE = "rllib_llm.env_runner.remote_env:make_remote"
_ADAPTER_OPTIONS = (
    "max_turns",
    "invalid_action",
    "invalid_action_reward",
    "action_names",
    "pictures",
)


def make_env(spec: EnvSpec, env_config: dict[str, Any] | None = None) -> Any:
    """Return a text environment.

    Args:
        spec: One of

            - a registered name, e.g. ``"frozen_lake-v0"``;
            - ``"mixture"``, with ``env_config={"environments": [...]}``;
            - ``"remote"``, with ``env_config={"env": ..., "runtime_env": {...}}``: in
              an actor of Ray with packages of its own;
            - a Gymnasium id, made with ``gymnasium.make(id, **env_config)``;
            - ``"package.module:Name"``, where ``Name`` is one of the following, or an
              environment, of which every runner uses a copy;
            - a class, called with the config dictionary as RLlib does;
            - a function of the config dictionary that returns an environment.
        env_config: Options of the environment. For Gymnasium ids and classes that are
            not a :class:`TextEnv`, ``max_turns``, ``invalid_action``,
            ``invalid_action_reward``, ``action_names`` and ``pictures`` go to the
            adapter :class:`GymTextEnv` instead.

    Returns:
        An environment whose ``unwrapped`` is a :class:`TextEnv`; or one of PettingZoo
        or a ``MultiAgentEnv`` of RLlib, both for
        :class:`~rllib_llm.envs.multi_agent_adapter.MultiAgentAdapter`; or a mixture
        or a remote environment, which are ready to run.

    Raises:
        ConfigError: If ``spec`` does not exist or has another type.
        EnvContractError: If the environment does not support text.
    """
    config = copy.copy(env_config) if env_config else {}  # dict() loses EnvContext
    if isinstance(spec, str):
        return _make_named(spec, dict(config))
    if is_rllib_env_class(spec):
        return spec(as_env_context(config))
    if inspect.isclass(spec) and issubclass(spec, gym.Env):
        if issubclass(spec, TextEnv):
            return spec(config)
        # The class need not know the adapter's options and would refuse them.
        adapter, rest = _split_config(config)
        build: Callable[..., Any] = spec
        return _as_text_env(build(rest), spec, adapter)
    if callable(spec):
        return _as_text_env(spec(config), spec, {})
    raise ConfigError(
        f"env={spec!r} must be a name, a class or a function of env_config that "
        "returns an environment, because every runner makes its own. Pass an existing "
        "environment by its location: 'package.module:name'."
    )


def has_numbered_tasks(spec: EnvSpec, env_config: Mapping[str, Any]) -> bool:
    """Return whether an environment's tasks are numbered; see ``EnvOptions``."""
    if spec == REMOTE:
        # This process may lack the packages that the environment's module needs.
        env = make_playable(spec, dict(env_config))
        is_numbered = bool(getattr(env.unwrapped, "numbered_tasks", False))
        env.close()
        return is_numbered
    if isinstance(spec, str):
        if spec in TEXT_ENVS:
            spec = TEXT_ENVS.get(spec)
        elif ":" in spec:
            spec = import_object(spec, "env")
    return bool(getattr(spec, "numbered_tasks", False))


def make_playable(spec: EnvSpec, env_config: dict[str, Any] | None = None) -> Any:
    """Return an environment ready to run, with a MultiAgentAdapter for many agents."""
    from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter

    env = make_env(spec, env_config)
    return MultiAgentAdapter(env) if is_multi_agent(env) else env


def _make_named(spec: str, config: dict[str, Any]) -> Any:
    if spec == MIXTURE:
        from rllib_llm.envs.mixture import make_mixture

        return make_mixture(config)
    if spec == REMOTE:
        return import_object(_MAKE_REMOTE, "env")(config)
    if spec in TEXT_ENVS:
        return TEXT_ENVS.get(spec)(config)
    if spec in gym.registry:
        adapter, rest = _split_config(config)
        # Gymnasium's checker only warns; check_env runs the same checks and raises.
        try:
            env = gym.make(spec, disable_env_checker=True, **rest)
        except TypeError as error:
            # Another TypeError is a bug in the environment, whose traceback helps.
            if "unexpected keyword argument" not in str(error):
                raise
            raise ConfigError(f"env={spec!r}: {error}. Correct env_config.") from error
        return _as_text_env(env, spec, adapter)
    if ":" in spec:
        imported = import_object(spec, "env")
        if is_environment(imported):
            # A module holds one object, but runners step their environments at the same
            # time.
            return _copy_of(imported, spec, config)
        return make_env(imported, config)
    similar = difflib.get_close_matches(spec, list(gym.registry), n=1, cutoff=0.6)
    hint = did_you_mean(spec[:100], [*TEXT_ENVS, *similar])
    raise ConfigError(
        f"Unknown environment {spec[:100]!r}. {hint} To use your own, pass a class, a "
        "function of env_config, or 'package.module:Name' of one."
    )


def _copy_of(env: AnyEnv, spec: str, config: dict[str, Any]) -> AnyEnv:
    """Return a copy of an existing environment, for one runner."""
    if config:
        raise ConfigError(
            f"env={spec!r} is an existing environment, so env_config={config!r} would "
            "have no effect. Pass its class, or leave env_config out."
        )
    try:
        return _as_text_env(copy.deepcopy(env), spec, {})
    except TypeError as error:
        raise ConfigError(
            f"env={spec!r} cannot be copied for each runner: {error}. Pass its class, "
            "or a function that returns it."
        ) from error


def _as_text_env(env: object, source: object, adapter: dict[str, Any]) -> AnyEnv:
    """Return ``env`` if it supports text, otherwise wrapped in the adapter."""
    if is_multi_agent(env):
        return env  # MultiAgentAdapter checks the texts of each agent
    if type(env).__module__.partition(".")[0] == "textarena":
        raise EnvContractError(
            f"{source!r} returned TextArena's own {type(env).__name__}, whose "
            "interface differs from Gymnasium's. Use env='textarena/NAME', e.g. "
            "'textarena/TicTacToe-v0', or rllib_llm.envs.adapters.text_arena."
        )
    if not isinstance(env, gym.Env):
        raise EnvContractError(
            f"{source!r} returned {type(env).__name__}; it must return a "
            "gymnasium.Env, a pettingzoo AECEnv or ParallelEnv, or a MultiAgentEnv of "
            "RLlib."
        )
    if isinstance(env.unwrapped, TextEnv):
        return env
    names = adapter.pop("action_names", None)
    pictures = adapter.pop("pictures", False)
    return GymTextEnv(env, action_names=names, pictures=pictures, env_config=adapter)


def _split_config(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    adapter = {k: v for k, v in config.items() if k in _ADAPTER_OPTIONS}
    return adapter, {k: v for k, v in config.items() if k not in adapter}
