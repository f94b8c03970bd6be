"""Episodes of the environment's scripted expert, of given tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.data.episode_data import episode_data
from rllib_llm.offline.demonstrations import Demonstration, play_expert_with_mistakes
from rllib_llm.offline.parallel_episodes import play_all
from rllib_llm.offline.sft_before_rl import as_episodes

if TYPE_CHECKING:
    from rllib_llm.data.types import Task
    from rllib_llm.types import LLMConfig, PlayableEnv


def expert_episodes(config: LLMConfig, tasks: Sequence[Task]) -> list[Any]:
    """Return the expert's episode of every task, in an environment of one agent."""

    def play(env: PlayableEnv, number: int) -> list[Demonstration]:
        task = tasks[number]
        return play_expert_with_mistakes(env, task.seed, 0.0, task.options)

    played = play_all(
        config.make_text_env,
        range(len(tasks)),
        play,
        most_envs=config.most_envs_in_threads,
        max_retries=config.max_retries,
    )
    shown = as_episodes(
        [demo for (demo,) in played],
        config.chat_renderer(),
        config,
        config.role_prompts(),
    )
    for task, episode in zip(tasks, shown, strict=True):
        episode_data(episode).task = task
    return shown
