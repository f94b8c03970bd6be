"""Teams through RLlib's interfaces: build_algo, checkpoints, other processes."""

import sys

import numpy as np
import pytest
import ray
import team_helpers
from team_helpers import (
    LORA,
    Pair,
    Quiet,
    Uneven,
    random_script,
    team_config,
    tiny_model,
    turns_of,
)

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.marft.marft import MARFTConfig
from rllib_llm.transcripts.collector import read_result

pytestmark = pytest.mark.ray

ADAPTERS = {"model": tiny_model(), "lora": LORA}


@pytest.fixture
def workers(ray_session):
    """Ray's workers cannot import test modules: their classes are sent along."""
    modules = [team_helpers, sys.modules[__name__]]
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        ray.cloudpickle.unregister_pickle_by_value(module)


def state_of(algo, module_id):
    state = algo.learner_group.get_state()["learner"]["rl_module"]
    return {n: np.asarray(v) for n, v in state[module_id].items()}


def assert_same(left, right, **near):
    assert left.keys() == right.keys()
    for name in left:
        if near:
            assert np.allclose(left[name], right[name], **near), name
        else:
            assert np.array_equal(left[name], right[name]), name


def changed(left, right):
    return any(not np.array_equal(left[n], right[n]) for n in left)


def test_an_iteration_trains_both_policies_and_reports_each(ray_session):
    algo = team_config(Pair).build_algo()
    before = {m: state_of(algo, m) for m in ("a", "b", "critic")}
    result = algo.train()
    for module_id in before:
        assert changed(before[module_id], state_of(algo, module_id))
    runners, learners = result["env_runners"], result["learners"]
    assert runners["num_episodes"] == 4 and runners["num_env_steps_sampled"] == 16
    assert set(runners["agent_episode_return_mean"]) == {"ann_0", "ben_0"}
    assert set(runners["module_episode_return_mean"]) == {"a", "b"}
    for module_id in "ab":
        assert learners[module_id]["train_inference_mismatch_max"] < 1e-3
        assert learners[module_id]["num_trained_tokens"] > 0
        assert "vf_loss" not in learners[module_id]
    assert learners["critic"]["vf_loss"] > 0
    assert "policy_loss" not in learners["critic"]
    assert "train_inference_mismatch_max" not in learners["critic"]
    shown_turns = read_result(result)[0]["turns"]
    assert [(t["agent"], t["policy"]) for t in shown_turns] == [
        ("ann_0", "a"),
        ("ben_0", "b"),
    ] * 2
    algo.stop()


def test_a_team_of_one_shared_policy_needs_no_settings(ray_session):
    algo = team_config(Pair, policies=None).build_algo()
    before = state_of(algo, "default_policy")
    result = algo.train()
    assert changed(before, state_of(algo, "default_policy"))
    assert result["learners"]["default_policy"]["num_rows"] == 8
    assert result["learners"]["critic"]["vf_loss"] > 0
    algo.stop()


def test_a_plain_pettingzoo_game_trains_with_the_tiny_model(ray_session):
    config = team_config(Quiet, LLMPPOConfig)
    config.language_model(model="tiny", tiny={"hidden_size": 32})
    algo = config.build_algo()
    assert algo.train()["env_runners"]["num_episodes"] == 4
    algo.stop()


def saved_team():
    policies = {"a": None, "b": {"training": {"lr": 5e-3}}}
    return team_config(
        Pair,
        policies=policies,
        language_model=ADAPTERS,
        training={"update_schedule": "alternate", "alternate_every": 1},
    )


@pytest.mark.slow
def test_a_checkpoint_of_a_team_goes_on_to_the_bit(ray_session, tmp_path):
    straight = saved_team().env_runners(num_envs_per_env_runner=1).build_algo()
    straight.train()
    path = straight.save_to_path(str(tmp_path / "checkpoint"))
    saved = {m: state_of(straight, m) for m in ("a", "b", "critic")}
    expected = straight.train()
    final = {m: state_of(straight, m) for m in saved}
    straight.stop()
    resumed = LLMAlgorithm.from_checkpoint(path)
    for module_id in saved:
        assert_same(saved[module_id], state_of(resumed, module_id))
    found = resumed.train()
    for module_id in saved:
        assert_same(final[module_id], state_of(resumed, module_id))
    assert changed(saved["b"], final["b"]) and not changed(saved["a"], final["a"])
    for key in ("episode_return_mean", "num_completion_tokens_lifetime"):
        assert expected["env_runners"][key] == found["env_runners"][key]
    resumed.stop()


@pytest.mark.slow
def test_runners_in_other_processes_sample_as_the_local_one(workers):
    policies = {"a": None, "b": None, "c": {"scripted_policy": random_script}}
    states = []
    for remote in (0, 2):
        config = team_config(Trio, policies=policies, mapping=TRIO)
        config.env_runners(num_envs_per_env_runner=1, num_env_runners=remote)
        algo = config.build_algo()
        for _ in range(2):
            result = algo.train()
        assert result["learners"]["b"]["train_inference_mismatch_max"] < 1e-3
        states.append({m: state_of(algo, m) for m in ("a", "b", "critic")})
        algo.stop()
    for module_id in states[0]:
        assert_same(states[0][module_id], states[1][module_id], atol=1e-4)


class Trio(Pair):
    """Cid only listens and mumbles."""

    possible_agents = ["ann_0", "ben_0", "cid_0"]


TRIO = {"ann": "a", "ben": "b", "cid": "c"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config_class", "training"),
    [(GRPOConfig, {}), (MARFTConfig, {}), (MARFTConfig, {"level": "token"})],
)
def test_two_learners_by_gloo_take_the_step_of_one(workers, config_class, training):
    states = []
    for learners in (0, 2):
        config = team_config(
            Uneven,
            config_class,
            training=training,
            rollouts={"episodes_per_iteration": 12, "group_size": 2},
        )
        config.learners(num_learners=learners)
        config.env_runners(num_envs_per_env_runner=1)
        algo = config.build_algo()
        algo.train()
        states.append({m: state_of(algo, m) for m in algo.config.module_ids})
        algo.stop()
    for module_id in states[0]:
        assert_same(states[0][module_id], states[1][module_id], atol=3e-4)


def test_evaluation_plays_the_same_held_out_tasks(ray_session):
    config = team_config(Pair).evaluation(
        evaluation_interval=1,
        evaluation_duration=6,
        evaluation_config={"explore": False},
    )
    algo = config.build_algo()
    first, again = (algo.evaluate()["env_runners"] for _ in range(2))
    assert first["num_episodes"] == 6
    assert first["agent_episode_return_mean"] == again["agent_episode_return_mean"]
    episodes = algo.env_runner.sample(num_episodes=1)
    assert [who for who, _ in turns_of(episodes[0])] == ["ann_0", "ben_0"] * 2
    algo.stop()
