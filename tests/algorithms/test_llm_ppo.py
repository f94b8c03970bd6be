"""LLMPPO through RLlib's interfaces: build_algo, evaluation, Tune, checkpoints."""

import numpy as np
import pytest
from learner_helpers import TINY
from ray import tune

from rllib_llm import LLMPPOConfig, register_trainables
from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.data.episode_data import episode_data
from rllib_llm.errors import ConfigError, ModelError

pytestmark = pytest.mark.ray


def small(**rollouts):
    return (
        LLMPPOConfig()
        .environment(
            "guess_number-v0",
            # A random model has a reward to learn from: the penalty.
            env_config={"upper": 3, "max_turns": 2, "invalid_action_reward": -0.1},
        )
        .language_model(tiny=TINY)
        .env_runners(num_envs_per_env_runner=8)
        .generation(max_new_tokens=4)
        .rollouts(**{"episodes_per_iteration": 8, **rollouts})
        .training(lr=1e-3, num_epochs=2, minibatch_size=4)
    )


def state_of(algo):
    return algo.learner_group.get_state()["learner"]["rl_module"]["default_policy"]


def test_all_parameters_move_and_sampler_agrees(ray_session):
    algo = small().build_algo()
    before = state_of(algo)
    result = algo.train()
    learner = result["learners"]["default_policy"]
    assert learner["train_inference_mismatch_max"] < 1e-3
    assert result["env_runners"]["num_episodes"] == 8
    after = state_of(algo)
    for name in before:
        assert not np.array_equal(before[name], after[name]), name
    # Local runner and learner share their parameters: the engine sees the update.
    mine = dict(algo.env_runner.module.lm.named_parameters())
    theirs = dict(
        algo.learner_group._learner.module["default_policy"].lm.named_parameters()
    )
    assert all(mine[n].data_ptr() == theirs[n].data_ptr() for n in mine)
    algo.stop()


def test_evaluation_is_exact_held_out_and_repeatable(ray_session):
    config = small().evaluation(evaluation_interval=1, evaluation_duration=12)
    algo = config.build_algo()
    first = algo.evaluate()["env_runners"]
    second = algo.evaluate()["env_runners"]
    assert first["num_episodes"] == 12
    assert first["episode_return_mean"] == second["episode_return_mean"]
    result = algo.train()
    assert result["evaluation"]["env_runners"]["num_episodes"] == 12
    algo.stop()


@pytest.mark.slow
def test_checkpoint_resumes_to_the_same_metrics(ray_session, tmp_path):
    straight = small().build_algo()
    for _ in range(2):
        straight.train()
    path = straight.save_to_path(str(tmp_path / "checkpoint"))
    expected = [straight.train() for _ in range(2)]
    straight.stop()
    resumed = LLMAlgorithm.from_checkpoint(path)
    found = [resumed.train() for _ in range(2)]
    for a, b in zip(expected, found, strict=True):
        assert a["training_iteration"] == b["training_iteration"]
        for group, key in (
            ("env_runners", "episode_return_mean"),
            ("env_runners", "completion_tokens_mean"),
            ("env_runners", "num_env_steps_sampled_lifetime"),
        ):
            assert a[group][key] == b[group][key], key
        for key in ("policy_loss", "vf_loss", "entropy", "grad_norm"):
            mine = a["learners"]["default_policy"][key]
            theirs = b["learners"]["default_policy"][key]
            assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6), key
    resumed.stop()


@pytest.mark.slow
def test_remote_runners_and_learners_train(ray_session):
    config = small().env_runners(
        num_env_runners=2, create_local_env_runner=False, num_envs_per_env_runner=4
    )
    algo = config.build_algo()
    first = algo.train()
    assert first["env_runners"]["num_episodes"] == 8
    second = algo.train()
    # The second batch was sampled with the weights of the first update.
    assert second["learners"]["default_policy"]["train_inference_mismatch_max"] < 1e-3
    algo.stop()


@pytest.mark.slow
def test_two_learners_take_the_step_of_one(ray_session):
    states = []
    for learners in (0, 1, 2):
        config = small().learners(num_learners=learners)
        config.training(num_epochs=1, minibatch_size=None, lr=1e-2)
        algo = config.build_algo()
        algo.train()
        states.append(state_of(algo))
        algo.stop()
    for other in states[1:]:
        for name in states[0]:
            assert np.allclose(states[0][name], other[name], atol=2e-4), name


@pytest.mark.slow
def test_tuner_with_a_grid_inside_training(ray_session, tmp_path):
    register_trainables()
    config = small().training(lr=tune.grid_search([1e-3, 1e-4]))
    results = tune.Tuner(
        "LLMPPO",
        param_space=config,
        run_config=tune.RunConfig(
            stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0
        ),
    ).fit()
    assert not results.errors
    assert sorted(r.config["lr"] for r in results) == [1e-4, 1e-3]
    assert all(r.metrics["env_runners"]["num_episodes"] == 8 for r in results)


def test_rows_per_update_and_episodes_are_exact(ray_session):
    algo = small(episodes_per_iteration=6).build_algo()
    episodes = algo.collect()
    assert len(episodes) == 6
    assert len({episode_data(e).task.group_id for e in episodes}) == 6
    algo.stop()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda c: c.environment("frozen_lak-v0"), ConfigError, "frozen_lake-v0"),
        (
            lambda c: c.language_model(model="/no/such/folder"),
            ModelError,
            "does not exist",
        ),
        (lambda c: c.generation(max_context_tokens=10), ConfigError, "leaves no room"),
        (lambda c: c.generation(max_context_tokens=10**6), ModelError, "positions"),
        (lambda c: c.generation(top_p=0.9), ConfigError, "evaluation_config"),
        (lambda c: c.generation(temperature=0.0), ConfigError, "must be > 0"),
        (lambda c: c.rollouts(group_size=3), ConfigError, "must divide"),
        (
            lambda c: c.rollouts(stop_policies={"timeot": "mask"}),
            ConfigError,
            "Did you mean 'timeout'",
        ),
        (lambda c: c.training(nan_policy="skp"), ConfigError, "Did you mean 'skip'"),
        (lambda c: c.training(minibatch_size=99), ConfigError, "minibatch_size"),
        (lambda c: c.training(use_critic=False), ConfigError, "Use GRPO or SFT to"),
        (lambda c: c.training(gamma=1.5), ConfigError, r"a number in \[0, 1\]"),
        (
            lambda c: c.environment(env_config={"uper": 3}),
            ConfigError,
            "Did you mean 'upper'",
        ),
    ],
)
def test_bad_input_fails_before_anything_starts(change, error, message):
    config = small()
    with pytest.raises(error, match=message):
        change(config).build_algo()


def test_unknown_setting_in_a_dict_is_refused(ray_session):
    from rllib_llm import LLMPPO

    with pytest.raises(ConfigError, match="Did you mean 'temperature'"):
        LLMPPO(config={"env": "guess_number-v0", "temprature": 1.0})
