"""Pref: preference optimisation on sampled or stored episodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.config.check_candidates import MATCH
from rllib_llm.algorithms.pref.influence_probe import pairs_by_influence
from rllib_llm.algorithms.pref.pairs import (
    CHOSEN,
    Compared,
    candidate_pairs_of_episodes,
    labelled_episodes,
    pairs_of_episodes,
    step_pairs_of_episodes,
)
from rllib_llm.algorithms.pref.pref_config import PrefConfig
from rllib_llm.algorithms.pref.stored_pairs import (
    WithNeighbours,
    stored_labelled,
    stored_pair,
)
from rllib_llm.algorithms.scorer.trains_scorer import TrainsScorer
from rllib_llm.data.episode_data import episode_data, task_of
from rllib_llm.offline.expert_episodes import expert_episodes
from rllib_llm.offline.stored_episodes import next_stored


class Pref(TrainsScorer, LLMAlgorithm):
    """DPO and related losses (Rafailov et al. 2023, arXiv:2305.18290).

    Each iteration samples groups with the current policy and compares the returns of a
    task's episodes, or reads ``episodes_per_iteration`` rows from ``data.files``. KTO
    compares no pairs: it labels each episode by its return, or reads the labels.
    """

    config: PrefConfig

    @classmethod
    @override(LLMAlgorithm)
    def get_default_config(cls) -> PrefConfig:
        return PrefConfig()

    @override(LLMAlgorithm)
    def setup(self, config: PrefConfig) -> None:
        self._stored = config.stored_rows(config.row_parser)
        super().setup(config)

    @override(LLMAlgorithm)
    def collect(self) -> Sequence[Compared]:
        """Return what this iteration compares; ``minibatch_size`` counts it."""
        units = self._sampled() if self._stored is None else self._read()
        counts = {"num_pairs": len(units)}
        if self.config.compares_labels:
            labels = [episode_data(u.agent_episodes["episode"]) for u in units]
            desirable = sum(label.agent_index == CHOSEN for label in labels)
            counts = {
                "num_desirable": desirable,
                "num_undesirable": len(units) - desirable,
            }
        for key, value in counts.items():
            self.metrics.log_value(key, value, reduce="sum")
        return units

    def _sampled(self) -> Sequence[Compared]:
        config = self.config
        groups = config.episodes_per_iteration // config.group_size
        sampled = self.process_episodes(self.sample_groups(groups))
        if config.compared_agent is not None:
            sampled = sampled.of_agent(config.compared_agent)
        episodes = list(sampled)
        if config.compares_labels:
            return labelled_episodes(episodes, config.desirable_return)
        if config.expert_episodes:
            tasks = {task_of(e).group_id: task_of(e) for e in episodes}
            episodes += expert_episodes(config, list(tasks.values()))
        settings: dict[str, Any] = {
            "margin": config.margin,
            "max_pairs_per_task": config.max_pairs_per_task,
        }
        if config.match == "step":
            judge: dict[str, Any] = {
                "judge": config.step_judge,
                "judge_weight": config.judge_weight,
            }
            if config.influence is not None:
                return pairs_by_influence(self, sampled, **settings, **judge)
            return step_pairs_of_episodes(sampled, **settings, **judge)
        if config.match == MATCH:
            return candidate_pairs_of_episodes(episodes, **settings)
        return pairs_of_episodes(
            episodes, match=config.match, after_fork=config.after_fork, **settings
        )

    def _read(self) -> Sequence[Compared]:
        assert self._stored is not None
        config = self.config
        if config.compares_labels:
            units = next_stored(
                self,
                WithNeighbours(self._stored),
                functools.partial(
                    stored_labelled, max_tokens=config.resolved_context_tokens()
                ),
            )
        else:
            as_pair = functools.partial(stored_pair, after_fork=config.after_fork)
            units = next_stored(self, self._stored, as_pair)
        # Learning-rate schedules count turns, sampled or stored.
        self.metrics.log_value(
            (ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME),
            sum(map(len, units)),
            reduce="lifetime_sum",
            with_throughput=True,
        )
        return units
