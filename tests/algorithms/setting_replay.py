"""Effects of the settings of replay and of files beside sampled episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from learner_helpers import fake_episode, gradients, make_config, moved
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from setting_pairs import conversations

from rllib_llm import GRPO, GRPOConfig
from rllib_llm.algorithms.driver.replay import ReplayBuffer
from rllib_llm.data import columns
from rllib_llm.data.episode_data import FILE, REPLAY, episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import parse_row


def replay_buffer(**replay: Any) -> ReplayBuffer:
    """Return an empty buffer."""
    config = make_config(GRPOConfig).replay(**{"episodes_per_iteration": 3, **replay})
    config.validate()
    return ReplayBuffer(config)


def remember(buffer: ReplayBuffer, iteration: int) -> None:
    """Add a group of four episodes with different returns."""
    rewards = [float((7 * iteration + i * i) % 4) for i in range(4)]
    episodes = [
        fake_episode(4 * iteration + i, reward=r, group=iteration)
        for i, r in enumerate(rewards)
    ]
    for episode, reward in zip(episodes, rewards, strict=True):
        data = episode_data(episode)
        data.advantage, data.success = reward - float(np.mean(rewards)), reward == 3
    sampled = SampledEpisodes(episodes)
    buffer.observe(sampled)
    buffer.add(sampled, iteration)


def drawn_by(buffer: ReplayBuffer, iteration: int) -> list[Any]:
    """Return rollouts and advantages of what is drawn."""
    episodes, _ = buffer.draw(iteration)
    found = [episode_data(e) for e in episodes]
    return [(d.task.rollout, round(d.advantage, 6)) for d in found if d.task]


def replayed(algo: str, env: Any = None, **sections: Any) -> list[Any]:
    """Return what is drawn in some iterations."""
    buffer = replay_buffer(**sections["replay"])
    seen = []
    for iteration in range(5):
        remember(buffer, iteration)
        seen.append(drawn_by(buffer, iteration + 1))
    return seen


def left_over(algo: str, env: Any = None, **sections: Any) -> list[Any]:
    """Return what is drawn after a filter has masked two of four episodes."""
    config = make_config(GRPOConfig)
    config.rollouts(filters=[{"name": "priority", "effect": "mask"}])
    config.replay(**{"episodes_per_iteration": 4, **sections["replay"]})
    config.validate()
    buffer = ReplayBuffer(config)
    episodes = [fake_episode(number, reward=float(number)) for number in range(4)]
    for number, episode in enumerate(episodes):
        episode_data(episode).advantage = number - 1.5
    sampled = SampledEpisodes(episodes)
    sampled.mask([0, 3])
    buffer.add(sampled, 0)
    return drawn_by(buffer, 1)


def within_bounds(algo: str, env: Any = None, **sections: Any) -> list[Any]:
    """Return what is drawn of four episodes whose perplexities are 1.5 to 4.5."""
    buffer = replay_buffer(**{"episodes_per_iteration": 4, **sections["replay"]})
    remember(buffer, 0)

    def text_logps(episodes: Any) -> list[np.ndarray]:
        rollouts = [episode_data(e).task.rollout for e in episodes]  # type: ignore[union-attr]
        return [np.full(3, -np.log(1.5 + rollout)) for rollout in rollouts]

    episodes, metrics = buffer.draw(1, text_logps)
    return [sorted(episode_data(e).task.rollout for e in episodes), metrics]  # type: ignore[union-attr]


def joining(algo: str, env: Any = None, **sections: Any) -> list[Any]:
    """Return the origins of the episodes of some updates."""
    buffer = replay_buffer(**sections["replay"])
    made = GRPO.__new__(GRPO)
    made.config, made.metrics = buffer.config, MetricsLogger()
    made._rows, made._buffer = None, buffer
    seen = []
    for iteration in range(6):
        made._iteration = iteration
        rewards = [0.0, 1.0]
        episodes = [fake_episode(i, reward=r) for i, r in enumerate(rewards)]
        for episode, reward in zip(episodes, rewards, strict=True):
            episode_data(episode).advantage = reward - 0.5
        joined = made.with_stored(SampledEpisodes(episodes))
        seen.append([episode_data(e).source for e in joined])
    return seen


def with_replayed(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the gradient of two sampled and two replayed episodes."""
    config = make_config(GRPOConfig)
    config.replay(**{"episodes_per_iteration": 2, **sections["replay"]})
    return gradient_with(config, REPLAY)


def with_written(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the gradient of two sampled episodes and two of files."""
    config = make_config(GRPOConfig)
    given = {"files": conversations(), "episodes_per_iteration": 2}
    return gradient_with(config.data(**given, **sections["data"]), FILE)


def mixed_rows(algo: str, env: Any = None, **sections: Any) -> list[int]:
    """Return the number of rows that join an update, or the refusal."""
    config = make_config(GRPOConfig).data(files=conversations(), **sections["data"])
    try:
        config.validate()
    except ConfigError:
        return []
    return [len(joined(config))]


def joined(config: GRPOConfig) -> list[Any]:
    """Return the rows of files that join the first update."""
    algo = GRPO.__new__(GRPO)
    algo.config, algo._rows = config, config.stored_rows(parse_row)
    algo.metrics = MetricsLogger()
    return algo.with_stored([])


def gradient_with(config: GRPOConfig, source: str) -> Any:
    """Return the gradient of two sampled episodes and two of another source."""
    learner = moved(config)
    episodes = [fake_episode(n) for n in range(4)]
    for n, episode in enumerate(episodes):
        data = episode_data(episode)
        data.advantage = (-1.0) ** n
        if n < 2:
            data.source = source
        for turn in episode.get_extra_model_outputs(columns.TURN):
            turn.action_logps = turn.action_logps - 5.0
    found = gradients(learner, episodes)
    return torch.cat([g.flatten() for g in found.values()]).numpy()
