"""vLLM against the policy: experts, renamed weights, old file formats, LoRA."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers as tf
from engine_reference import VOCAB, build_model, random_prompts, turn_params

from rllib_llm.engines import VLLMEngine, generate
from rllib_llm.errors import ModelError
from rllib_llm.modules.lora import add_lora, is_adapter

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow

LORA = {"rank": 4, "alpha": 16, "target_modules": ["q_proj", "v_proj", "o_proj"]}
# vLLM's attention on CPUs needs heads of size 32.
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
EXPERTS = {
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
}
FAMILIES = {
    "qwen3_moe": (tf.Qwen3MoeConfig, EXPERTS),
    "mixtral": (tf.MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def build(family: str, seed: int) -> torch.nn.Module:
    config_class, settings = FAMILIES[family]
    torch.manual_seed(seed)
    config = config_class(**SIZES, **settings)
    return tf.AutoModelForCausalLM.from_config(config).eval()


def make_vllm(folder, **settings) -> VLLMEngine:
    return VLLMEngine(
        str(folder),
        max_slots=8,
        max_context_tokens=100,
        engine_kwargs={"kv_cache_memory_bytes": 2**26},
        **settings,
    )


@torch.no_grad()
def check(vllm, model, known: int = VOCAB) -> None:
    """Compare sampled tokens' log-probabilities with those of a full forward."""
    prompts, params = random_prompts(4), [turn_params(i, 20) for i in range(4)]
    for prompt, result in zip(prompts, generate(vllm, prompts, params), strict=True):
        tokens = result.token_ids.tolist()
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0]
        logps = torch.log_softmax(logits[len(prompt) - 1 : -1, :known], -1)
        assert max(tokens) < known
        expected = logps[range(len(tokens)), tokens].numpy()
        np.testing.assert_allclose(result.logps, expected, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_are_synced_in_the_format_of_files(family, tmp_path):
    model = build(family, 0)
    model.save_pretrained(tmp_path)
    vllm = make_vllm(tmp_path)
    check(vllm, model)
    for version in range(1, 4):  # the first update has the initial values
        vllm.update_weights(model.named_parameters(), version)
        check(vllm, model)
        model = build(family, version)
        vllm.update_weights(model.named_parameters(), 10 + version)
        check(vllm, model)


def test_adapters_on_a_base_model_from_a_pytorch_file(tmp_path):
    base = build_model("qwen3", 3, head_dim=32)
    base.config.architectures = [type(base).__name__]
    base.config.save_pretrained(tmp_path)
    torch.save(base.state_dict(), tmp_path / "pytorch_model.bin")
    adapted = copy.deepcopy(base)
    add_lora(adapted, LORA)
    adapter = [(n, p) for n, p in adapted.named_parameters() if is_adapter(n)]
    vllm = make_vllm(tmp_path, lora=LORA)
    vllm.update_weights(adapter, 0)
    check(vllm, base)
    with torch.no_grad():
        for _, tensor in adapter:
            tensor += 0.05 * torch.randn_like(tensor)
    vllm.update_weights(adapter, 1)
    check(vllm, adapted)


def test_adapters_without_base_weights_are_refused(tmp_path):
    build_model("qwen3", 3).config.save_pretrained(tmp_path)
    vllm = make_vllm(tmp_path, lora=LORA)
    with pytest.raises(ModelError, match="no weights; LoRA adapters need a base model"):
        generate(vllm, [[1]], [turn_params(0)])


def test_adapters_of_experts_are_refused_on_a_cpu(tmp_path):
    base = build("qwen3_moe", 0)
    base.save_pretrained(tmp_path)
    add_lora(base, LORA)
    vllm = make_vllm(tmp_path, lora=LORA)
    vllm.update_weights(
        [(n, p) for n, p in base.named_parameters() if is_adapter(n)], 0
    )
    with pytest.raises(ModelError, match="LoRA adapters of the mixture of experts"):
        generate(vllm, [[1]], [turn_params(0)])


def test_ids_beyond_the_vocabulary_are_not_sampled(tmp_path):
    model = build_model("qwen3", 3, head_dim=32)
    model.save_pretrained(tmp_path)
    vllm = make_vllm(tmp_path, vocabulary=70)
    vllm.update_weights(model.named_parameters(), 0)
    check(vllm, model, known=70)
    greedy = turn_params(0, 20, temperature=0.0)
    (result,) = generate(vllm, [[1, 2]], [greedy])
    assert result.token_ids.max() < 70
