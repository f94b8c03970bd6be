"""Pairs of an iteration's episodes that join its updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rllib_llm.algorithms.pref.pairs import PreferencePair, pairs_of_episodes
from rllib_llm.data.episode_data import PAIR, episode_data
from rllib_llm.data.types import StopPolicy
from rllib_llm.rllib_bases import RLlibAlgorithm

if TYPE_CHECKING:
    from rllib_llm.data.sampled_episodes import SampledEpisodes


class MixesPairs(RLlibAlgorithm):
    """Mixin of algorithms whose updates pairs of their own episodes join.

    Put it before the Algorithm class in the bases.
    """

    def with_stored(self, episodes: SampledEpisodes) -> list[Any]:
        """Return the episodes to train on, with the pairs of sampled ones."""
        joined: list[Any] = super().with_stored(episodes)  # type: ignore[misc]
        # A mixin: the Algorithm and the settings come with the other bases.
        algo: Any = self
        config = algo.config
        if not config.mixes_pairs:
            return joined
        pairs = pairs_of_episodes(
            [e for e in episodes if episode_data(e).stop_policy is not StopPolicy.MASK],
            match=config.preference_match,
            margin=config.preference_margin,
            max_pairs_per_task=config.preference_max_pairs_per_task,
        )
        for pair in pairs:
            _mark(pair)
        algo.metrics.log_value("num_pairs", len(pairs), reduce="sum")
        return [*joined, *pairs]


def _mark(pair: PreferencePair) -> None:
    """Set the origin of a pair's rows; those of the episodes themselves stay."""
    for part in (pair, *pair.agent_episodes.values()):
        episode_data(part).source = PAIR
