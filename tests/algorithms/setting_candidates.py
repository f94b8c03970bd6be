"""Effects of the settings of candidates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from learner_helpers import make_config
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from setting_looks import config_of
from setting_saved import SAVED
from team_helpers import Run

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.driver.candidates import ScoresCandidates
from rllib_llm.algorithms.driver.saved_episodes import SavesEpisodes
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes

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


class _Driver(ScoresCandidates, SavesEpisodes, _Base):
    pass


def candidate_scores(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the scores of all replies of some episodes."""
    config = config_of(algo, env, **sections)
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

    given = {**BEST, **sections["rollouts"]}
    if given["save_as"] == "episodes":
        given = sections["rollouts"]
    config = make_config(LLMPPOConfig).rollouts(**given)
    config.validate()
    driver = _Driver()
    driver.logdir = None
    driver.setup(config)
    driver.save_episodes(SampledEpisodes([scored([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0]])]))
    (file,) = Path(SAVED.name).glob("*000001.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    return [[turn["train"] for turn in row["agents"][0]["turns"]] for row in rows]
