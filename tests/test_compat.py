"""Private touch points with other libraries."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
import torch
from torch import nn

from rllib_llm import compat

TOUCH_POINTS = [
    (path, name) for path, names in compat.RLLIB_TOUCH_POINTS.items() for name in names
]


@pytest.mark.parametrize(("path", "name"), TOUCH_POINTS)
def test_rllib_still_has_it(path, name):
    module, _, class_name = path.rpartition(".")
    cls = getattr(importlib.import_module(module), class_name)
    is_set_there = re.search(rf"self\.{name}\b", inspect.getsource(cls))
    assert hasattr(cls, name) or is_set_there, f"{path} lost {name}"


def test_signatures_we_call_or_override():
    from ray.rllib.connectors.connector_v2 import ConnectorV2
    from ray.rllib.core.learner.learner import Learner
    from ray.rllib.core.learner.learner_group import LearnerGroup
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    expected = {
        Learner._create_iterator_if_necessary: ["training_data", "num_epochs"],
        Learner.register_optimizer: ["module_id", "optimizer_name", "params"],
        Learner.after_gradient_based_update: ["timesteps"],
        LearnerGroup.update: ["training_data", "timesteps"],
        EnvRunnerGroup.sync_weights: ["from_worker_or_learner_group", "policies"],
        EnvRunnerGroup.foreach_env_runner: ["local_env_runner", "remote_worker_ids"],
        ConnectorV2.single_agent_episode_iterator: ["agents_that_stepped_only"],
    }
    for function, names in expected.items():
        parameters = inspect.signature(function).parameters
        missing = set(names) - set(parameters)
        assert not missing, f"{function.__qualname__} lost {missing}"


def test_rllib_cannot_convert_bfloat16_itself():
    """The reason for rllib_llm.weights; if this fails, it may go."""
    from ray.rllib.utils.numpy import convert_to_numpy

    with pytest.raises(TypeError, match="BFloat16"):
        convert_to_numpy({"w": torch.zeros(2, dtype=torch.bfloat16)})


def test_rllib_deletes_what_is_not_needed_to_act():
    from ray.rllib.core.rl_module.torch import torch_rl_module

    source = inspect.getsource(torch_rl_module.TorchRLModule.__init__)
    assert "get_non_inference_attributes" in source


# peft ---------------------------------------------------------------------------------


@pytest.fixture
def adapted():
    """Return a linear layer with an adapter that is not zero."""
    from peft import LoraConfig, inject_adapter_in_model

    model = nn.Sequential(nn.Linear(4, 4))
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["0"]), model)
    nn.init.ones_(model[0].lora_B["default"].weight)
    return model


def test_an_adapter_is_switched_off_without_freezing_it(adapted):
    x = torch.randn(3, 4)
    layer = compat.lora_layers(adapted)[0]
    on, base = adapted(x), layer.get_base_layer()(x)
    assert not compat.is_lora_disabled(layer)
    compat.set_lora_disabled(layer, True)
    assert compat.is_lora_disabled(layer) and layer.disable_adapters
    assert torch.equal(adapted(x), base)
    assert layer.lora_A["default"].weight.requires_grad
    compat.set_lora_disabled(layer, False)
    assert torch.equal(adapted(x), on)
    assert not torch.equal(on, base)


def test_pefts_own_switch_freezes_the_adapter(adapted):
    """The reason for set_lora_disabled; if this fails, the public switch will do."""
    adapted[0].enable_adapters(False)
    assert not adapted[0].lora_A["default"].weight.requires_grad


def test_adapters_can_be_listed_merged_and_named(adapted):
    from peft import get_peft_model_state_dict

    x = torch.randn(3, 4)
    on = adapted(x)
    names = set(get_peft_model_state_dict(adapted, adapter_name="default"))
    assert names == {"0.lora_A.weight", "0.lora_B.weight"}
    adapted[0].merge()
    torch.testing.assert_close(adapted[0].get_base_layer()(x), on)


def test_a_plain_model_has_no_adapters():
    assert compat.lora_layers(nn.Linear(2, 2)) == []


# transformers -------------------------------------------------------------------------


def test_gpt2s_layers_are_conv1d():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=9, n_positions=4)
    block = GPT2LMHeadModel(config).transformer.h[0]
    assert isinstance(block.attn.c_attn, compat.conv1d_classes())
    assert not isinstance(nn.Linear(2, 2), compat.conv1d_classes())


def test_progress_bars_can_be_hidden_and_come_back():
    from transformers.utils import logging

    from rllib_llm.modules.loading import quiet_progress

    for enabled in (True, False):
        (logging.enable_progress_bar if enabled else logging.disable_progress_bar)()
        with quiet_progress():
            assert not logging.is_progress_bar_enabled()
        assert logging.is_progress_bar_enabled() == enabled
    logging.enable_progress_bar()


def test_gemma_caps_its_logits_under_the_name_we_read():
    from transformers import Gemma2Config

    assert Gemma2Config(final_logit_softcapping=7.0).final_logit_softcapping == 7.0


def test_architectures_of_gguf_files_are_listed():
    assert {"llama", "qwen2", "qwen3"} <= compat.gguf_architectures()
    assert "tokenizer" not in compat.gguf_architectures()
