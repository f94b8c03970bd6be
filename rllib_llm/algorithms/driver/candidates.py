"""Scores of candidates: replies that were sampled beside those that were played."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override

from rllib_llm.data.candidates import candidate_episodes
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.rewards.combine import Rewards
from rllib_llm.rllib_bases import RLlibAlgorithm


class ScoresCandidates(RLlibAlgorithm):
    """Mixin of algorithms that score several replies at each turn.

    Put it before the Algorithm class in the bases.
    """

    config: Any
    # Of AsksAssistants.
    ask_about_candidates: Any

    @override(Algorithm)
    def setup(self, config: Any) -> None:
        self._candidate_scores = Rewards(config.candidate_scores)
        super().setup(config)

    def score_candidates(self, episodes: SampledEpisodes) -> None:
        """Write the scores of all replies at a turn into the episodes' records.

        A turn gets none if the answer of an assistant about one of its replies is
        unreadable and that drops what it is about.
        """
        if self.config.candidates == 1:
            return
        places = [
            (episode, turn)
            for episode in episodes
            for turn in sorted(episode_data(episode).candidates)
        ]
        of_places = [candidate_episodes(episode, turn) for episode, turn in places]
        replies = SampledEpisodes(reply for place in of_places for reply in place)
        self.before_candidate_scores(replies)
        unreadable = self.ask_about_candidates(replies)
        self._candidate_scores(replies.trajectories, self.iteration)
        scores = [t.rewards[-1] for t in replies.trajectories]
        first, gains = 0, []
        for (episode, turn), of_place in zip(places, of_places, strict=True):
            numbers = range(first, first + len(of_place))
            first = numbers.stop
            if unreadable.isdisjoint(numbers):
                of_turn = [scores[number] for number in numbers]
                episode_data(episode).candidate_scores[turn] = of_turn
                gains.append(max(of_turn) - float(np.mean(of_turn)))
        key = ("candidates", "num_places")
        self.metrics.log_value(key, len(gains), reduce="sum")
        if gains:
            key = ("candidates", "best_gain_mean")
            self.metrics.log_value(key, float(np.mean(gains)), window=1)

    def before_candidate_scores(self, replies: SampledEpisodes) -> None:
        """Do nothing; subclasses may add what scores read."""
