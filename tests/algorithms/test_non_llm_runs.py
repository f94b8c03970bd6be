"""Non-LLM RLModules through RLlib's interfaces: build_algo, evaluate, checkpoints."""

import sys

import non_llm_toys
import numpy as np
import pytest
import ray
import team_helpers
from non_llm_toys import MLP, Beside, Errand, non_llm_config

from rllib_llm import MARFTConfig
from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.evaluation.teams import ablations, swap_matrix

pytestmark = pytest.mark.ray


@pytest.fixture
def workers(ray_session):
    """Ray's workers cannot import test modules: their classes are sent along."""
    modules = [team_helpers, non_llm_toys, sys.modules[__name__]]
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        ray.cloudpickle.unregister_pickle_by_value(module)


def state_of(algo, module_id):
    state = algo.learner_group.get_state()["learner"]["rl_module"]
    return {n: np.asarray(v) for n, v in state[module_id].items()}


def same(left, right, **near):
    assert left.keys() == right.keys()
    close = np.allclose if near else np.array_equal
    return all(close(left[name], right[name], **near) for name in left)


def test_an_iteration_trains_both_and_evaluation_is_greedy(ray_session):
    config = non_llm_config(Beside).evaluation(
        evaluation_interval=1,
        evaluation_duration=6,
        evaluation_config={"explore": False},
    )
    algo = config.build_algo()
    before = {m: state_of(algo, m) for m in ("talk", "run")}
    result = algo.train()
    for module_id in before:
        assert not same(before[module_id], state_of(algo, module_id))
        assert np.isfinite(result["learners"][module_id]["policy_loss"])
    agent_returns = result["env_runners"]["agent_episode_return_mean"]
    assert set(agent_returns) == {"speaker_0", "runner_0", "runner_1"}
    first, again = (algo.evaluate()["env_runners"] for _ in range(2))
    assert first["num_episodes"] == 6
    assert first["module_episode_return_mean"] == again["module_episode_return_mean"]
    algo.stop()


def test_language_models_are_swapped_around_the_non_llm_agent(ray_session):
    algo = non_llm_config().build_algo()
    assert set(ablations(algo, 2)) == {"none", "speaker_0"}
    assert swap_matrix(algo, 2).to_markdown()
    algo.stop()


@pytest.mark.slow
@pytest.mark.parametrize("config_class", [None, MARFTConfig])
def test_a_checkpoint_goes_on_to_the_bit(config_class, ray_session, tmp_path):
    given = () if config_class is None else (config_class,)
    config = non_llm_config(
        Errand, *given, slots=1, runner={**MLP, "training": {"lr": 1e-3}}
    )
    straight = config.build_algo()
    straight.train()
    path = straight.save_to_path(str(tmp_path / "checkpoint"))
    saved = {m: state_of(straight, m) for m in ("talk", "run")}
    expected = straight.train()
    final = {m: state_of(straight, m) for m in saved}
    straight.stop()
    resumed = LLMAlgorithm.from_checkpoint(path)
    for module_id in saved:
        assert same(saved[module_id], state_of(resumed, module_id))
    found = resumed.train()
    for module_id in saved:
        assert same(final[module_id], state_of(resumed, module_id))
        assert not same(saved[module_id], final[module_id])
    key = "episode_return_mean"
    assert expected["env_runners"][key] == found["env_runners"][key]
    resumed.stop()


@pytest.mark.slow
def test_runners_in_other_processes_sample_as_the_local_one(workers):
    states = []
    for remote in (0, 2):
        config = non_llm_config(slots=1).env_runners(num_env_runners=remote)
        algo = config.build_algo()
        for _ in range(2):
            algo.train()
        states.append({m: state_of(algo, m) for m in ("talk", "run")})
        algo.stop()
    for module_id in states[0]:
        assert same(states[0][module_id], states[1][module_id], atol=1e-4)


@pytest.mark.slow
def test_two_learners_by_gloo_stay_alike(workers):
    config = non_llm_config(rollouts={"episodes_per_iteration": 6}, slots=1)
    algo = config.learners(num_learners=2).build_algo()
    before = state_of(algo, "run")
    algo.train()
    group = algo.learner_group
    states = [
        result.get()["run"]
        for result in group.foreach_learner(lambda learner: learner.module.get_state())
    ]
    assert len(states) == 2 and same(*states)
    assert not same(before, states[0])
    algo.stop()


@pytest.mark.slow
@pytest.mark.learning
def test_an_mlp_learns_to_run_beside_a_language_model(ray_session):
    """Random actions return 1.5 of 3: the larger of two numbers, three times."""
    config = non_llm_config(
        Errand,
        runner={**MLP, "training": {"lr": 0.02, "entropy_coeff": 0.0}},
        rollouts={"episodes_per_iteration": 32},
        training={"lr": 1e-3, "num_epochs": 4},
        slots=32,
    )
    algo = config.build_algo()
    returns = []
    for _ in range(20):
        policy_returns = algo.train()["env_runners"]["module_episode_return_mean"]
        returns.append(policy_returns["run"])
    algo.stop()
    assert np.mean(returns[:1]) < 2.2
    assert np.mean(returns[-3:]) > 2.6, returns
