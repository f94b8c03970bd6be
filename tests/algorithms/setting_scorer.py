"""Effects of the settings of scorer."""

from __future__ import annotations

from typing import Any

import torch
from learner_helpers import fake_episode, make_config, make_learner
from scorer_helpers import (
    away_from_zero,
    driver_of,
    module_of,
    scorer_config,
    whole_episodes,
)
from test_fork_training import leaves

from rllib_llm import GRPOConfig
from rllib_llm.data import columns
from rllib_llm.data.sampled_episodes import SampledEpisodes


def scorer_after(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the scorer after two iterations, and whether the policy waits in each."""
    config = scorer_config(**sections["scorer"])
    if not config.uses_scorer:
        return []
    learner = make_learner(config)
    away_from_zero(learner)
    driver, waits = driver_of(config, learner), []
    for iteration in range(2):
        driver._iteration = iteration
        driver._to_learn = whole_episodes()
        waits.append(driver.policy_waits)
        driver._update_scorer()
    flat = [p.detach().flatten() for p in module_of(learner).parameters()]
    return [torch.cat(flat).numpy(), waits]


def judged_by_vtrace(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return advantages of turns that are likelier now than when they were sampled."""
    learner = make_learner(scorer_config(**{"loss": "vtrace", **sections["scorer"]}))
    away_from_zero(learner)
    episodes = whole_episodes()
    for episode in episodes:
        for turn in episode.get_extra_model_outputs(columns.TURN):
            turn.action_logps = turn.action_logps - 20.0
    return learner.score_turns(episodes)


def scores_of_answers(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the scores of episodes whose infos have the right answers."""
    config = scorer_config(**sections["scorer"])
    learner = make_learner(config)
    away_from_zero(learner)
    episodes = SampledEpisodes([answered(number) for number in range(3)])
    driver_of(config, learner)._score(episodes)
    return [trajectory.scores for trajectory in episodes.trajectories]


def answered(number: int, answers: Any = ("seven",), **given: Any) -> Any:
    """Return an episode whose last info has these right answers."""
    episode = fake_episode(number, **{"turns": 2, **given})
    episode.get_infos()[-1]["gold_answers"] = list(answers)
    return episode


def labels_learned(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the labels of turns that a driver gives a process reward model."""
    given = {"loss": "process", **sections["scorer"]}
    config = scorer_config(**given).rollouts(fork="every_turn", group_size=8)
    driver = driver_of(config, make_learner(config))
    driver._score(SampledEpisodes(leaves()))
    return [episode.get_rewards() for episode in driver._to_learn]


def acting_episodes(count: int = 8) -> list[Any]:
    """Return whole episodes whose actions are the parity of their first tokens."""
    episodes = whole_episodes(count)
    for episode in episodes:
        turns = episode.get_extra_model_outputs(columns.TURN)
        infos = episode.get_infos()[1:]
        for turn, info in zip(turns, infos, strict=True):
            info["parsed_action"] = f"parity {turn.action_ids[0] % 2}"
    return episodes


def weights_after(algo: str, env: Any = None, **sections: Any) -> Any:
    """Return the tokens' weights after a few updates of a causal scorer."""
    config = make_config(GRPOConfig)
    config.training(loss_terms=[{"name": "entropy", "weights": "causal"}])
    learner = make_learner(config.scorer(**sections["scorer"], lr=1e-2))
    episodes = acting_episodes()
    for iteration in range(4):
        learner.update_scorer(episodes, iteration)
    data = learner._data_of(episodes)
    learner.add_causal_weights(data)
    return data[columns.CAUSAL_WEIGHTS].numpy()
