"""Effect of the setting of assistants."""

from __future__ import annotations

from typing import Any

from learner_helpers import fake_episode, make_config
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.assistants import AsksAssistants
from rllib_llm.data.sampled_episodes import SampledEpisodes

ALWAYS_RIGHT = {
    "script": "outcome",
    "privileged": True,
    "parse": {"words": {"yes": 1.0, "no": 0.0}},
}


class _Base:
    def setup(self, config: Any) -> None:
        self.config, self.metrics = config, MetricsLogger()


class _Driver(AsksAssistants, _Base):
    pass


def answered(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the values of all answers about two episodes, by assistant."""
    config = make_config(GRPOConfig).rollouts(**sections["rollouts"])
    config.rollouts(rewards=[{"name": "asked", "of": n} for n in config.assistants])
    config.validate()
    driver = _Driver()
    driver.setup(config)
    episodes = SampledEpisodes([fake_episode(0), fake_episode(1, reward=0.0)])
    driver.ask_assistants(episodes)
    return [trajectory.answers for trajectory in episodes.trajectories]
