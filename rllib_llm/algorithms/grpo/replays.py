"""Whether games can be played again as the credit of a configuration needs it."""

from __future__ import annotations

from typing import Any

from rllib_llm.advantages.estimators.combine import AdvantageEstimators
from rllib_llm.advantages.estimators.magrpo_cross import MAX_GAMES
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.env_runner.replay import Replay, random_episodes
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.combine import Rewards


def try_replays(config: Any, advantage_estimator: AdvantageEstimators) -> None:
    """Let rollouts of random play meet, so that a game that cannot shows up early.

    Raises:
        ConfigError: With what stands against it.
    """
    names = ", ".join(
        chosen.component.name for chosen in advantage_estimator.estimators
    )
    if Rewards(config.rewards, config.reward_transforms).changes_anything:
        raise ConfigError(
            f"advantage_estimator ({names}) plays games again and reads what the "
            "environment pays, "
            "but rewards or reward_transforms change it. Leave them out, or use "
            "joint='aligned'."
        )
    others = sorted(set(config.module_ids) - set(config.llm_module_ids))
    if others:
        raise ConfigError(
            f"advantage_estimator ({names}) plays games again with sampled texts, "
            "but no language "
            f"model plays {', '.join(others)}. Use joint='aligned'."
        )
    env = config.make_text_env()
    try:
        agents = agents_of(env) or []
        if len(agents) < 2:
            raise ConfigError(
                f"advantage_estimator ({names}) lets what several agents said "
                "meet, but "
                f"env={config.env!r} has one agent. Use joint='aligned'."
            )
        plays = random_episodes(env)
        acting = len({t.agent for t in plays})
        if config.group_size**acting > MAX_GAMES:
            raise ConfigError(
                f"group_size={config.group_size} and {acting} agents make "
                f"{config.group_size**acting} combinations of each task; at most "
                f"{MAX_GAMES} games are played. Use a smaller group_size, or "
                "joint='aligned'."
            )
        if plays:
            replay = Replay(lambda: env, config.max_turns)
            advantage_estimator.tasks_with_advantages(TurnTable(plays, replay))
    finally:
        env.close()
