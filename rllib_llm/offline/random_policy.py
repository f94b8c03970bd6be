"""Success of a random policy on held-out tasks, as a baseline for SFT."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rllib_llm.offline.demonstrations import play_expert_with_mistakes
from rllib_llm.offline.parallel_episodes import play_all

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig, PlayableEnv

_FILE = "random_play.json"  # in the folder of an SFT model
_MOST_EPISODES = 128
_CHANCE = 0.2  # one-sided level; lax, because the result is only a hint
_OTHER_ENV = ("env", "env_config", "environment")


@dataclasses.dataclass(frozen=True)
class RandomPolicyResult:
    """Success of random actions on held-out tasks.

    Attributes:
        successes: Number of solved episodes.
        episodes: Number of episodes.
    """

    successes: int
    episodes: int

    @property
    def success_rate(self) -> float:
        """Share of solved episodes."""
        return self.successes / self.episodes

    @classmethod
    def of_model(cls, config: LLMConfig) -> RandomPolicyResult | None:
        """Return the result that :func:`store_random_result` wrote for the model.

        None without SFT, if success is not defined, or if evaluation uses another
        environment or policies that were not fine-tuned.
        """
        changed = set(config.evaluation_config or {})
        if changed.intersection(_OTHER_ENV):
            return None
        if set(config.trained_module_ids) != set(config.module_ids):
            return None
        models = {
            config.get_config_for_module(m).resolved_model for m in config.module_ids
        }
        path = Path(str(models.pop())) / _FILE
        if models or not path.is_file():  # policies with different models
            return None
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def store_random_result(
    config: LLMConfig, folder: Path, on_progress: Callable[[float], None]
) -> None:
    """Play held-out tasks with random actions and write the result into ``folder``.

    Plays as many tasks as there are demonstrations, 128 at most. Writes nothing if the
    environment does not report success.
    """
    count = min(_MOST_EPISODES, config.sft_demonstrations)
    tasks = config.build_task_source(in_evaluation=True).fixed(count)

    def play(env: PlayableEnv, number: int) -> bool | None:
        task = tasks[number]
        return play_expert_with_mistakes(env, task.seed, 1.0, task.options)[0].success

    outcomes = play_all(
        config.make_text_env,
        range(count),
        play,
        most_envs=config.most_envs_in_threads,
        max_retries=config.max_retries,
        on_progress=on_progress,
    )
    successes = [bool(success) for success in outcomes if success is not None]
    if successes:
        result = RandomPolicyResult(sum(successes), len(successes))
        text = json.dumps(dataclasses.asdict(result))
        (folder / _FILE).write_text(text, encoding="utf-8")


def is_below(successes: int, episodes: int, chance: RandomPolicyResult) -> bool:
    """Return whether a success rate is below random play (Fisher's exact test)."""
    from scipy import stats

    table = [
        [successes, episodes - successes],
        [chance.successes, chance.episodes - chance.successes],
    ]
    return bool(stats.fisher_exact(table, alternative="less").pvalue < _CHANCE)
