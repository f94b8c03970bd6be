"""Check that games can be played again, for estimators that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.estimators.magrpo_cross import MAX_GAMES
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.env_runner.replay import Replay, random_episodes
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.combine import Rewards

if TYPE_CHECKING:
    from rllib_llm.algorithms.grpo.grpo import GRPOConfig


def try_replays(config: GRPOConfig, advantage_estimator: AdvantageEstimators) -> None:
    """Replay combinations of random rollouts, so that unsuitable games fail early.

    Raises:
        ConfigError: If the game or the settings are unsuitable.
    """
    names = ", ".join(bound.component.name for bound in advantage_estimator.estimators)
    # Replays step the environment alone and never reach the driver's rewards.
    if any(
        Rewards(specs.rewards, specs.reward_transforms).changes_anything
        for specs in config.component_specs().values()
    ):
        raise ConfigError(
            f"advantage_estimator ({names}) plays games again with the environment's "
            "rewards alone, but rewards or reward_transforms change them. Omit those, "
            "or use joint='aligned'."
        )
    others = sorted(set(config.module_ids) - set(config.llm_module_ids))
    if others:
        raise ConfigError(
            f"advantage_estimator ({names}) plays games again with sampled texts, "
            f"but no language model acts for {', '.join(others)}. Use "
            "joint='aligned'."
        )
    env = config.make_text_env()
    try:
        agents = agents_of(env) or []
        if len(agents) < 2:
            raise ConfigError(
                f"advantage_estimator ({names}) combines the texts of several agents, "
                f"but env={config.env!r} has one agent. Use joint='aligned'."
            )
        rollouts = random_episodes(env)
        acting = len({t.agent for t in rollouts})
        if config.group_size**acting > MAX_GAMES:
            raise ConfigError(
                f"group_size={config.group_size} and {acting} agents make "
                f"{config.group_size**acting} combinations of each task, but at most "
                f"{MAX_GAMES} games are played. Use a smaller group_size, or "
                "joint='aligned'."
            )
        if rollouts:
            replay = Replay(lambda: env, config.max_turns)
            advantage_estimator.tasks_with_advantages(TurnTable(rollouts, replay))
    finally:
        env.close()
