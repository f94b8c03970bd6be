"""SFT on demonstrations of a scripted expert, with the package's own Learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.connectors.env_to_module import with_later_texts
from rllib_llm.connectors.requested_prompts import requested_prompt
from rllib_llm.connectors.tool_prompts import later, opening
from rllib_llm.data.added_texts import TextSource
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.model_calls import MODEL_REQUEST
from rllib_llm.data.types import Prompt
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.offline.demonstrations import (
    Demonstration,
    demonstrations,
)
from rllib_llm.offline.random_policy import store_random_result
from rllib_llm.offline.written_turns import (
    add_written_turn,
    next_prompt,
    started_episode,
)
from rllib_llm.pictures.contract import stored

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

Progress = Callable[[str, float], None]


def sft(config: LLMConfig, model: str, folder: Path, on_progress: Progress) -> None:
    """Fine-tune ``model`` on demonstrations and write the result into ``folder``.

    Args:
        config: The RL run's config; its ``sft_*`` settings apply.
        model: Checkpoint folder or hub id to start from.
        folder: Target folder of the fine-tuned model and tokenizer.
        on_progress: Called with the phase and its finished fraction.
    """
    seed = config.seed or 0
    demos = demonstrations(
        config.make_text_env,
        config.sft_demonstrations,
        seed=seed,
        mistake_rate=config.sft_mistake_rate,
        most_envs=config.most_envs_in_threads,
        max_retries=config.max_retries,
        on_progress=lambda done: on_progress("demonstrations", done),
    )
    roles = config.role_prompts()
    learner = _learner(config, model, len(demos))
    episodes = as_episodes(demos, learner.config.chat_renderer(), config, roles)
    size = config.sft_minibatch_size
    order = _epochs(len(episodes), config.sft_epochs, size, seed)
    for step, chosen in enumerate(order):
        # The learning-rate schedule counts optimiser steps, not environment steps.
        learner.update(
            training_data=LLMTrainingData(episodes=[episodes[i] for i in chosen]),
            timesteps={"num_env_steps_sampled_lifetime": step},
        )
        on_progress("SFT", (step + 1) / len(order))
    learner.module[DEFAULT_MODULE_ID].unwrapped().save_model(folder)
    store_random_result(config, folder, lambda done: on_progress("random play", done))


def as_episodes(
    demos: Sequence[Demonstration],
    renderer: ChatRenderer,
    config: LLMConfig,
    roles: Mapping[str, str],
    sources: Sequence[TextSource | None] = (),
) -> list[SingleAgentEpisode]:
    """Return demonstrations as episodes with Turn records.

    Args:
        demos: The demonstrations.
        renderer: Renders them.
        config: The run's config, with its system prompt.
        roles: System prompts by AgentID, where the config has none.
        sources: Source of the texts before the messages of each; (): none has any.
    """
    return [
        demonstration_episode(
            demo,
            renderer,
            config.system_prompt or roles.get(demo.agent_id or DEFAULT_AGENT_ID),
            source,
        )
        for demo, source in zip(demos, sources or [None] * len(demos), strict=True)
    ]


def _learner(config: LLMConfig, model: str, num_demos: int) -> Any:
    """Build the SFT Learner of an RL config's model."""
    from rllib_llm.algorithms.sft.sft_config import SFTConfig

    episodes = num_demos * config.sft_epochs
    steps = max(1, episodes // config.sft_minibatch_size)
    lr = config.sft_lr
    sft = (
        SFTConfig()
        .environment(config.env, env_config=config.env_config)
        .language_model(
            model=model,
            dtype=config.lm_dtype,
            model_kwargs=config.lm_model_kwargs,
            freeze=config.resolved_freeze(),
            gradient_checkpointing=config.gradient_checkpointing,
            history=config.history,
            chat_template_kwargs=config.chat_template_kwargs,
        )
        .training(
            lr=[[0, lr], [steps, 0.1 * lr]],
            micro_batch_tokens=config.micro_batch_tokens,
            packing=config.packing,
            grad_clip=1.0,
            observation_weight=config.sft_observation_weight,
        )
        .debugging(seed=config.seed)
        .learners(
            num_gpus_per_learner=config.num_gpus_per_learner,
            optimizer_offload=config.optimizer_offload,
        )
        .resources(torch_num_threads=config.torch_num_threads)
    )
    sft.resolved_model = model
    spaces = {DEFAULT_MODULE_ID: (UnicodeText(), UnicodeText())}
    learner = sft.build_learner(spaces=spaces)
    learner.build()
    return learner


def _epochs(count: int, epochs: int, size: int, seed: int) -> list[np.ndarray]:
    """Return the episode indices of every optimiser step."""
    rng = np.random.default_rng(seed)
    parts = max(1, round(count / size))
    return [
        part
        for _ in range(epochs)
        for part in np.array_split(rng.permutation(count), parts)
    ]


def demonstration_episode(
    demo: Demonstration,
    renderer: ChatRenderer,
    system_prompt: str | None = None,
    source: TextSource | None = None,
) -> SingleAgentEpisode:
    """Return a demonstration as an episode with Turn records, like a sampled one."""
    episode = started_episode(demo.observations[0])
    data = episode_data(episode)
    data.text_source = source
    last = len(demo.completions) - 1
    for i, completion in enumerate(demo.completions):
        add_written_turn(
            episode,
            _rendered(demo, i, episode, renderer, system_prompt),
            completion,
            renderer,
            observation=demo.observations[i + 1],
            reward=demo.rewards[i],
            is_last=i == last,
        )
    return episode


def _rendered(
    demo: Demonstration,
    index: int,
    episode: SingleAgentEpisode,
    renderer: ChatRenderer,
    system_prompt: str | None,
) -> Prompt:
    """Return the prompt of a demonstrated turn; write its messages into the data."""
    data, observation = episode_data(episode), demo.observations[index]
    info = stored(data.pictures, demo.info(index))
    if MODEL_REQUEST in info:
        request = info[MODEL_REQUEST]
        prompt = requested_prompt(data, request, renderer, system_prompt)
        assert prompt is not None, "A renderer returns a prompt."
        return prompt
    if index == 0:
        data.messages, data.tools = opening(
            data.first_message(observation),
            info,
            system=system_prompt,
            renderer=renderer,
        )
    else:
        messages = later(observation, info, data.tools)
        data.messages += with_later_texts(messages, data, episode)
    return next_prompt(data, renderer)
