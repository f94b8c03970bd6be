"""RewardModel: scores of episodes, trained on comparisons or outcomes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.pref.pairs import PreferencePair, pairs_of_episodes
from rllib_llm.algorithms.reward_model.finished_episodes import (
    FinishedEpisode,
    finished_pair,
)
from rllib_llm.algorithms.reward_model.reward_model_config import RewardModelConfig
from rllib_llm.algorithms.scorer.label_noise import exchange_labels
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.pair_statistics import PairEvaluation, evaluate_pairs
from rllib_llm.monitoring.live.algorithm_mixin import EVALUATING
from rllib_llm.offline.conversation_files import parse_pair
from rllib_llm.offline.row_file import RowFile, open_rows
from rllib_llm.offline.stored_episodes import next_stored

_PAIRS_AT_ONCE = 256  # held-out pairs whose rows are in memory at a time


class RewardModel(LLMAlgorithm):
    """A model that scores conversations (Ouyang et al. 2022, arXiv:2203.02155, step 2).

    Each iteration compares the returns of sampled episodes of a task, or reads
    ``episodes_per_iteration`` pairs from ``data.files``. The policy that samples stays
    as it is; only the scores are trained. :meth:`evaluate` gives their accuracy on
    held-out pairs.
    """

    config: RewardModelConfig

    @classmethod
    @override(LLMAlgorithm)
    def get_default_config(cls) -> RewardModelConfig:
        return RewardModelConfig()

    @override(LLMAlgorithm)
    def setup(self, config: RewardModelConfig) -> None:
        self._stored = config.stored_rows(parse_pair)
        super().setup(config)

    @override(LLMAlgorithm)
    def collect(self) -> list[Any]:
        """Return this iteration's pairs, or single episodes to predict success of."""
        units = self._sampled() if self._stored is None else self._read()
        if self.config.score_loss == "pairwise":
            self.metrics.log_value("num_pairs", len(units), reduce="sum")
        return self._with_noise(units) if self.config.label_noise else units

    def _sampled(self) -> list[Any]:
        config = self.config
        groups = config.episodes_per_iteration // config.group_size
        episodes = self.process_episodes(self.sample_groups(groups))
        return self._units(list(episodes))

    def _units(self, episodes: Sequence[Any]) -> list[Any]:
        """Return sampled episodes as the loss needs them: in pairs, or alone."""
        config, renderer = self.config, self.config.chat_renderer()
        finished = [FinishedEpisode(episode, renderer) for episode in episodes]
        if config.score_loss == "outcome":
            return finished
        return pairs_of_episodes(
            finished,
            margin=config.pair_margin,
            match=config.match,
            max_pairs_per_task=config.max_pairs_per_task,
        )

    def _read(self) -> list[Any]:
        assert self._stored is not None
        pairs = next_stored(self, self._stored, finished_pair)
        # Learning-rate schedules count turns, sampled or stored.
        self.metrics.log_value(
            (ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME),
            sum(map(len, pairs)),
            reduce="lifetime_sum",
            with_throughput=True,
        )
        return pairs

    def _with_noise(self, units: Sequence[Any]) -> list[Any]:
        """Return the units, a share of them with exchanged labels."""
        config = self.config
        keys: list[tuple[int, ...]]
        keys = [(self.iteration, place) for place in range(len(units))]
        if self._stored is not None:
            # A stored comparison stays wrong in every pass over the files.
            keys = [_ids_of(unit) for unit in units]
        return exchange_labels(units, config.label_noise, config.seed or 0, keys)

    # Evaluation -----------------------------------------------------------------------

    @override(Algorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Return accuracy and calibration on held-out pairs.

        Args:
            parallel_train_future: As in RLlib; not used.
        """
        with self.phase(EVALUATING):
            numbers = dataclasses.asdict(self.evaluate_on_pairs(None))
        numbers["pair_accuracy"] = numbers.pop("accuracy")["mean"]
        make_callback(
            "on_evaluate_end",
            callbacks_objects=self.callbacks,
            callbacks_functions=self.config.callbacks_on_evaluate_end,
            kwargs={
                "algorithm": self,
                "metrics_logger": self.metrics,
                "evaluation_metrics": numbers,
            },
        )
        return numbers

    def evaluate_on_pairs(
        self, files: str | Sequence[str] | None, num_tasks: int | None = None
    ) -> PairEvaluation:
        """Return accuracy and calibration on pairs that were not trained on.

        Args:
            files: Files with preference pairs; None: those of ``data.held_out``, or
                pairs of sampled episodes of held-out tasks.
            num_tasks: Number of these tasks; None: ``evaluation_duration``.

        Raises:
            ConfigError: There are no pairs.
        """
        config, rows = self.config, None
        if files is not None:
            rows = open_rows(files, parse_pair)
        elif config.data_held_out is not None:
            rows = config.held_out_rows()
        elif self._stored is not None:
            raise ConfigError(
                "The run trains on data.files and has no data.held_out. Give files "
                "with pairs that were not trained on."
            )
        units = self._held_out(num_tasks) if rows is None else self._stored_pairs(rows)
        scores = [self.score(part) for part in units]
        if not scores:
            raise ConfigError(
                "No two episodes of a held-out task differ in return, so there are no "
                "pairs. Raise evaluation_duration or group_size."
            )
        return evaluate_pairs(np.concatenate(scores))

    def scored_module(self) -> Any:
        """Return the local Learner's module, which is exported."""
        return self.learner_group._learner.module[DEFAULT_MODULE_ID].unwrapped()

    def score(self, units: Sequence[Any]) -> np.ndarray:
        """Return the scores of finished episodes [N], or of both sides of pairs [N, 2].

        Args:
            units: Finished episodes, or pairs of them.
        """
        score = functools.partial(_score, units=list(units))
        results = self.learner_group.foreach_learner(score)
        return next(iter(results.ignore_errors())).get()

    def _held_out(self, num_tasks: int | None) -> Iterator[list[PreferencePair]]:
        """Yield pairs of episodes of held-out tasks, by the policy that samples."""
        config = self.config
        source = config.build_task_source(in_evaluation=True)
        tasks = source.next_groups(num_tasks or int(config.evaluation_duration))
        rollouts = [
            dataclasses.replace(task, rollout=rollout)
            for task in tasks
            for rollout in range(config.group_size)
        ]
        episodes = self.play_extra_tasks(rollouts, explore=True)
        renderer = config.chat_renderer()
        pairs = pairs_of_episodes([FinishedEpisode(e, renderer) for e in episodes])
        if pairs:
            yield pairs

    def _stored_pairs(self, rows: RowFile) -> Iterator[list[PreferencePair]]:
        """Yield all pairs of files."""
        config, renderer = self.config, self.config.chat_renderer()
        for first in range(0, len(rows), _PAIRS_AT_ONCE):
            numbers = range(first, min(first + _PAIRS_AT_ONCE, len(rows)))
            yield [
                finished_pair(rows[number], renderer, config.system_prompt)
                for number in numbers
            ]


def _score(learner: Any, units: list[Any]) -> np.ndarray:
    return learner.score(units)


def _ids_of(pair: PreferencePair) -> tuple[int, ...]:
    sides = pair.agent_episodes.values()
    return tuple(i for side in sides for i in episode_data(side).ids)
