"""Pref: preference optimisation on sampled or stored episodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME

from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.pref.pairs import (
    CHOSEN,
    Compared,
    WithNeighbours,
    labelled_episodes,
    pairs_of_episodes,
    stored_labelled,
    stored_pair,
)
from rllib_llm.algorithms.pref.pref_config import PrefConfig
from rllib_llm.data.episode_data import episode_data, task_of
from rllib_llm.offline.demonstrations import Demonstration, play_expert_with_mistakes
from rllib_llm.offline.parallel_episodes import play_all
from rllib_llm.offline.sft_before_rl import as_episodes
from rllib_llm.offline.stored_episodes import next_stored

if TYPE_CHECKING:
    from rllib_llm.types import PlayableEnv


class Pref(LLMAlgorithm):
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
        episodes = list(self.process_episodes(self.sample_groups(groups)))
        if config.compares_labels:
            return labelled_episodes(episodes, config.desirable_return)
        if config.expert_episodes:
            episodes += self._of_expert(episodes)
        return pairs_of_episodes(
            episodes,
            margin=config.margin,
            match=config.match,
            max_pairs_per_task=config.max_pairs_per_task,
            after_fork=config.after_fork,
        )

    def _of_expert(self, episodes: Sequence[Any]) -> list[Any]:
        """Return the expert's episode of every task of these episodes."""
        config = self.config
        tasks = list({task_of(e).group_id: task_of(e) for e in episodes}.values())

        def play(env: PlayableEnv, number: int) -> list[Demonstration]:
            task = tasks[number]
            return play_expert_with_mistakes(env, task.seed, 0.0, task.options)

        played = play_all(
            config.make_text_env,
            range(len(tasks)),
            play,
            most_envs=config.most_envs_in_threads,
        )
        shown = as_episodes(
            [demo for (demo,) in played],
            config.chat_renderer(),
            config,
            config.role_prompts(),
        )
        for task, episode in zip(tasks, shown, strict=True):
            episode_data(episode).task = task
        return shown

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
