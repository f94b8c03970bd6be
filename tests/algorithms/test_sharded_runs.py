"""Runs with sharded Learners: states, checkpoints, and Learners that die."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time

import numpy as np
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from side_by_side import flat

from rllib_llm import GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.driver.runner_group_calls import call_runners
from rllib_llm.algorithms.learner.optimizer_shards import FOLDER, SaveShards, shards_in
from rllib_llm.errors import CheckpointError, LearnerError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}


def config(
    learners, config_class=GRPOConfig, timeout=1800.0, kwargs=None, **language_model
):
    built = (
        config_class()
        .environment("copy_probe-v0")
        .language_model(tiny=TINY, **language_model)
        .generation(max_new_tokens=3)
        .rollouts(episodes_per_iteration=8, group_size=4)
        .env_runners(num_envs_per_env_runner=8)
        .training(lr=1e-2, micro_batch_tokens=64, ref_kl_coeff=0.1)
        .learners(num_learners=learners, collective_timeout_s=timeout)
    )
    if learners:
        built.learners(sharding="fsdp2", sharding_kwargs=kwargs or {})
    return built


def assert_same(left, right):
    left, right = flat(left), flat(right)
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert np.array_equal(value, right[key]), key


def moments(optimizer):
    """Return the number of an optimiser state's tensors."""
    return sum(len(o["state"]["state"]) for o in optimizer.values())


def state_of(algo):
    """Return weights and optimisers."""
    state = algo.learner_group.get_state()["learner"]
    return {key: state[key] for key in ("rl_module", "optimizer")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config_class", "model"),
    [
        (GRPOConfig, {}),
        (LLMPPOConfig, {"value_model": "own", "dtype": "bfloat16"}),
        (GRPOConfig, {"kwargs": {"checkpoint_format": "sharded"}}),
        (
            LLMPPOConfig,
            {
                "value_model": "own",
                "dtype": "bfloat16",
                "kwargs": {"checkpoint_format": "sharded"},
            },
        ),
    ],
)
def test_a_checkpoint_moves_from_two_learners_to_one_and_back(
    tmp_path, config_class, model
):
    def make(learners):
        return config(learners, config_class, **model).build_algo()

    two = make(2)
    two.train()
    saved = state_of(two)
    two.save_to_path(tmp_path / "two")
    shards = tmp_path / "two" / "learner_group" / FOLDER
    # Each Learner writes a file, and the first one's state has no moments.
    assert len([*shards.glob("*.distcp")]) == (2 if "kwargs" in model else 0)
    assert moments(saved["optimizer"]) > 0
    written = (shards.parent / "learner" / "state.pkl").read_bytes()
    optimizer = pickle.loads(written)["optimizer"]
    assert moments(optimizer) == (
        0 if "kwargs" in model else moments(saved["optimizer"])
    )
    assert_same(state_of(two), saved)  # in memory, the state remains whole
    one = make(0)
    one.restore_from_path(tmp_path / "two")
    assert_same(state_of(one), saved)
    one.save_to_path(tmp_path / "one")
    again = make(2)
    again.restore_from_path(tmp_path / "one")
    assert_same(state_of(again), saved)
    again.restore_from_path(tmp_path / "two")
    assert_same(state_of(again), saved)
    for algo in (two, one, again):
        algo.train()
    assert_same(state_of(again), state_of(two))
    for algo in (two, one, again):
        algo.stop()


def test_shards_are_read_from_a_disk_only(tmp_path):
    assert shards_in(tmp_path, None) is None
    (tmp_path / FOLDER).mkdir()
    assert shards_in(tmp_path, None) == f"{tmp_path}/{FOLDER}"
    bucket = SubTreeFileSystem(str(tmp_path), LocalFileSystem())  # any that is no disk
    with pytest.raises(CheckpointError, match="not from subtree. Copy"):
        shards_in("", bucket)


@pytest.mark.slow
def test_learners_that_do_not_see_the_folder_raise_together(tmp_path):
    kwargs = {"checkpoint_format": "sharded"}
    algo = config(2, timeout=5.0, kwargs=kwargs).build_algo()
    elsewhere = tmp_path / "on another machine" / FOLDER
    with pytest.raises(CheckpointError, match="2 of 2 Learners do not see"):
        algo.learner_group.foreach_learner(SaveShards(str(elsewhere)))
    algo.train()  # they go on
    algo.stop()


def signalled(algo, number):
    """Return a call in which the second Learner gets a signal, and the processes."""
    # Nested functions are pickled by value: Learners cannot import this file.
    found = algo.learner_group.foreach_learner(lambda learner: os.getpid())
    victim = [result.get() for result in found][1]

    def stop_one(learner):
        if os.getpid() == victim:
            os.kill(victim, number)
        return learner.module["default_policy"].unwrapped().get_state()

    return stop_one, victim


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "what"),
    [
        (signal.SIGKILL, "Learner 1 of 2 died"),
        (signal.SIGSTOP, "Learner 1 of 2 does not answer"),
    ],
)
def test_a_lost_learner_ends_the_run_with_a_sentence(number, what):
    algo = config(2, timeout=5.0).build_algo()
    algo.train()
    call, victim = signalled(algo, number)
    begin = time.monotonic()
    try:
        with pytest.raises(LearnerError, match=what) as error:
            algo.learner_group.foreach_learner(call)
        assert "stop_one() after weights version 1" in str(error.value)
        algo.stop()
        assert time.monotonic() - begin < 60
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


@pytest.mark.slow
def test_a_learner_killed_in_an_update():
    # Not GRPO, which skips updates with groups of equal returns.
    algo = config(2, LLMPPOConfig, timeout=5.0).build_algo()
    algo.train()
    _, victim = signalled(algo, signal.SIGKILL)

    def die_in_the_next_update(learner):
        if os.getpid() == victim:
            learner._possibly_compiled_update = lambda *a, **k: os.kill(victim, 9)

    algo.learner_group.foreach_learner(die_in_the_next_update)
    begin = time.monotonic()
    with pytest.raises(LearnerError, match="Learner 1 of 2 died") as error:
        algo.train()
    assert time.monotonic() - begin < 60
    assert "update() after weights version 1" in str(error.value)
    algo.stop()


@pytest.mark.slow
def test_remote_env_runners_get_whole_weights():
    made = config(2, LLMPPOConfig).env_runners(num_env_runners=1)
    algo = made.build_algo()

    def held(runner):
        module = runner.modules["default_policy"]
        tensors = module.shared_tensors(inference_only=True)
        return {n: tensor.detach().numpy().copy() for n, tensor in tensors.items()}

    def on_runner():
        limit = algo.config.call_limit
        group = algo.env_runner_group
        return call_runners(group, held, limit=limit, version=None)[1]

    before = on_runner()
    algo.train()
    after, learned = on_runner(), state_of(algo)["rl_module"]["default_policy"]
    changed = [n for n in after if not np.array_equal(after[n], before[n])]
    assert changed
    for name, value in after.items():
        assert np.array_equal(value, learned[name]), name
    algo.stop()
