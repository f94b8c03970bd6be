"""Weights sent from Learners to the engine, over gloo in place of NCCL."""

from __future__ import annotations

import functools
import sys
import threading

import gloo_transfer
import pytest
import ray
import torch
from gloo_transfer import GlooSend, ReceivingEngine, buckets
from learner_helpers import make_learner

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.config import validation
from rllib_llm.algorithms.driver import weight_transfer
from rllib_llm.algorithms.learner.weight_transfer import HostClient, ModuleWeights
from rllib_llm.engines import ActorEngine
from rllib_llm.engines.checkpoint_format import CheckpointFormat
from rllib_llm.errors import CallTimeoutError
from rllib_llm.modules.loading import load_causal_lm
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.remote_calls import TimeLimit

for module in (gloo_transfer, sys.modules[__name__]):
    ray.cloudpickle.register_pickle_by_value(module)

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}


def config():
    return (
        TransferConfig()
        .environment("guess_number-v0")
        .language_model(tiny=TINY)
        .generation(max_new_tokens=4, max_context_tokens=256)
        .rollouts(episodes_per_iteration=8, group_size=4)
        .training(lr=1e-2, drop_zero_variance_groups=False)
        .env_runners(num_env_runners=1, num_envs_per_env_runner=4)
        .evaluation(evaluation_interval=None)
    )


def build_receiving(folder, context):
    model = load_causal_lm(folder)
    # Random weights, as vLLM's: only those that arrive may be sampled with.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return ReceivingEngine(model, max_slots=8, max_context_tokens=context)


class TransferConfig(GRPOConfig):
    """Builds a torch engine in the actor in place of vLLM."""

    def build_generation_engine(self, module=None):
        context = self.resolved_context_tokens()
        return ActorEngine(
            functools.partial(build_receiving, self.resolved_model, context),
            name=self.engine_actor,
            max_context_tokens=context,
            has_tokenizer=True,
            limit=self.call_limit,
            from_learners=True,
        )


@pytest.fixture
def over_gloo(monkeypatch, ray_session):
    """Let transfers go over gloo to a torch engine."""
    monkeypatch.setattr(validation, "validate_engine", lambda config: None)
    monkeypatch.setattr(weight_transfer, "SendWeights", GlooSend)
    monkeypatch.setattr(
        weight_transfer, "build_engine", lambda c: c.build_generation_engine()
    )


# The weights -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learner():
    given = GRPOConfig().environment("guess_number-v0").language_model(tiny=TINY)
    given.resolved_model = prepare_language_model(given)
    return make_learner(given)


def test_what_is_described_is_what_is_sent(learner):
    module = learner.module["default_policy"].unwrapped()
    convert = CheckpointFormat(learner.config.resolved_model)
    sent = ModuleWeights(module, convert, dtype="bfloat16", device="cpu")
    pairs = list(sent)
    described = [(d.name, d.dtype, d.shape) for d in sent.metadata()]
    assert described == [(n, t.dtype, tuple(t.shape)) for n, t in pairs]
    assert {t.dtype for _, t in pairs} == {torch.bfloat16}
    assert sent.num_bytes == sum(2 * t.numel() for _, t in pairs)
    ours = {n.removeprefix("lm."): p for n, p in module.named_parameters()}
    files = dict(convert((n, p) for n, p in ours.items() if n in dict(pairs)))
    assert files.keys() == dict(pairs).keys()
    for name, tensor in pairs:
        torch.testing.assert_close(tensor, files[name].bfloat16())


def test_buckets_hold_at_most_their_size_and_every_tensor_once(learner):
    module = learner.module["default_policy"].unwrapped()
    convert = CheckpointFormat(learner.config.resolved_model)
    described = ModuleWeights(module, convert, dtype=None, device="cpu").metadata()
    plan = buckets(described, 2**14)
    assert [item for bucket in plan for item in bucket] == described
    assert len(plan) > 2


# The way -----------------------------------------------------------------------------


class Silent:
    """An actor's handle whose calls never return."""

    def __getattr__(self, name):
        return self

    def remote(self, *arguments):
        return ray.put(None) if arguments == (7,) else _never.remote()


@ray.remote(num_cpus=0)
def _never():
    threading.Event().wait()


@pytest.mark.ray
def test_a_call_that_does_not_return_names_the_call_and_the_version(ray_session):
    client = HostClient(Silent(), TimeLimit(0.2, "fault_tolerance.call_timeout_s"))
    client.version = 7
    client.finish_weight_update("ignored")
    with pytest.raises(
        CallTimeoutError, match=r"start_weight_update\(\) with weights version 7"
    ):
        client.start_weight_update()


def log_of(algo):
    """Return the calls for weights that the engine has received, and its buckets."""
    host = ray.get_actor(algo.config.engine_actor)
    calls, seen = ray.get(host.__ray_call__.remote(_log))
    return [call for call in calls if call != "start"], seen


def _log(host):
    return host._engine.log.calls, host._engine.receiver.seen


def _fail_next(host, call):
    def fail(*_):
        del host._engine.__dict__[call]  # once
        raise RuntimeError(f"{call} of bucket 3")

    setattr(host._engine, call, fail)


@pytest.mark.ray
@pytest.mark.slow
def test_sharded_learners_send_every_version_before_it_is_sampled_with(
    over_gloo, tmp_path
):
    given = config().learners(num_learners=2, sharding="fsdp2")
    given.rollouts(weight_sync="nccl", weight_sync_bucket_mib=1)
    algo = given.build_algo()
    for _ in range(2):
        result = algo.train()
        learner = result["learners"]["default_policy"]
        assert learner["train_inference_mismatch_max"] < 1e-3
        assert result["weight_sync_mib"] > 0
    calls, seen = log_of(algo)
    sends = [["begin", "receive", f"finish {version}"] for version in range(3)]
    assert calls == ["init", *sum(sends, [])]
    names = {name for bucket in seen for name in bucket}
    assert "model.layers.1.mlp.up_proj.weight" in names
    assert len(seen) == 3 * len({tuple(bucket) for bucket in seen})
    saved = algo.save_to_path(str(tmp_path))
    algo.stop()

    # A restored run sends before it samples: ReceivingEngine refuses otherwise.
    again = given.copy(copy_frozen=False).build_algo()
    again.restore_from_path(saved)
    calls, _ = log_of(again)
    assert calls[0] == "init"
    assert calls[-1] == "finish 2"
    result = again.train()["learners"]["default_policy"]
    assert result["train_inference_mismatch_max"] < 1e-3
    again.stop()


@pytest.mark.ray
@pytest.mark.slow
def test_a_failing_transfer_names_the_call_and_keeps_the_old_version(over_gloo):
    algo = config().rollouts(weight_sync="nccl").build_algo()
    algo.train()
    host = ray.get_actor(algo.config.engine_actor)
    fail = functools.partial(_fail_next, call="start_weight_update")
    ray.get(host.__ray_call__.remote(fail))
    with pytest.raises(Exception, match="start_weight_update of bucket 3"):
        algo.train()
    # The engine goes on with version 1, and the next transfer succeeds.
    assert log_of(algo)[0][-1] == "finish 1"
    algo.train()
    assert log_of(algo)[0][-1] == "finish 3"
    algo.stop()
