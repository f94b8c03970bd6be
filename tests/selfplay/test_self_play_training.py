"""SelfPlay: opponents, training, advantages, frozen policies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from self_play_helpers import LEARNER, any_word, books, kuhn, played, same, weights

pytest.importorskip("pyspiel")
pytest.importorskip("openskill")

from rllib_llm import SelfPlayConfig
from rllib_llm.algorithms.selfplay.learner_calls import ScoreWords
from rllib_llm.data import columns
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.errors import ConfigError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.fixture
def build():
    """Build algorithms, and stop them at the end."""
    built = []

    def make(*args, **kwargs):
        config = args[0] if args else kuhn(**kwargs)
        built.append(config.build_algo())
        return built[-1]

    yield make
    for algo in built:
        algo.stop()


def test_frozen_opponents_do_not_change_in_training(build):
    """Regression of ray-project/ray#35393: frozen policies keep their weights."""
    algo = build(league={"pool_size": 2, "snapshot_max_games": 12})
    start = weights(algo, LEARNER)
    algo.train()
    assert algo.matchmaker.members() == {"opponent_0": "snapshot_0"}
    assert same(weights(algo, "opponent_0"), start)
    assert not same(weights(algo, LEARNER), start)
    frozen = {"opponent_0": start}
    for _ in range(5):
        live, before = weights(algo, LEARNER), dict(algo.matchmaker.members())
        algo.train()
        for slot, member in algo.matchmaker.members().items():
            if before.get(slot) != member:
                frozen[slot] = live  # the learner's weights before the iteration
            assert same(weights(algo, slot), frozen[slot]), (slot, member)
            assert same(weights(algo, slot, "local"), frozen[slot])
        assert not same(weights(algo, LEARNER), live)
    assert len(algo.matchmaker.league.members) == 2
    assert algo.matchmaker.state_dict()["league"]["retired"]  # a slot was overwritten


def test_an_opponent_plays_a_whole_episode_and_is_not_trained(build, monkeypatch):
    algo = build(episodes=24)
    algo.train()
    seen = played(algo, monkeypatch)
    result = algo.train()
    (episodes,) = seen
    own = others = 0
    for episode in episodes:
        assignment = episode_data(episode).task.assignment
        assert assignment == algo.matchmaker.assignment(episode_data(episode).task.seed)
        for part in agent_episodes(episode):
            turns = part.get_extra_model_outputs(columns.TURN)
            assert {turn.module_id for turn in turns} == {assignment[part.agent_id]}
            if assignment[part.agent_id] == LEARNER:
                own += sum(len(turn.action_ids) for turn in turns)
            else:
                others += len(turns)
                assert episode_data(part).advantage is None
    assert others and own
    assert result["learners"][LEARNER]["num_trained_tokens"] == own
    assert "grad_norm" not in result["learners"].get("opponent_0", {})
    assert result["league"]["pool_size"] >= 1
    assert math.isfinite(result["league"]["win_rate"]["opponent_0"])


def test_advantages_are_relative_to_the_moving_average_of_each_agent(
    build, monkeypatch
):
    algo = build(league={"opponents": "mirror"}, role_decay=0.5)
    seen = played(algo, monkeypatch)
    algo.train()
    (episodes,) = seen
    average = {"player_0": 0.0, "player_1": 0.0}
    for episode in sorted(episodes, key=lambda e: episode_data(e).task.group_id):
        for agent, part in episode.agent_episodes.items():
            return_ = part.get_return()
            advantages = episode_data(part).advantage
            assert advantages == pytest.approx(return_ - average[agent], abs=1e-12)
            average[agent] = 0.5 * average[agent] + 0.5 * return_
    role = algo._advantage_estimators[LEARNER].estimators[0].call.baselines
    for agent, value in average.items():
        assert role.get(str(algo.config.env), agent) == value
    assert average["player_0"] != average["player_1"]


def test_a_group_has_one_opponent_which_is_not_in_the_baseline(build, monkeypatch):
    config = kuhn(advantage_baseline="mean").rollouts(group_size=4)
    algo = build(config)
    algo.train()
    seen = played(algo, monkeypatch)
    algo.train()
    groups = {}
    for episode in seen[0]:
        task = episode_data(episode).task
        groups.setdefault(task.group_id, set()).add(tuple(task.assignment.items()))
        for part in agent_episodes(episode):
            advantages = episode_data(part).advantage
            assert (advantages is None) == (part.module_id != LEARNER)
    assert len(groups) == 4 and all(len(each) == 1 for each in groups.values())


def test_word_scores_equal_the_engines_log_probabilities(build, monkeypatch):
    algo = build(episodes=32, league={"opponents": "mirror"})
    before = algo.measure_exploitability()
    assert before.information_states == 12
    assert before.nash_conv == 2 * before.exploitability > 0
    checked = set()
    for episode in algo.sample_groups(32):
        for part in agent_episodes(episode):
            messages = episode_data(part).messages
            turns = part.get_extra_model_outputs(columns.TURN)
            for i, turn in enumerate(turns):
                word = messages[2 * i + 1]["content"]
                call = ScoreWords(LEARNER, [messages[: 2 * i + 1]], [[word]])
                ((score,),) = algo._on_learners(call, first_only=True)[0]
                if word in ("pass", "bet") and len(turn.action_ids) < 5:
                    assert score == pytest.approx(turn.action_logps.sum(), abs=1e-4)
                    checked.add((i, word))
    assert {(0, "pass"), (0, "bet")} <= checked
    assert any(i == 1 for i, _ in checked)  # a second turn: its history counts


def test_scripted_agents_and_a_scripted_evaluation_opponent(build, monkeypatch):
    config = kuhn(league={"evaluation_opponent": "dice"})
    config.environment(env_config={"style": "short", "game_options": {"players": 3}})
    script = {"dice": {"scripted_policy": "self_play_helpers:any_word"}}
    config.multi_agent(policies=script, policy_mapping_fn={"player_2": "dice"})
    config.evaluation(evaluation_interval=1, evaluation_duration=8)
    algo = build(config)
    assert any_word.__name__ == config.script_of("dice").__name__
    seen = played(algo, monkeypatch)
    result = algo.train()
    for episode in seen[0]:
        agents = episode_data(episode).task.assignment
        assert [a for a, name in agents.items() if name == "dice"] == ["player_2"]
    evaluated = result["evaluation"]["env_runners"]
    assert evaluated["num_module_steps_sampled"].keys() == {
        LEARNER
    }  # a script has no tokens
    tasks = algo.config.build_task_source(in_evaluation=True).fixed(4)
    homes = [[a for a, m in t.assignment.items() if m == LEARNER] for t in tasks]
    assert homes == [["player_0"], ["player_1"]] * 2
    algo.train()
    assert all("dice" not in pair for pair in algo.matchmaker.league.payoffs._pairs)


def test_lora_snapshots_are_adapters_only(build):
    config = kuhn().language_model(lora={"rank": 2}, tiny={})
    config.language_model(tiny=kuhn().lm_tiny)
    algo = build(config)
    algo.train()
    start = weights(algo, "opponent_0")
    for _ in range(2):
        algo.train()
    names = [n for n in weights(algo, LEARNER) if n != "base_fingerprint"]
    assert names and all("lora_" in name for name in names)
    live, frozen = weights(algo, LEARNER), weights(algo, "opponent_0")
    assert same(frozen, start) and not same(live, start)


@pytest.mark.slow
def test_remote_runners_use_the_learners_opponents(build, tmp_path):
    """Regression of ray-project/ray#35393 and #34778 with remote EnvRunners."""
    config = kuhn().env_runners(num_env_runners=1)
    algo, alone = build(config), build()
    algo.train()
    older = algo.save_to_path(tmp_path / "older")
    expected = {m: weights(algo, m) for m in (LEARNER, "opponent_0", "opponent_1")}
    noted = books(algo)
    for _ in range(3):
        algo.train()
    for slot in algo.matchmaker.members():
        assert same(weights(algo, slot, "remote"), weights(algo, slot))
        assert not same(weights(algo, slot, "remote"), weights(algo, LEARNER))
    for _ in range(4):
        alone.train()
    assert books(alone) == books(algo)  # runners make no difference
    assert same(weights(alone, LEARNER), weights(algo, LEARNER))
    algo.restore_from_path(older)  # an older state, in a running algorithm
    assert books(algo) == noted
    for module_id, values in expected.items():
        assert same(weights(algo, module_id), values)
        assert same(weights(algo, module_id, "remote"), values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"opponents": "strongest"}, "opponents="),
        ({"pool_size": 0}, "pool_size=0"),
        ({"mirror_fraction": 2}, "mirror_fraction=2"),
        ({"opponents": "mirror", "pool_size": 2}, "league_pool_size=2 would have no"),
        ({"evaluation_opponent": "dce"}, "evaluation_opponent='dce' is not a policy"),
        ({"exploitability_interval": -1}, "exploitability_interval=-1"),
        ({"snapshot_max_games": 2}, "snapshot_max_games=2"),
    ],
)
def test_invalid_league_settings_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        kuhn(league=change).validate()


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"role_decay": 1.0}, "role_decay=1.0"),
        ({"shared_reward_fraction": 0.5}, "opponents are not a team"),
        ({"advantage_scale": "group"}, "use 'none' or 'batch'"),
        ({"drop_zero_variance_groups": True}, "Set it to False"),
        ({"advantage_group_by": "task"}, "a baseline for each agent"),
        ({"advantage_baseline": "mean"}, "group_size=1"),
        ({"advantage_baseline": "none", "role_decay": 0.5}, "role_decay=0.5"),
    ],
)
def test_invalid_advantage_settings_are_refused(training, message):
    with pytest.raises(ConfigError, match=message):
        kuhn(**training).validate()


@pytest.mark.parametrize(
    ("multi_agent", "message"),
    [
        ({"policy_mapping_fn": lambda agent, episode: "x"}, "assigns its policies"),
        ({"policy_mapping_fn": {"dealer": "x"}}, "names the agent 'dealer'"),
        ({"policies_to_train": ["opponent_0"]}, "freezes its opponents"),
        (
            {"policies": {"dice": {"scripted_policy": any_word}}},
            "'dice' is assigned to no agent",
        ),
        ({"policies": ["opponent_1"]}, "'opponent_1' has the name of an opponent"),
        (
            {
                "policies": {"dice": {"scripted_policy": any_word}},
                "policy_mapping_fn": {"player_1": "dice"},
            },
            "two or more agents",
        ),
    ],
)
def test_policies_in_conflict_with_the_league_are_refused(multi_agent, message):
    with pytest.raises(ConfigError, match=message):
        kuhn().multi_agent(**multi_agent).validate()


def test_unsuitable_environments_are_refused():
    config = SelfPlayConfig().environment("copy_probe-v0")
    with pytest.raises(ConfigError, match="'copy_probe-v0' leaves \\[\\]"):
        config.validate()
    config = SelfPlayConfig().league(exploitability_interval=1)
    with pytest.raises(ConfigError, match="not one of its games"):
        config.environment("dilemma-v0").validate()


def test_a_validated_config_can_be_changed():
    config = kuhn(ref_kl_coeff=0.1)
    for _ in range(2):
        config.validate()
        assert config.module_ids == (LEARNER, "opponent_0", "opponent_1")
        assert config.trained_module_ids == (LEARNER,)
    assert config.get_config_for_module(LEARNER).uses_reference
    assert not config.get_config_for_module("opponent_0").uses_reference
    config.league(pool_size=1)
    config.validate()
    assert config.module_ids == (LEARNER, "opponent_0")


def test_batch_scale_divides_by_the_spread(build, monkeypatch):
    algo = build(advantage_scale="batch", league={"opponents": "mirror"})
    seen = played(algo, monkeypatch)
    algo.train()
    parts = [part for episode in seen[0] for part in agent_episodes(episode)]
    assert np.std([episode_data(p).advantage for p in parts]) == pytest.approx(1, 1e-3)


def bribe(trajectory):
    return 100.0


def test_custom_rewards_do_not_affect_game_results(build, monkeypatch):
    algo = build(kuhn().rollouts(rewards=[bribe]))
    seen, results = played(algo, monkeypatch), []
    monkeypatch.setattr(algo.matchmaker, "record", results.extend)
    algo.train()
    assert results and all(abs(x) <= 2 for r in results for x in r.returns)
    parts = [part for episode in seen[0] for part in agent_episodes(episode)]
    assert all(part.get_return() >= 98 for part in parts)
