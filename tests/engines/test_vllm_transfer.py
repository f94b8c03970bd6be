"""TransferEngine with a vLLM that records its calls: order, memory, failures."""

from __future__ import annotations

import pytest
import torch

from rllib_llm.engines import TransferEngine, VLLMEngine, vllm_engine, vllm_setup
from rllib_llm.engines.base import SamplingParams
from rllib_llm.engines.vllm_process import Live
from rllib_llm.errors import ModelError

BUCKETS = [{"names": ["a", "b"]}, {"names": ["c"]}]


class RecordedLLM:
    """vLLM's LLMEngine as far as weights and memory go."""

    def __init__(self):
        self.calls, self.failing, self.sampled = [], None, []
        self.model_config = self

    def collective_rpc(self, method, kwargs):
        self.calls.append((method, *kwargs.values()) if kwargs else method)
        if method == self.failing:
            self.failing = None
            raise RuntimeError(f"{method} failed")

    def sleep(self, level):
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags):
        self.calls += [f"wake {tag}" for tag in tags]

    def reset_prefix_cache(self, reset_running_requests):
        self.calls.append("reset_prefix_cache")

    def apply_model(self, function):
        self.calls.append("apply_model")

    def get_vocab_size(self):
        return 9

    def add_request(self, name, prompt, params, lora_request):
        self.sampled.append(prompt["prompt_token_ids"])


@pytest.fixture
def llm(monkeypatch):
    """Let engines of this process use a RecordedLLM."""
    llm = RecordedLLM()
    live = Live(llm, {})
    monkeypatch.setattr(vllm_setup, "check_engine_kwargs", lambda *_, **__: None)
    monkeypatch.setattr(vllm_engine, "start_vllm", lambda settings: live)
    monkeypatch.setattr(vllm_engine, "running", lambda: live)
    monkeypatch.setattr(vllm_engine, "_vllm_params", lambda *_: None)
    return llm


@pytest.fixture
def engine(llm):
    engine = TransferEngine(
        "folder", backend="nccl", max_slots=2, max_context_tokens=64, sleeps=True
    )
    engine.start()
    engine.open("s")
    return engine


def transfer(engine, version):
    engine.start_weight_update()
    for bucket in BUCKETS:
        engine.receive_weights(bucket)
    engine.finish_weight_update(version)


def submit(engine):
    params = SamplingParams(max_new_tokens=4, seed=0)
    number = engine.submit("s", [1, 2], params, extends=False)
    engine._requests.pop(number)
    engine._sessions["s"].request = None


SENT = [
    "start_weight_update",
    ("update_weights", BUCKETS[0]),
    ("update_weights", BUCKETS[1]),
    "finish_weight_update",
    "reset_prefix_cache",
]


def test_nothing_is_sampled_before_the_first_transfer(engine, llm):
    with pytest.raises(ModelError, match="no complete weights"):
        submit(engine)
    engine.init_weight_transfer({"rank_offset": 1})
    transfer(engine, 3)
    submit(engine)
    assert llm.calls == [("init_weight_transfer_engine", {"rank_offset": 1}), *SENT]
    assert engine.weights_version == 3
    assert llm.sampled == [[1, 2]]


def test_memory_of_the_weights_is_back_for_a_transfer_and_the_cache_s_after_it(
    engine, llm
):
    transfer(engine, 0)
    llm.calls.clear()
    engine.sleep()
    transfer(engine, 1)
    submit(engine)
    assert llm.calls == ["sleep 2", "wake weights", *SENT, "wake kv_cache"]


def test_a_sleeping_engine_does_not_sample_with_the_weights_it_has_dropped(engine, llm):
    transfer(engine, 0)
    engine.sleep()
    with pytest.raises(ModelError, match="no complete weights"):
        submit(engine)
    transfer(engine, 1)
    submit(engine)
    assert llm.calls.count("wake weights") == llm.calls.count("wake kv_cache") == 1


@pytest.mark.parametrize("call", ["init_weight_transfer_engine", "start_weight_update"])
def test_the_old_version_serves_after_a_failure_before_weights_arrive(
    engine, llm, call
):
    transfer(engine, 7)
    llm.calls.clear()
    llm.failing = call
    with pytest.raises(RuntimeError, match=call):
        if call == "start_weight_update":
            transfer(engine, 8)
        else:
            engine.init_weight_transfer({})
    submit(engine)
    assert engine.weights_version == 7
    if call == "start_weight_update":
        # vLLM has set old weights aside, and finishing without new ones restores them.
        assert llm.calls == [call, call, "finish_weight_update"]
    transfer(engine, 8)
    assert engine.weights_version == 8


@pytest.mark.parametrize("call", ["update_weights", "finish_weight_update"])
def test_parts_of_two_versions_are_not_sampled_with(engine, llm, call):
    transfer(engine, 7)
    llm.failing = call
    with pytest.raises(RuntimeError, match=call):
        transfer(engine, 8)
    assert engine.weights_version == 7
    with pytest.raises(ModelError, match="after version 7"):
        submit(engine)
    transfer(engine, 8)
    submit(engine)
    assert engine.weights_version == 8


def test_weights_from_memory_are_refused(engine):
    with pytest.raises(ModelError, match=r"Version 4.*rollouts\.weight_sync"):
        engine.update_weights([("a", torch.ones(1))], 4)


# Weights from memory -----------------------------------------------------------------


@pytest.fixture
def from_memory(llm, monkeypatch):
    monkeypatch.setattr(
        VLLMEngine, "_checkpoint_format", lambda self: lambda source: list(source)
    )
    engine = VLLMEngine("folder", max_slots=2, max_context_tokens=64, sleeps=True)
    engine.open("s")
    return engine


def test_weights_from_memory_are_loaded_between_the_two_wake_ups(from_memory, llm):
    from_memory.update_weights([("a", torch.zeros(1))], 0)
    submit(from_memory)
    llm.calls.clear()
    from_memory.sleep()
    new = ("a", torch.ones(1))
    from_memory.update_weights([new], 1)
    submit(from_memory)
    loaded = [("reload_weights", [new]), "apply_model", "reset_prefix_cache"]
    assert llm.calls == ["sleep 2", "wake weights", *loaded, "wake kv_cache"]


def test_a_request_loads_dropped_weights_again(from_memory, llm):
    old = ("a", torch.zeros(1))
    from_memory.update_weights([old], 0)
    submit(from_memory)
    from_memory.sleep()
    llm.calls.clear()
    submit(from_memory)
    assert llm.calls[:2] == ["wake weights", ("reload_weights", [old])]
    assert llm.calls[-1] == "wake kv_cache"


def test_weights_that_only_vllm_has_are_kept(llm):
    engine = VLLMEngine(
        "folder",
        max_slots=2,
        max_context_tokens=64,
        sleeps=True,
        lora={"rank": 4, "alpha": 8},
    )
    engine.open("s")
    submit(engine)
    llm.calls.clear()
    engine.sleep()
    submit(engine)
    assert llm.calls == ["sleep 1", "wake weights", "wake kv_cache"]
