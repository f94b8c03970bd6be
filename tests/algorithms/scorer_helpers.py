"""Learners with a scorer, and drivers of one without sampling."""

from __future__ import annotations

import torch
from learner_helpers import fake_episode, make_config
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_llm import GRPO, GRPOConfig
from rllib_llm.algorithms.driver.learner_group import LLMLearnerGroup
from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.algorithms.pref.pairs import pairs_of_episodes
from rllib_llm.algorithms.scorer.scorer_settings import TURN_CRITICS
from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.modules.scorer import SCORER_MODULE

READ = {"rewards": [{"name": "environment", "weight": 0.0}, "scorer"]}
TURN_CRITIC = {
    "advantage_estimator": "turn_critic",
    "drop_zero_variance_groups": False,
}
LOG_RATIO = {"scores": "log_ratio", "pool": "mean", "beta": 0.5}


def scorer_config(config_class=GRPOConfig, training=None, **scorer):
    given = {"loss": "pairwise", **scorer}
    config = make_config(config_class, **(training or {}))
    if given["loss"] in TURN_CRITICS:
        return config.training(**TURN_CRITIC).scorer(**given)
    return config.rollouts(group_size=4, **READ).scorer(**given)


def module_of(learner):
    return learner.module[SCORER_MODULE].unwrapped()


def away_from_zero(learner):
    """Change the scorer, so that its scores are not 0."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module_of(learner).parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter += 0.05 * noise


def whole_episodes(count=8):
    """Episodes of two tasks with other lengths, returns and successes."""
    rewards = [float((3 * i) % 5) for i in range(count)]
    return [
        WholeEpisode(
            fake_episode(i, turns=1 + i % 3, reward=rewards[i], group=i // 4),
            SCORER_MODULE,
            success=i % 2 == 0,
        )
        for i in range(count)
    ]


def units_of(loss, episodes=None):
    """Return what a loss reads of episodes."""
    episodes = whole_episodes() if episodes is None else episodes
    return pairs_of_episodes(episodes) if loss == "pairwise" else episodes


def scorer_gradients(learner, units, **kwargs):
    """Return the gradient of one scorer update, without taking the step."""
    taken = {}
    names = {p: n for n, p in module_of(learner).named_parameters()}

    def keep(grads):
        for parameter, grad in grads.items():
            assert parameter in names, "Another module has a gradient."
            taken.setdefault(names[parameter], torch.zeros_like(grad)).add_(grad)

    learner.apply_gradients = keep
    learner.config.grad_clip = None
    learner.update_scorer(units, 0, **kwargs)
    return taken


def driver_of(config, learner=None):
    """Return a GRPO that has a Learner only, or none."""
    algo = GRPO.__new__(GRPO)
    algo.config, algo._iteration, algo.metrics = config, 0, MetricsLogger()
    algo._to_learn = []
    algo._driver_components = DriverComponents(config)
    algo.learner_group = Alone(learner)
    return algo


class Alone:
    """A LearnerGroup of one local Learner."""

    map_units = LLMLearnerGroup.map_units

    def __init__(self, learner):
        self._learner = learner

    def __len__(self):
        return 0

    def foreach_shard(self, method, shards, **kwargs):
        (shard,) = shards
        return [getattr(self._learner, method)(shard=shard, **kwargs)]
