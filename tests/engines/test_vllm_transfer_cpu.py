"""TransferEngine with vLLM itself on a CPU, over gloo in place of NCCL."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_reference import build_model, make_engine, random_prompts, turn_params
from gloo_transfer import Receiver, Sender

from rllib_llm.algorithms.learner.weight_transfer import Described
from rllib_llm.engines import TransferEngine, generate
from rllib_llm.errors import ModelError

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def gloo_backend():
    """Register a transport that needs no GPU beside vLLM's own ones."""
    from rllib_llm.engines import vllm_setup

    vllm_setup.prepare_environment()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    class GlooEngine(NCCLWeightTransferEngine):
        """vLLM's NCCL engine with its own start and finish, and another wire."""

        def parse_init_info(self, init_dict):
            return init_dict

        def init_transfer_engine(self, init_info):
            self.receiver = Receiver(self.model.load_weights)
            self.receiver.init_weight_transfer(init_info)

        def update_weights(self, update_info):
            if update_info.get("fails"):
                raise RuntimeError("the wire broke")
            self.receiver.receive_weights(update_info)

    WeightTransferEngineFactory.register_engine("gloo", GlooEngine)


class Client:
    """Calls an engine of this process."""

    def __init__(self, engine):
        self.engine, self.version, self.fails = engine, 0, False
        self.init_weight_transfer_engine = engine.init_weight_transfer
        self.start_weight_update = engine.start_weight_update

    def update_weights(self, update_info):
        self.engine.receive_weights(update_info | {"fails": self.fails})

    def finish_weight_update(self):
        self.engine.finish_weight_update(self.version)


class Weights:
    """A model's parameters."""

    def __init__(self, model):
        self.model = model

    def __iter__(self):
        return ((n, p.detach()) for n, p in self.model.named_parameters())

    def metadata(self):
        return [Described(n, p.dtype, tuple(p.shape)) for n, p in self]


@torch.no_grad()
def test_transferred_weights_sample_what_the_torch_engine_samples(tmp_path):
    models = [build_model("qwen3", seed, head_dim=32) for seed in (1, 2)]
    models[0].save_pretrained(tmp_path)
    engine = TransferEngine(
        str(tmp_path),
        backend="gloo",
        max_slots=8,
        max_context_tokens=200,
        engine_kwargs={"kv_cache_memory_bytes": 2**26},
    )
    engine.start()
    prompts = random_prompts(4)
    greedy = [turn_params(i, 16, temperature=0.0) for i in range(4)]
    with pytest.raises(ModelError, match="no complete weights"):
        generate(engine, prompts, greedy)
    client = Client(engine)
    sender = Sender(SimpleNamespace(bucket_bytes=2**13), 0, client, Weights(models[0]))
    for version, model in enumerate(models):
        client.version, sender.source = version, Weights(model)
        sender.send_weights()
        ours = generate(engine, prompts, greedy)
        theirs = generate(make_engine(model), prompts, greedy)
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one.token_ids, two.token_ids)
            np.testing.assert_allclose(one.logps, two.logps, atol=1e-4)
            assert one.weights_version == version

    # vLLM puts back what it had set aside, if nothing has arrived.
    engine.start_weight_update()
    engine._call("finish_weight_update")
    engine._drop_cached(engine._hold())
    again = generate(engine, prompts, greedy)
    for one, two in zip(again, ours, strict=True):
        np.testing.assert_array_equal(one.token_ids, two.token_ids)
        np.testing.assert_allclose(one.logps, two.logps, atol=1e-6)
