"""Effects of Pref's settings: on pairs, and on the gradient."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from learner_helpers import fake_episode, gradients, make_config, make_learner, policy
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_llm import GRPO, GRPOConfig, PrefConfig, RewardModelConfig
from rllib_llm.algorithms.driver.mixed_pairs import MixesPairs
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.algorithms.pref.pref import Pref
from rllib_llm.algorithms.reward_model.finished_episodes import FinishedEpisode
from rllib_llm.algorithms.reward_model.reward_model import RewardModel
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.env_runner.task_groups import TaskSource


def pair_gradient(algo, env=None, **sections):
    """Return the gradient on five pairs, away from the reference."""
    learner = make_learner(make_config(PrefConfig, **sections["training"]))
    with torch.no_grad():
        for p in policy(learner).lm.parameters():
            noise = torch.Generator().manual_seed(p.numel())
            p += 0.02 * torch.randn(p.shape, generator=noise)
    sides = [fake_episode(i, turns=1 + i % 3) for i in range(10)]
    pairs = [PreferencePair(*sides[i : i + 2]) for i in range(0, 10, 2)]
    found = gradients(learner, pairs)
    return torch.cat([g.flatten() for g in found.values()]).numpy()


def matched(algo, env=None, **sections):
    """Return index, return and untrained turns of what is compared in two tasks."""
    # Not validated: the environment has one agent, the episodes below have two.
    config = make_config(PrefConfig).training(**sections["training"])
    driver = Pref.__new__(Pref)
    driver.config = config.rollouts(group_size=4, episodes_per_iteration=8)
    returns = [0.0, 1.0, 0.5, 1.0, 0.2, 0.1, 0.0, 0.6]
    # A task's episodes differ in their returns, and in their agents.
    episodes = [
        fake_episode(i // 4, reward=r, group=i // 4) for i, r in enumerate(returns)
    ]
    for number, episode in enumerate(episodes):
        episode.agent_id = ("ann_0", "ben_0")[number % 2]
    driver.sample_groups = lambda count: episodes
    driver.process_episodes = SampledEpisodes
    return [
        (data.agent_index, sum(side.get_rewards()), sorted(data.masked_turns))
        for unit in driver._sampled()
        for side in unit.agent_episodes.values()
        for data in [episode_data(side)]
    ]


def judged_pairs(algo, env=None, **sections):
    """Return the turns that are compared, with a judge who disagrees with returns."""
    settings = {"match": "step", **sections["training"]}
    config = make_config(PrefConfig).training(**settings)
    config.rollouts(group_size=2, episodes_per_iteration=2)
    driver = Pref.__new__(Pref)
    driver.config = config
    episodes = [
        fake_episode(0, turns=1, reward=1.0),
        fake_episode(1, turns=1, reward=0),
    ]
    for number, episode in enumerate(episodes):
        episode.set_actions(new_data=[f"reply {number}"])
    sampled = SampledEpisodes(episodes)
    for number, trajectory in enumerate(sampled.trajectories):
        trajectory.answers["judge"] = [float(number)]
    driver.sample_groups = lambda count: sampled
    driver.process_episodes = lambda given: given
    return [
        sum(side.get_rewards())
        for unit in driver._sampled()
        for side in unit.agent_episodes.values()
    ]


class Probed:
    """Learners that find a given influence of each pair, and what they were asked."""

    def __init__(self, *found):
        self.found, self.asked = list(found), []

    def __len__(self):
        return 0

    def foreach_shard(self, method, shards, **kwargs):
        (shard,) = shards
        self.asked.append((method, *shard, kwargs))
        return [self.found[: len(shard[0])]]


def influence_driver(config, sampled, learners, played=()):
    """Return Pref's driver whose sampling gives these episodes."""
    driver = Pref.__new__(Pref)
    driver.config, driver.learner_group = config, learners
    driver.metrics = Metrics()
    driver.sample_groups = lambda count: sampled
    driver.process_episodes = lambda given: given
    driver._task_source = TaskSource(0, config.group_size)
    driver._driver_components = DriverComponents(config)

    def play(tasks, explore):
        assert explore
        driver.asked_tasks = tasks
        for episode, task in zip(played, tasks, strict=False):
            episode_data(episode).task = task
        return played

    driver.play_extra_tasks = play
    return driver


class Metrics(dict):
    """The last value of each metric."""

    def log_value(self, key, value, **kwargs):
        self[key] = value


def influenced(algo, env=None, **sections):
    """Return the returns of the pairs that are kept, of three tasks."""
    settings = {"match": "step", **sections["training"]}
    config = make_config(PrefConfig).training(**settings)
    config.rollouts(group_size=2, episodes_per_iteration=6)
    episodes = [
        fake_episode(i, turns=1, reward=r, group=i // 2)
        for i, r in enumerate((1.0, 0.0, 0.8, 0.0, 0.6, 0.0))
    ]
    for number, episode in enumerate(episodes):
        episode.set_actions(new_data=[f"reply {number}"])
    learners = Probed(-3.0, 1.0, 2.0)
    driver = influence_driver(config, SampledEpisodes(episodes), learners)
    return [
        sum(unit.agent_episodes["chosen"].get_rewards()) for unit in driver._sampled()
    ]


def score_gradient(algo, env=None, **sections):
    """Return the gradient of scores on five pairs, or on their ten episodes."""
    config = make_config(RewardModelConfig, **sections["training"])
    learner, driver = make_learner(config), reward_driver(config)
    with torch.no_grad():
        policy(learner).value_head.out.weight += 0.1
    sides = [fake_episode(i, turns=1 + i % 3) for i in range(10)]
    finished = [
        FinishedEpisode(side, config.chat_renderer(), i % 2 == 0)
        for i, side in enumerate(sides)
    ]
    units = [PreferencePair(*finished[i : i + 2]) for i in range(0, 10, 2)]
    if config.score_loss == "outcome":
        units = finished
    found = gradients(learner, driver._with_noise(units))
    return torch.cat([g.flatten() for g in found.values()]).numpy()


def compared(algo, env=None, **sections):
    """Return the returns of the pairs of a reward model."""
    config = make_config(RewardModelConfig, **sections["training"])
    returns = [0.0, 1.0, 0.5, 1.0, 0.2, 0.1, 0.0, 0.6]
    episodes = [fake_episode(i, reward=r, group=i // 4) for i, r in enumerate(returns)]
    return [
        [sum(side.get_rewards()) for side in pair.agent_episodes.values()]
        for pair in reward_driver(config)._units(episodes)
    ]


def held_out(algo, env=None, **sections):
    """Return the number of held-out rows."""
    rows = make_config(RewardModelConfig).data(**sections["data"]).held_out_rows()
    return 0 if rows is None else len(rows)


def reward_driver(config):
    driver = RewardModel.__new__(RewardModel)
    driver.config, driver._stored, driver._iteration = config, None, 0
    return driver


def comparisons() -> str:
    """Return the path of a file with one pair, kept until the tests end."""
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    path = Path(_FOLDER.name) / "pairs.jsonl"
    path.write_text(json.dumps(row))
    return str(path)


def conversations() -> str:
    """Return the path of a file with one conversation, kept until the tests end."""
    reply = {"role": "assistant", "content": "from a file"}
    row = {"messages": [{"role": "user", "content": "a"}, reply]}
    path = Path(_FOLDER.name) / "rows.jsonl"
    path.write_text(json.dumps(row))
    return str(path)


_FOLDER = tempfile.TemporaryDirectory()


def gradient_with_pairs(algo, env=None, **sections):
    """Return GRPO's gradient on six episodes and the pairs that are made of them."""
    config = make_config(GRPOConfig).preferences(
        **{"loss": "dpo", **sections["preferences"]}
    )
    driver = GRPO.__new__(GRPO)
    driver.config, driver.metrics = config, MetricsLogger()
    returns = [0.0, 1.0, 0.5, 0.6, 0.2, 0.9]
    episodes = [fake_episode(i, reward=r, turns=2) for i, r in enumerate(returns)]
    for episode, reward in zip(episodes, returns, strict=True):
        episode_data(episode).advantage = reward - 0.5
    learner = make_learner(config)
    with torch.no_grad():
        for p in policy(learner).lm.parameters():
            noise = torch.Generator().manual_seed(p.numel())
            p += 0.02 * torch.randn(p.shape, generator=noise)
    units = MixesPairs.with_stored(driver, SampledEpisodes(episodes))
    found = gradients(learner, units)
    return torch.cat([g.flatten() for g in found.values()]).numpy()
