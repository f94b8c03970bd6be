"""Success of random actions on held-out tasks, to hold an imitation against."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy import stats

from rllib_llm.offline.demonstrations import play_expert_with_mistakes
from rllib_llm.offline.parallel_episodes import play_all

_FILE = "random_play.json"  # in the folder of a warm-started model
_MOST_EPISODES = 128
_CHANCE = 0.2  # one-sided level; a hint may err more often than an alarm
_OTHER_ENV = ("env", "env_config", "environment")


@dataclasses.dataclass(frozen=True)
class RandomPolicyResult:
    """What random actions reach on held-out tasks.

    Attributes:
        successes: Solved episodes.
        episodes: All episodes.
    """

    successes: int
    episodes: int

    @property
    def success_rate(self) -> float:
        """Share of solved episodes."""
        return self.successes / self.episodes

    @classmethod
    def of_model(cls, config: Any) -> RandomPolicyResult | None:
        """Return what :func:`store_random_result` left beside a config's model.

        None where there was no warm start, success is not defined, or evaluation is
        on another environment or with policies that were not imitated.
        """
        changed = set(config.evaluation_config or {})
        if changed.intersection(_OTHER_ENV):
            return None
        if set(config.trained_module_ids) != set(config.module_ids):
            return None
        found = {
            config.get_config_for_module(m).resolved_model for m in config.module_ids
        }
        path = Path(str(found.pop())) / _FILE
        if found or not path.is_file():  # policies of several models
            return None
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def store_random_result(
    config: Any, folder: Path, on_progress: Callable[[float], None]
) -> None:
    """Play held-out tasks with random actions and write the result into ``folder``.

    As many as there are demonstrations, 128 at most. Nothing is written where the
    environment does not say what success is.
    """
    count = min(_MOST_EPISODES, config.sft_demonstrations)
    tasks = config.build_task_source(in_evaluation=True).fixed(count)

    def play(env: Any, seed: int) -> bool | None:
        return play_expert_with_mistakes(env, seed, 1.0, split="test")[0].success

    outcomes = play_all(
        config.make_text_env,
        [task.seed for task in tasks],
        play,
        most_envs=config.most_envs_in_threads,
        on_progress=on_progress,
    )
    known = [bool(success) for success in outcomes if success is not None]
    if known:
        found = RandomPolicyResult(sum(known), len(known))
        text = json.dumps(dataclasses.asdict(found))
        (folder / _FILE).write_text(text, encoding="utf-8")


def is_below(successes: int, episodes: int, chance: RandomPolicyResult) -> bool:
    """Whether a success rate lies below that of random play (Fisher's exact test)."""
    table = [
        [successes, episodes - successes],
        [chance.successes, chance.episodes - chance.successes],
    ]
    return bool(stats.fisher_exact(table, alternative="less").pvalue < _CHANCE)
