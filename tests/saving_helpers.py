"""A driver that saves episodes, without an algorithm."""

from __future__ import annotations

from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_llm.algorithms.driver.saved_episodes import SavesEpisodes


class _Base:
    iteration = 0

    def setup(self, config):
        self.config, self.metrics, self.logdir = config, MetricsLogger(), None


class Driver(SavesEpisodes, _Base):
    """Saves what it is given."""
