"""Values of places for the tree search, by what a run has trained beside its policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm.algorithms.scorer.whole_episode import WholeEpisode
from rllib_llm.data.candidates import candidate_episodes
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.tree_search import ROLLOUT, MctsSettings, PlaceValues
from rllib_llm.modules.scorer import SCORER_MODULE

if TYPE_CHECKING:
    from rllib_llm.algorithms.scorer.trains_scorer import TrainsScorer
    from rllib_llm.types import LLMAlgorithm

OUTCOME, RETURN = "outcome", "return"


def place_values(algo: LLMAlgorithm, settings: MctsSettings) -> PlaceValues | None:
    """Return the values that ``settings.evaluate`` names; None for "rollout".

    Raises:
        ConfigError: If the run has trained nothing that gives them.
    """
    if settings.evaluate == ROLLOUT:
        return None
    if settings.evaluate == "critic":
        return _by_critic(algo)
    return _by_scorer(algo)


def _by_critic(algo: LLMAlgorithm) -> PlaceValues:
    config: Any = algo.config
    if not config.use_critic or config.critic_view is not None:
        has = "none of its own" if config.use_critic else "no critic"
        raise ConfigError(
            "evaluate='critic' reads the value head of the policy, but the run has "
            f"{has}. Use a run of LLMPPO, or evaluate='rollout'."
        )

    def values(episodes: Sequence[Any]) -> list[float]:
        whole = [WholeEpisode(e, module_id=DEFAULT_MODULE_ID) for e in episodes]
        of_turns = algo.learner_group.map_units("place_values", whole)
        return [float(each[-1]) for each in of_turns]

    return values


def _by_scorer(algo: LLMAlgorithm) -> PlaceValues:
    config: Any = algo.config  # with ScorerSettings, if it trains a scorer
    loss = getattr(config, "scorer_loss", None)
    if loss not in (OUTCOME, RETURN):
        has = "no scorer" if loss is None else f"one with the loss {loss!r}"
        raise ConfigError(
            "evaluate='scorer' needs a scorer whose scores are returns or the logits "
            f"of success, but the run has {has}. Train one with scorer.loss='return' "
            "or 'outcome', or use evaluate='rollout'."
        )

    if config.scorer_privileged:
        raise ConfigError(
            "evaluate='scorer' scores without the right answers, which the run's "
            "scorer reads (scorer.privileged=True). Use evaluate='rollout'."
        )

    def values(episodes: Sequence[Any]) -> list[float]:
        # Up to the reply before the last one: what the environment said to it is not
        # read, as in training.
        replies = [candidate_episodes(e, len(e) - 2)[-1] for e in episodes]
        whole = [WholeEpisode(reply, module_id=SCORER_MODULE) for reply in replies]
        scores = cast("TrainsScorer", algo).score_turns(whole)
        estimates = [pooled(each, config.scorer_pool) for each in scores]
        if loss == OUTCOME:
            return [1.0 / (1.0 + float(np.exp(-logit))) for logit in estimates]
        # Scores estimate the return of the whole episode.
        rewarded = [float(np.sum(e.get_rewards()[:-1])) for e in episodes]
        return [all_ - e for all_, e in zip(estimates, rewarded, strict=True)]

    return values


def pooled(scores: Sequence[float], pool: str) -> float:
    """Return the score of a conversation from those of its turns, as the loss reads it.

    Args:
        scores: Score of each turn, as ``score_turns`` returns them. [H]
        pool: "last", "sum" or "mean". With "last" a turn's score is by how much it
            raises that of the conversation, so that the sum is the last one's.
    """
    return float(np.mean(scores) if pool == "mean" else np.sum(scores))
