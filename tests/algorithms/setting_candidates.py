"""Effects of the settings of candidates."""

from __future__ import annotations

from typing import Any

from learner_helpers import make_config
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from setting_looks import config_of
from setting_saved import SAVED, rows_saved
from team_helpers import Run

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.driver.candidates import ScoresCandidates
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.errors import ConfigError

BEST = {
    "candidates": 2,
    "candidate_scores": "logp",
    "save_episodes": SAVED.name,
    "save_as": "best_candidates",
}


class _Base:
    iteration = 0

    def setup(self, config: Any) -> None:
        self.config, self.metrics = config, MetricsLogger()

    def ask_about_candidates(self, replies: Any) -> set[int]:
        return set()


class _Driver(ScoresCandidates, _Base):
    pass


def candidate_scores(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the scores of all replies of some episodes, or why there are none."""
    try:
        config = config_of(algo, env, **sections)
    except ConfigError as error:
        return str(error)
    run = Run(config, learner=False)
    tasks = config.build_task_source().next_groups(2)
    episodes = SampledEpisodes(run.runner.sample(tasks=tasks))
    driver = _Driver()
    driver.setup(config)
    driver.score_candidates(episodes)
    return [episode_data(episode).candidate_scores for episode in episodes]


def saved_turns(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return whether the turns are trained in rows of sampled episodes."""
    from test_candidate_scores import scored

    # Not validated: what is saved does not depend on how many replies are sampled.
    config = make_config(LLMPPOConfig).rollouts(**sections["rollouts"])
    episodes = SampledEpisodes([scored([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0]])])
    rows = rows_saved(config, episodes)
    return [[turn["train"] for turn in row["agents"][0]["turns"]] for row in rows]
