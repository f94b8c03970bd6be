"""Scorer on the driver: scores before the rewards, its update after the policy's."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import LEARNER_RESULTS

from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.algorithms.pref.pairs import pairs_of_episodes
from rllib_llm.algorithms.scorer.check_scorer import reads_candidates
from rllib_llm.algorithms.scorer.hidden_answers import hidden_tokens
from rllib_llm.algorithms.scorer.label_noise import exchange_labels
from rllib_llm.algorithms.scorer.process_labels import process_labels
from rllib_llm.algorithms.scorer.scorer_settings import PROCESS, VTRACE
from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.data.episode_data import REPLAY, episode_data, task_of
from rllib_llm.modules.scorer import SCORER_MODULE
from rllib_llm.offline.expert_episodes import expert_episodes
from rllib_llm.rllib_bases import RLlibAlgorithm

if TYPE_CHECKING:
    from rllib_llm.data.sampled_episodes import SampledEpisodes


class TrainsScorer(RLlibAlgorithm):
    """Mixin of algorithms that train a scorer beside the policy.

    Put it before the Algorithm class in the bases.
    """

    config: Any  # with ScorerSettings
    learner_group: Any  # LLMLearnerGroup

    @override(Algorithm)
    def setup(self, config: Any) -> None:
        self._to_learn: list[WholeEpisode] = []
        super().setup(config)

    @property
    def policy_waits(self) -> bool:
        """True while only the scorer is trained."""
        return self.iteration < self.config.scorer_warmup_iters

    @override(Algorithm)
    def training_step(self) -> None:
        super().training_step()  # type: ignore[misc]
        if self.config.uses_scorer:
            self._update_scorer()

    def before_rewards(self, episodes: SampledEpisodes) -> None:
        """Score sampled episodes; rewards and advantage estimators read the scores."""
        super().before_rewards(episodes)  # type: ignore[misc]
        if self.config.action_labels is not None:
            self._to_learn += self._whole(episodes)
        elif self.config.uses_scorer and not self.config.is_turn_critic:
            self._score(episodes)

    def process_episodes(self, episodes: SampledEpisodes) -> SampledEpisodes:
        """Score turns by a turn critic, which learns from the policy's rewards."""
        if self.config.is_turn_critic:
            self._score(episodes)
        processed: SampledEpisodes = super().process_episodes(episodes)  # type: ignore[misc]
        return processed

    def with_stored(self, episodes: SampledEpisodes) -> list[Any]:
        """Return the episodes to train on; a turn critic learns from replayed ones."""
        joined: list[Any] = super().with_stored(episodes)  # type: ignore[misc]
        if self.config.is_turn_critic:
            replayed = [e for e in joined if episode_data(e).source == REPLAY]
            self._to_learn += self._whole(replayed)
            if self.config.scorer_loss == VTRACE and replayed:
                self._judge_anew(replayed)
        return joined

    def _judge_anew(self, episodes: Sequence[Any]) -> None:
        """Give replayed turns the critic's advantages under the current policy."""
        scores = self.score_turns(self._whole(episodes))
        for episode, of_turns in zip(episodes, scores, strict=True):
            episode_data(episode).advantage = np.asarray(of_turns)

    def before_candidate_scores(self, replies: SampledEpisodes) -> None:
        """Score the replies at a turn, if their scores read the scorer."""
        super().before_candidate_scores(replies)  # type: ignore[misc]
        if not reads_candidates(self.config):
            return
        for trajectory, scores in zip(
            replies.trajectories, self.score_turns(self._whole(replies)), strict=True
        ):
            trajectory.scores = scores

    def _score(self, episodes: SampledEpisodes) -> None:
        whole = self._with_labels(episodes)
        for trajectory, scores in zip(
            episodes.trajectories, self.score_turns(whole), strict=True
        ):
            trajectory.scores = scores
        self._log_scores(episodes)
        self._to_learn += whole

    def _with_labels(self, episodes: SampledEpisodes) -> list[WholeEpisode]:
        """Return whole episodes with what the scorer learns of their turns."""
        if self.config.scorer_loss != PROCESS:
            return self._whole(episodes)
        table = episodes.table()
        labels = table.split(process_labels(table, self.config.scorer_labels))
        return [
            self._as_scored(episode, rewards=of_turns)
            for episode, of_turns in zip(episodes, labels, strict=True)
        ]

    def _whole(self, episodes: Iterable[Any]) -> list[WholeEpisode]:
        return [self._as_scored(episode) for episode in episodes]

    def _as_scored(self, episode: Any, **given: Any) -> WholeEpisode:
        """Return an episode as the scorer reads it."""
        if self.config.scorer_privileged:
            given["prefix"] = hidden_tokens(episode, self.config.chat_renderer())
        return WholeEpisode(episode, module_id=SCORER_MODULE, **given)

    def score_turns(self, episodes: Sequence[WholeEpisode]) -> list[list[float]]:
        """Return the scores of the turns of each episode. [H] each

        They sum to the score of the conversation if that is what the loss reads.
        """
        scores = self.learner_group.map_units("score_turns", episodes)
        if self.config.reads_increments:
            scores = [np.diff(s, prepend=0.0).tolist() for s in scores]
        return scores

    def _log_scores(self, episodes: SampledEpisodes) -> None:
        table = episodes.table()
        scores = table.sum_turns(table.scores)
        for name, value in (("score_mean_solved", 1.0), ("score_mean_failed", 0.0)):
            chosen = scores[table.success == value]
            if len(chosen):
                self.metrics.log_value(("scorer", name), float(chosen.mean()), window=1)

    # Update ---------------------------------------------------------------------------

    def _update_scorer(self) -> None:
        config = self.config
        episodes, self._to_learn = self._to_learn, []
        # RLlib reports what was logged once as NaN in iterations without an update.
        self.metrics.delete(LEARNER_RESULTS, SCORER_MODULE, key_error=False)
        if config.scorer_iters is not None and self.iteration >= config.scorer_iters:
            return
        units = self._units(episodes)
        self.metrics.log_value(("scorer", "num_units"), len(units), reduce="sum")
        if not units:
            return  # e.g. all returns of every task are equal
        results = self.learner_group.foreach_shard(
            "update_scorer",
            self._shards(units),
            iteration=self.iteration,
            prior_logit=self._prior_logit(units),
        )
        # Means over all Learners, which each of them returns.
        for name, value in results[0].items():
            key = (LEARNER_RESULTS, SCORER_MODULE, name)
            self.metrics.log_value(key, value, window=1)

    def _units(self, episodes: Sequence[WholeEpisode]) -> list[Any]:
        """Return what the loss reads: pairs, episodes, or own and expert's episodes."""
        config, units = self.config, list[Any](episodes)
        if config.scorer_loss == "pairwise":
            units = pairs_of_episodes(
                episodes,
                margin=config.scorer_pair_margin,
                match=config.scorer_match,
                max_pairs_per_task=config.scorer_max_pairs_per_task,
            )
        elif config.scorer_loss == "expert":
            units = self._beside_expert(episodes)
        if not config.scorer_label_noise:
            return units
        keys = ((self.iteration, place) for place in range(len(units)))
        return exchange_labels(units, config.scorer_label_noise, config.seed or 0, keys)

    def _beside_expert(self, episodes: Sequence[WholeEpisode]) -> list[Any]:
        """Return own episodes, labelled 0, and the expert's of their tasks, 1."""
        tasks = list({task_of(e).group_id: task_of(e) for e in episodes}.values())
        for episode in episodes:
            episode_data(episode).success = False  # its own copy
        as_expert = functools.partial(
            WholeEpisode, module_id=SCORER_MODULE, success=True
        )
        return [*episodes, *map(as_expert, expert_episodes(self.config, tasks))]

    def _prior_logit(self, units: Sequence[Any]) -> float:
        """Return log(expert's turns / own turns), for the loss of a discriminator.

        Without it the scores learn that one expert faces a whole group of rollouts: all
        become negative, which rewards a policy that ends its episodes early.
        """
        if self.config.scorer_loss != "expert":
            return 0.0
        turns = {True: 0, False: 0}
        for unit in units:
            turns[bool(episode_data(unit).success)] += len(unit)
        return float(np.log(turns[True] / turns[False]))

    def _shards(self, units: Sequence[Any]) -> list[list[Any]]:
        count = max(1, len(self.learner_group))
        if len(units) < count:
            # A Learner without units joins the sums of the others.
            return [list(units[rank::count]) for rank in range(count)]
        shards = LLMTrainingData(episodes=list(units)).shard(count)
        return [part.episodes for part, _ in shards]
