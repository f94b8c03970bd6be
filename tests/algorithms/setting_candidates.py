"""Effects of the settings of candidates."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
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


class _Driver(ScoresCandidates, SavesEpisodes, _Base):
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
    driver = _Driver()
    driver.logdir = None
    driver.setup(config)
    driver.save_episodes(SampledEpisodes([scored([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0]])]))
    (file,) = Path(SAVED.name).glob("*000001.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    return [[turn["train"] for turn in row["agents"][0]["turns"]] for row in rows]


def spliced(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the replies of a correction."""
    from component_helpers import trajectory

    config = make_config(LLMPPOConfig).rollouts(**sections["rollouts"])
    config.validate()
    driver = _Driver()
    driver.logdir = None
    driver.setup(config)
    members = [
        trajectory(
            rollout=number,
            rewards=[0.0, float(solved)],
            completions=[reply, reply],
            messages=[
                {"role": role, "content": reply} for role in ("user", "assistant") * 2
            ],
        )
        for number, (reply, solved) in enumerate((("a", True), ("b", False)))
    ]
    driver.save_episodes(SimpleNamespace(trajectories=members))
    (file,) = Path(SAVED.name).glob("*000001.jsonl")
    row = json.loads(file.read_text())
    file.unlink()
    return [m["content"] for m in row["messages"] if m["role"] == "assistant"]
