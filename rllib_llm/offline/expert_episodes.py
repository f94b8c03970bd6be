"""Episodes of the environment's scripted expert, of given tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.data.episode_data import episode_data
from rllib_llm.env_runner.recorder import recorded
from rllib_llm.offline.demonstrations import Demonstration, play_expert_with_mistakes
from rllib_llm.offline.parallel_episodes import play_all
from rllib_llm.offline.sft_before_rl import as_episodes

if TYPE_CHECKING:
    from rllib_llm.data.types import Task
    from rllib_llm.types import LLMConfig, PlayableEnv


def expert_episodes(config: LLMConfig, tasks: Sequence[Task]) -> list[Any]:
    """Return the expert's episode of every task, in an environment of one agent."""
    return demonstrated_episodes(config, tasks, 0.0)


def demonstrated_episodes(
    config: LLMConfig, tasks: Sequence[Task], mistake_rate: float
) -> list[Any]:
    """Return the expert's episodes of tasks, one per agent, with their texts.

    Args:
        config: An algorithm's config with a prepared model.
        tasks: The tasks; texts before their messages are those of ``prompt_text``.
        mistake_rate: Share of random turns.
    """

    def play(env: PlayableEnv, number: int) -> list[Demonstration]:
        task = tasks[number]
        return play_expert_with_mistakes(env, task.seed, mistake_rate, task.options)

    played = play_all(
        config.make_text_env,
        range(len(tasks)),
        play,
        most_envs=config.most_envs_in_threads,
        max_retries=config.max_retries,
    )
    parts = [
        (task, demo)
        for task, demos in zip(tasks, played, strict=True)
        for demo in demos
    ]
    shown = as_episodes(
        [demo for _, demo in parts],
        config.chat_renderer(),
        config,
        config.role_prompts(),
        [task.prompt_text for task, _ in parts],
    )
    for (task, demo), episode in zip(parts, shown, strict=True):
        data = episode_data(episode)
        data.task, data.success = recorded(task), demo.success
    return shown
