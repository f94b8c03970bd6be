"""Architectures and precisions that are refused before a run."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from hf_folders import write_folder

from rllib_llm import LLMPPOConfig
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.context_length import model_context_length
from rllib_llm.modules.loading import load_causal_lm
from rllib_llm.modules.lora import add_lora
from rllib_llm.recipes.recipe import recipe_from_dict

MIXTURE = tf.Qwen3MoeConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    intermediate_size=32,
    moe_intermediate_size=16,
    num_experts=4,
    decoder_sparse_step=1,
)
EXPERTS = (
    r"'all-linear' would leave the experts of Qwen3MoeForCausalLM without adapters: "
    r"\d\d% of its weights.*experts.gate_up_proj.*target_modules: "
    r"\[k_proj, o_proj, q_proj, v_proj\]"
)


def config(model) -> LLMPPOConfig:
    return (
        LLMPPOConfig().environment("guess_number-v0").language_model(model=str(model))
    )


def test_all_linear_with_experts_is_refused():
    with torch.device("meta"):
        model = tf.AutoModelForCausalLM.from_config(MIXTURE)
    with pytest.raises(ModelError, match=EXPERTS):
        add_lora(model, {"rank": 4})
    add_lora(model, {"rank": 4, "target_modules": ["q_proj"]})


def test_all_linear_with_experts_is_refused_in_validate(tmp_path):
    MIXTURE.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()  # never read
    settings = config(tmp_path).language_model(lora={"rank": 4})
    with pytest.raises(ModelError, match=EXPERTS):
        settings.validate()
    settings.language_model(lora={"rank": 4, "target_modules": ["q_proj", "v_proj"]})
    settings.validate()


@pytest.mark.parametrize("kind", [tf.T5Config])
def test_models_that_are_not_causal_language_models_are_refused(kind, tmp_path):
    kind().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()  # never read
    message = f"is of type '{kind.model_type}', which transformers does not load as"
    with pytest.raises(ModelError, match=message) as caught:
        config(tmp_path).validate()
    assert len(str(caught.value)) < 500
    for load in (load_causal_lm, model_context_length):
        with pytest.raises(ModelError, match=message):
            load(str(tmp_path))


def test_dense_models_pass_with_all_linear(tmp_path):
    folder = write_folder(tmp_path, "qwen3")
    config(folder).language_model(lora={"rank": 4}).validate()


def test_float16_is_refused():
    with pytest.raises(ConfigError, match=r"dtype='float16'.*loss scaled"):
        config("tiny").language_model(dtype="float16").validate()


def test_a_list_of_environments_in_a_recipe_is_refused():
    recipe = {"algo": "GRPO", "env": ["frozen_lake-v0", "countdown-v0"]}
    with pytest.raises(ConfigError, match=r"env: \['frozen.*must be one name, e\.g\."):
        recipe_from_dict({**recipe, "stop": {"training_iteration": 1}})
    with pytest.raises(ConfigError, match=r"The field 'env' is missing"):
        recipe_from_dict({"algo": "GRPO"})
