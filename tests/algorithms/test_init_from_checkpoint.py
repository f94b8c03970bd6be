"""A run initialised from another's checkpoint gets its policies and nothing else."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm import GRPOConfig, LLMPPOConfig, SFTConfig
from rllib_llm.algorithms.driver.init_from_checkpoint import RL_MODULE
from rllib_llm.errors import CheckpointError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def of(config_class, upper=7, **training):
    return (
        config_class()
        .environment("guess_number-v0", env_config={"upper": upper})
        .language_model(tiny=TINY)
        .generation(max_new_tokens=6)
        .rollouts(episodes_per_iteration=16)
        .training(lr=5e-3, **training)
    )


def state(algo, module_id=DEFAULT_MODULE_ID):
    def read(learner):
        return learner.module[module_id].unwrapped().get_state()

    return next(iter(algo.learner_group.foreach_learner(read))).get()


def trained(config, path, iterations=2):
    algo = config.build_algo()
    for _ in range(iterations):
        algo.train()
    algo.save_to_path(path)
    algo.stop()
    return state(algo)


def begun_with(config, checkpoint):
    config.initial_checkpoint = str(checkpoint)
    return config.build_algo()


def lm(tensors):
    return {n: t for n, t in tensors.items() if n.startswith("lm.")}


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


@pytest.fixture(scope="module")
def imitated(tmp_path_factory, ray_session):
    path = tmp_path_factory.mktemp("init_from_checkpoint") / "sft"
    return path, trained(of(SFTConfig), path)


def test_weights_are_initialised_and_counters_are_not(imitated):
    path, given = imitated
    # Another size of the game has words of its own; the model keeps those it knows.
    algo = begun_with(of(LLMPPOConfig, upper=9, ref_kl_coeff=0.1), path)
    got = state(algo)
    assert equal(lm(got), lm(given))
    reference = {n.replace("reference.", "lm."): t for n, t in got.items()
                 if n.startswith("reference.")}  # fmt: skip
    assert reference and equal(reference, lm(given))
    assert algo.iteration == 0 and algo._task_source.cursor == 0
    learner = algo.learner_group._learner
    assert learner._weights_seq_no == 0
    assert not any(o.state for o in learner._optimizer_parameters)
    result = algo.train()["learners"][DEFAULT_MODULE_ID]
    assert (
        result["train_inference_mismatch_mean"] < 1e-5
    )  # the engine samples with them
    now = state(algo)
    assert not equal(lm(now), lm(given))
    frozen = {n: t for n, t in now.items() if n.startswith("reference.")}
    assert all(np.array_equal(t, got[n]) for n, t in frozen.items())
    algo.stop()


@pytest.mark.slow
def test_other_processes_get_them_too(imitated):
    path, given = imitated
    config = of(LLMPPOConfig).env_runners(num_env_runners=1)
    config.learners(num_learners=1)
    algo = begun_with(config, path)
    assert equal(lm(state(algo)), lm(given))
    (sampled,) = algo.env_runner_group.foreach_env_runner(
        lambda runner: runner.module.get_state(inference_only=True),
        local_env_runner=False,
    )
    assert equal(lm(sampled), lm(given))
    assert (
        algo.train()["learners"][DEFAULT_MODULE_ID]["train_inference_mismatch_mean"]
        < 1e-5
    )
    algo.stop()


@pytest.mark.slow
def test_value_heads_are_initialised_where_both_have_one(imitated, tmp_path):
    given = trained(of(LLMPPOConfig), tmp_path / "ppo", iterations=1)
    heads = {n for n in given if n.startswith("value_head.")}
    algo = begun_with(of(LLMPPOConfig, upper=9), tmp_path / "ppo")
    assert heads and equal(state(algo), given)
    algo.stop()
    fresh = of(LLMPPOConfig).build_algo()
    algo = begun_with(of(LLMPPOConfig), imitated[0])
    mine, new = state(algo), state(fresh)
    assert equal(lm(mine), lm(imitated[1]))
    assert all(np.array_equal(mine[n], new[n]) for n in heads)
    algo.stop()
    fresh.stop()


def test_adapters_are_initialised(tmp_path):
    pytest.importorskip("peft")
    lora = {"rank": 2, "alpha": 4}
    given = trained(of(SFTConfig).language_model(lora=lora), tmp_path / "lora")
    algo = begun_with(
        of(GRPOConfig, upper=9).language_model(lora=lora), tmp_path / "lora"
    )
    assert equal(state(algo), given)
    algo.stop()


def test_a_restored_run_needs_nothing_of_the_stage_before(imitated, tmp_path):
    before = tmp_path / "before"
    shutil.copytree(imitated[0], before)
    algo = begun_with(of(GRPOConfig), before)
    algo.train()
    path, expected = algo.save_to_path(tmp_path / "after"), state(algo)
    algo.stop()
    shutil.rmtree(before)
    again = type(algo).from_checkpoint(path)
    assert equal(state(again), expected)
    again.stop()
    with pytest.raises(CheckpointError, match="is not a checkpoint any more"):
        begun_with(of(GRPOConfig), before)


def test_the_checkpoint_lies_where_rllib_puts_it(imitated):
    assert (imitated[0] / RL_MODULE / DEFAULT_MODULE_ID).is_dir()
