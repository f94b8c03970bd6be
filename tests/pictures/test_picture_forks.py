"""Forks, searches and candidates of conversations that show pictures."""

from __future__ import annotations

import pytest
from picture_helpers import make_vlm_module, row_batch, row_scores
from picture_runs import MISMATCH, config_of, learned
from test_picture_agents import LOOKERS, Lookers
from test_picture_agents import config_of as team_config

from rllib_llm.data import columns
from rllib_llm.data.candidates import candidate_episodes
from rllib_llm.data.episode_data import episode_data
from rllib_llm.evaluation.outcomes import held_out_tasks
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.evaluation.tree_search import MctsSettings, search_tasks
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.episode_units import stored_episode_unit

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]
EVERY = {"name": "every_turn", "roots": 2, "first": 1}


def turns_of(episode):
    return list(episode.get_extra_model_outputs(columns.TURN))


def gap(episodes, folder):
    """Return the largest difference between the sampler's and a row's scores."""
    given = [(turns_of(e), episode_data(e).pictures) for e in episodes]
    batch = row_batch(given, folder)
    scores = row_scores(make_vlm_module(folder), batch)
    mask = scores != 0
    return (scores - batch[columns.BEHAVIOUR_LOGP])[mask].abs().max()


@pytest.mark.parametrize("training", ["leaves", "tree"])
def test_forks_show_the_pictures_before_their_place(training):
    config = config_of(drop_zero_variance_groups=False, fork_training=training)
    algo = config.rollouts(fork=EVERY).build_algo()
    tasks = algo.config.build_task_source().next_groups(2)
    episodes = algo.env_runner.sample(tasks=tasks)
    algo.env_runner.get_metrics()
    folder = algo.config.resolved_model
    forks = [e for e in episodes if episode_data(e).inherited_tokens]
    assert forks
    assert gap(forks, folder) < 1e-5
    for fork in forks:
        data = episode_data(fork)
        shown = {ref.digest for turn in turns_of(fork) for ref in turn.images}
        assert shown <= data.pictures.keys()
        assert len(shown) == 3
    results = [algo.train() for _ in range(2)]
    algo.stop()
    assert all(r["env_runners"]["num_forks"] == 4 for r in results)
    assert all(learned(r)[MISMATCH] < 1e-5 for r in results)


def test_a_search_plays_on_from_places_with_pictures():
    algo = config_of().build_algo()
    settings = MctsSettings(simulations=6, width=2, exploration=0.5)
    tasks = held_out_tasks(algo.config, 3)
    searches = search_tasks(local_runner(algo), tasks, settings)
    outcomes = [search.outcome(number) for number, search in enumerate(searches)]
    algo.stop()
    assert [o.success for o in outcomes] == [True] * 3
    assert [o.turns for o in outcomes] == [3] * 3


def test_candidates_answer_the_same_pictures_and_the_best_are_saved(tmp_path):
    config = config_of().training(lr=0.0)
    config.rollouts(
        candidates=3,
        candidate_scores="logp",
        save_episodes=str(tmp_path),
        save_as="best_candidates",
    )
    algo = config.build_algo()
    algo.train()
    tasks = algo.config.build_task_source().next_groups(1)
    episodes = algo.env_runner.sample(tasks=tasks)
    folder, renderer = algo.config.resolved_model, algo.config.chat_renderer()
    algo.stop()
    for turn in range(3):
        replies = candidate_episodes(episodes[0], turn)
        assert len(replies) == 3
        assert gap(replies, folder) < 1e-5
    lines = [line for path in tmp_path.glob("*.jsonl") for line in path.open("rb")]
    assert lines
    for line in lines:
        unit = stored_episode_unit(parse_row(line), renderer)
        numbers = [len(turn.images) for turn in turns_of(unit)]
        assert numbers == [1, 0, 2][: len(numbers)]
        assert episode_data(unit).pictures


def test_agents_of_a_fork_keep_their_pictures():
    config = team_config(env=Lookers, policies=LOOKERS)
    algo = config.rollouts(fork=EVERY).build_algo()
    tasks = algo.config.build_task_source().next_groups(2)
    episodes = algo.env_runner.sample(tasks=tasks)
    folder = algo.config.get_config_for_module("ann").resolved_model
    forked = 0
    for episode in episodes:
        for agent, part in episode.agent_episodes.items():
            data = episode_data(part)
            forked += bool(data.inherited_tokens)
            shown = {ref.digest for turn in turns_of(part) for ref in turn.images}
            assert len(shown) == len(part)
            assert shown <= data.pictures.keys()
            others = episode.agent_episodes[{"ann_0": "ben_0"}.get(agent, "ann_0")]
            assert not shown & episode_data(others).pictures.keys()
            assert gap([part], folder) < 1e-5
    algo.stop()
    assert forked
