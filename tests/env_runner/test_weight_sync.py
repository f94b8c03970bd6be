"""Weight transfer to remote EnvRunners: one put per version, only changed weights."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import ray
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.actor_manager import RemoteCallResults, ResultOrError
from runner_helpers import TINY, Countdown, make_runner

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.driver.weight_sync import WeightSync
from rllib_llm.errors import CheckpointError, ConfigError
from rllib_llm.remote_calls import TimeLimit
from rllib_llm.weights import pack

pytestmark = pytest.mark.ray
LIMIT = TimeLimit(60.0, "a setting")
EMBEDDING = "lm.model.embed_tokens.weight"


class FakeLearners:
    """Stands for a LearnerGroup with one local Learner and the module of ``runner``."""

    is_local = True

    def __init__(self, runner):
        self.unwrapped = lambda: runner.module
        self.module = {DEFAULT_MODULE_ID: self}
        self.config = runner.config
        self._weights_seq_no = 0

    def foreach_learner(self, call, remote_actor_ids):
        results = RemoteCallResults()
        results.add_result(0, ResultOrError(result=call(self)), None)
        return results

    def update(self):
        """Change every parameter, frozen ones too, so that each transfer shows."""
        self._weights_seq_no += 1
        with torch.no_grad():
            for parameter in self.unwrapped().parameters():
                parameter += 0.1


class FakeRunners:
    """Stands for an EnvRunnerGroup; its remote runners are in this process."""

    def __init__(self, *runners):
        self.runners = dict(enumerate(runners, 1))

    def healthy_env_runner_ids(self):
        return list(self.runners)

    def foreach_env_runner(
        self, calls, *, local_env_runner, remote_worker_ids, timeout_seconds
    ):
        assert timeout_seconds == LIMIT.seconds
        pairs = zip(calls, remote_worker_ids, strict=True)
        return [call(self.runners[i]) for call, i in pairs]


@pytest.fixture
def groups(ray_session):
    learners = FakeLearners(make_runner(Countdown))
    runners = [make_runner(Countdown, worker_index=i) for i in (1, 2)]
    return learners, FakeRunners(*runners)


def send(learners, runners, dtype=None):
    sync = WeightSync(learners, dtype=dtype, limit=LIMIT)
    sent = sync.send(runners, also_local=False)
    assert sent.version == learners._weights_seq_no
    return sent.mib


def parameters(runner):
    return runner.module.shared_tensors(inference_only=True)


def mib(tensors):
    return sum(t.nbytes for t in tensors.values()) / 2**20


def test_weights_are_put_once_per_version_for_all_runners(groups, monkeypatch):
    learners, runners = groups
    puts, put = [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: puts.append(1) or put(value))
    for runner in runners.runners.values():
        runner.has_all_weights = True
    for version in (1, 2):
        learners.update()
        source = learners.unwrapped().shared_tensors(inference_only=True)
        assert send(learners, runners) == pytest.approx(mib(source))
        assert len(puts) == version
        for runner in runners.runners.values():
            assert runner.engine.weights_version == version
            for name, tensor in parameters(runner).items():
                assert torch.equal(tensor, source[name]), name


def test_frozen_parameters_are_sent_once_per_runner(groups):
    learners, runners = groups
    source = learners.unwrapped().shared_tensors(inference_only=True)
    source[EMBEDDING].requires_grad_(False)
    moving = {n: t for n, t in source.items() if n != EMBEDDING}
    learners.update()
    # New runners report that they lack weights and receive all of them.
    assert send(learners, runners) == pytest.approx(mib(moving) + mib(source))
    first = source[EMBEDDING].clone()
    learners.update()
    assert send(learners, runners) == pytest.approx(mib(moving))
    for runner in runners.runners.values():
        theirs = parameters(runner)
        assert torch.equal(theirs[EMBEDDING], first)
        assert all(torch.equal(theirs[n], moving[n]) for n in moving)
    # Only the restarted runner receives all weights again.
    runners.runners[2] = make_runner(Countdown, worker_index=2)
    learners.update()
    assert send(learners, runners) == pytest.approx(mib(moving) + mib(source))
    assert torch.equal(parameters(runners.runners[1])[EMBEDDING], first)
    assert torch.equal(parameters(runners.runners[2])[EMBEDDING], source[EMBEDDING])


def test_weights_are_sent_as_bfloat16(groups):
    learners, runners = groups
    learners.update()
    source = learners.unwrapped().shared_tensors(inference_only=True)
    send(learners, runners)
    assert send(learners, runners, "bfloat16") == pytest.approx(mib(source) / 2)
    for runner in runners.runners.values():
        for name, tensor in parameters(runner).items():
            assert tensor.dtype == torch.float32
            assert torch.equal(tensor, source[name].bfloat16().float()), name


def test_a_runner_has_all_weights_after_a_message_with_every_one(groups):
    learners, runners = groups
    runner = runners.runners[1]
    every = learners.unwrapped().shared_tensors(inference_only=True)
    for names, has_all in ((list(every)[1:], False), (list(every), True)):
        part = pack({name: every[name] for name in names})
        runner.receive_weights({DEFAULT_MODULE_ID: part}, 1)
        assert runner.has_all_weights is has_all


def test_weights_of_another_model_are_refused(groups):
    _, runners = groups
    runner = runners.runners[1]
    before = parameters(runner)[EMBEDDING].clone()
    with pytest.raises(CheckpointError, match=r"no_such\.weight"):
        unknown = pack({"no_such.weight": torch.ones(2)})
        runner.receive_weights({DEFAULT_MODULE_ID: unknown}, 1)
    with pytest.raises(CheckpointError, match=EMBEDDING):
        runner.receive_weights({DEFAULT_MODULE_ID: pack({EMBEDDING: torch.ones(2)})}, 1)
    assert torch.equal(parameters(runner)[EMBEDDING], before)
    assert runner.engine.weights_version == 0


def test_an_unknown_weight_sync_dtype_is_refused():
    config = LLMPPOConfig().environment(Countdown).language_model(tiny=TINY)
    with pytest.raises(ConfigError, match="weight_sync_dtype='float8'"):
        config.rollouts(weight_sync_dtype="float8").validate()


@pytest.mark.slow
def test_remote_runners_follow_and_a_restarted_one_gets_everything(ray_session):
    algo = (
        LLMPPOConfig()
        .environment("guess_number-v0", env_config={"upper": 3, "max_turns": 2})
        .language_model(tiny=TINY)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=4)
        .generation(max_new_tokens=4)
        .rollouts(episodes_per_iteration=8)
    ).build_algo()
    learner = algo.learner_group._learner
    group = algo.env_runner_group

    def read(runner):  # local, so that other processes need not import this file
        weights = runner.module.get_state(inference_only=True)
        return runner.engine.weights_version, runner.has_all_weights, weights

    def check():
        mine = learner.module[DEFAULT_MODULE_ID].get_state(inference_only=True)
        states = group.foreach_env_runner(read, local_env_runner=False)
        assert len(states) == 2
        for version, has_all, theirs in states:
            assert version == learner._weights_seq_no and has_all
            assert all(np.array_equal(mine[name], theirs[name]) for name in mine)

    result = algo.train()
    assert result["weight_sync_mib"] > 0 and result["timers"]["synch_weights"] > 0
    check()
    group.foreach_env_runner(
        lambda runner: os._exit(1), local_env_runner=False, remote_worker_ids=[1]
    )
    deadline = time.time() + 60
    while group.num_healthy_remote_workers() < 2 and time.time() < deadline:
        algo.restore_env_runners(group)
        time.sleep(0.2)
    check()
    algo.train()
    check()
    algo.stop()
