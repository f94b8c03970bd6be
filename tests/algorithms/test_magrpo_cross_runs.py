"""MAGRPO's cross mode in training, with real rollouts of real games."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rllib_llm import GRPOConfig, SelfPlayConfig
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.errors import ConfigError

TINY = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
ONE_ROUND = {"min_rounds": 1, "max_rounds": 1}
CROSS = {"name": "magrpo", "joint": "cross"}
TEAM_REWARDS = {"cc": 1.0, "cd": 5 / 6, "dc": 5 / 6, "dd": 1 / 3}  # mean of both


def make_config(env="dilemma-v0", options=ONE_ROUND, config_class=GRPOConfig):
    return (
        config_class()
        .environment(env, env_config=options)
        .language_model(tiny=TINY)
        .generation(max_new_tokens=10)
        .rollouts(episodes_per_iteration=32, group_size=4)
        .training(advantage_estimator=[CROSS], lr=1e-2)
    )


@pytest.mark.ray
def test_advantages_of_moves_average_over_the_others_moves(ray_session):
    config = make_config().sft(demonstrations=300, mistake_rate=1.0, lr=5e-3)
    algo = config.training(drop_zero_variance_groups=False).build_algo()
    episodes = algo.collect()
    checked = 0
    for group in range(8):
        rollouts = [e for e in episodes if episode_data(e).task.group_id == group]
        moves = [[str(p.get_actions(0)) for p in agent_episodes(e)] for e in rollouts]
        if not set(itertools.chain(*moves)) <= {"cooperate", "defect"}:
            continue  # something else was said, and someone asked again
        for agent in (0, 1):
            others = [move[1 - agent][0] for move in moves]
            worths = [
                np.mean([TEAM_REWARDS[m[agent][0] + o] for o in others]) for m in moves
            ]
            for rollout, worth in zip(rollouts, worths, strict=True):
                own = episode_data(agent_episodes(rollout)[agent]).advantage
                assert own == pytest.approx(worth - np.mean(worths), abs=1e-6)
                checked += abs(own) > 1e-3
    assert checked > 8
    played, weights = algo._replay, []
    for _ in range(2):
        result = algo.train()
        weights.append(result["learners"]["default_policy"]["weights_seq_no"])
        assert 0 < result["replayed_games"] <= 8 * 4**2 and result["replay_s"] > 0
    assert weights == [1, 2] and played.num_games == 0  # forgotten
    algo.stop()


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("secret_sum-v0", {}, "'bob_0' observed .* no agent observes another"),
        ("referential-v0", {}, "'listener_0' observed"),
        ("team-v0", {}, "'solver_0' observed"),
        ("guess_number-v0", {}, "guess_number-v0' has one agent"),
    ],
)
def test_games_that_cannot_be_combined_are_refused(env, options, message):
    with pytest.raises(ConfigError, match=message):
        make_config(env, options).validate()


def test_changed_rewards_or_other_players_are_refused():
    with pytest.raises(ConfigError, match="rewards or reward_transforms change them"):
        make_config().rollouts(rewards=["environment", "format"]).validate()
    scripted = make_config().multi_agent(
        policies={"row": {}, "column": {"scripted_policy": lambda turn: "defect"}},
        policy_mapping_fn={"row": "row", "column": "column"},
    )
    with pytest.raises(ConfigError, match="no language model acts for column"):
        scripted.validate()
    large = make_config().rollouts(episodes_per_iteration=65, group_size=65)
    with pytest.raises(ConfigError, match="make 4225 combinations"):
        large.validate()
    game = make_config("open_spiel/kuhn_poker-v0", {}, SelfPlayConfig)
    with pytest.raises(ConfigError, match="opponents are none"):
        game.training(drop_zero_variance_groups=False).validate()


def test_games_of_several_turns_are_taken_for_their_last_one():
    make_config(options={"min_rounds": 2, "max_rounds": 2}).validate()
    make_config("team-v0", {"topology": "debate"}).validate()
    assert TurnTable([]).replay is None
