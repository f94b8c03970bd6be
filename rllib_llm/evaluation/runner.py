"""EnvRunners for evaluation in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID

from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.envs.make import EnvSpec
    from rllib_llm.types import LLMAlgorithm, LLMConfig


def local_runner(algo: LLMAlgorithm) -> Any:
    """Return an EnvRunner in this process with the Learners' current weights."""
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    runner = algo.env_runner
    if not isinstance(runner, LLMEnvRunner):  # trained with RLlib's stock runner
        runner = LLMEnvRunner(config=algo.config, worker_index=0)
    weights = algo.learner_group.get_weights()
    # The local EnvRunner may hold older weights than the Learners.
    runner.set_state({COMPONENT_RL_MODULE: weights})
    return runner


def runner_in(
    runner: LLMEnvRunner, env: EnvSpec, env_config: dict[str, Any] | None = None
) -> Any:
    """Return an EnvRunner with the same weights in another environment.

    Everything else is as in training: prompts, sampling, limits, policy mapping.

    Args:
        runner: An LLMEnvRunner.
        env: As in ``.environment(env)``.
        env_config: Its options. For the run's own environment, missing options have
            their values of training.

    Raises:
        ConfigError: If the environment has a single agent, but a team was trained.
    """
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    config = runner.config.copy(copy_frozen=False)
    options = env_config_in(config, env, env_config or {})
    config.env_config = {}  # .environment() would merge the old options into the new
    config.environment(env, env_config=options)
    # Skips the checks of training-only settings such as rewards and advantages.
    config.in_evaluation = True
    config.validate()
    if _has_single_agent(config) and DEFAULT_MODULE_ID not in config.module_ids:
        raise ConfigError(
            f"{config.env!r} has a single agent, but the run trained "
            f"{', '.join(config.module_ids)} for a team. Choose an environment with "
            "several agents."
        )
    other = LLMEnvRunner(config=config, worker_index=0)
    actors = {m: actor.module for m, actor in runner.actors.items()}
    # The same tensors: a second copy of the models might not fit.
    other.share_weights_of({**runner.modules, **actors})
    return other


def env_config_in(
    config: LLMConfig, env: EnvSpec, env_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of an environment in which the policies of a config play.

    Args:
        config: The config of training.
        env: As in ``.environment(env)``.
        env_config: Options that replace those of training, in the run's own
            environment; in another one the only options.
    """
    return {**(config.env_config if env == config.env else {}), **env_config}


def _has_single_agent(config: LLMConfig) -> bool:
    env = config.make_text_env()
    agents = agents_of(env)
    env.close()
    return agents is None
