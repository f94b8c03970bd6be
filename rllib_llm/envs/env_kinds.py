"""Detection of the kind of an environment, including RLlib's own MultiAgentEnv.

RLlib is not imported here: an object can be a ``MultiAgentEnv`` only if its class has
been imported already.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from pettingzoo import AECEnv, ParallelEnv

from rllib_llm.envs.spaces import UnicodeText, is_of_numbers
from rllib_llm.errors import EnvContractError

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

_RLLIB_ENV = "ray.rllib.env.multi_agent_env", "MultiAgentEnv"
_RLLIB_CONTEXT = "ray.rllib.env.env_context", "EnvContext"
_TEXT_SPACES = (UnicodeText, gym.spaces.Text)


def is_rllib_env(env: object) -> bool:
    """Return whether ``env`` is a ``MultiAgentEnv`` of RLlib."""
    return isinstance(env, _imported(*_RLLIB_ENV) or ())


def is_rllib_env_class(spec: object) -> bool:
    """Return whether ``spec`` is a class of such environments."""
    return inspect.isclass(spec) and issubclass(spec, _imported(*_RLLIB_ENV) or ())


def is_multi_agent(env: object) -> bool:
    """Return whether ``env`` has several agents and needs a MultiAgentAdapter."""
    return isinstance(env, AECEnv | ParallelEnv) or is_rllib_env(env)


def is_environment(env: object) -> bool:
    """Return whether ``env`` is an instance of any kind of environment."""
    return isinstance(env, gym.Env) or is_multi_agent(env)


def as_env_context(config: dict[str, Any]) -> dict[str, Any]:
    """Return options as an ``EnvContext`` of RLlib, if RLlib has been imported."""
    context = _imported(*_RLLIB_CONTEXT)
    return config if context is None else context(config, worker_index=0)


def rllib_spaces(env: MultiAgentEnv, agent: str) -> tuple[gym.Space, gym.Space] | None:
    """Return the spaces that a ``MultiAgentEnv`` declares for an agent, else None.

    Raises:
        EnvContractError: If the agent observes text and acts in numbers.
    """
    try:
        spaces = env.get_observation_space(agent), env.get_action_space(agent)
    except (KeyError, ValueError, AttributeError):
        return None
    if None in spaces:
        return None
    reads_text = not is_of_numbers(spaces[0])
    if reads_text and not isinstance(spaces[1], _TEXT_SPACES):
        raise EnvContractError(
            f"{agent!r} of {type(env).__name__} observes {spaces[0]} but acts in "
            f"{spaces[1]}. A language model answers in text: declare "
            "gymnasium.spaces.Text as its action space and read the text in step(), or "
            "declare an observation space of numbers for an RLModule to read."
        )
    return spaces


def _imported(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)
