"""Reward models of all families as classifiers of transformers."""

from __future__ import annotations

import pytest
import torch
from hf_folders import FAMILIES, write_folder
from module_helpers import LORA
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.architectures import read_config
from rllib_llm.modules.classifiers import Classifier, check_classifier
from rllib_llm.modules.reward_model import RewardRLModule

WITHOUT = ("cohere", "granite")  # no class ...ForSequenceClassification
CHAT = [
    {"role": "user", "content": "Guess a number."},
    {"role": "assistant", "content": "3"},
]


def reward_module(folder, lora=None):
    module = RewardRLModule(
        observation_space=UnicodeText(),
        action_space=UnicodeText(),
        inference_only=False,
        model_config={
            "model": folder,
            "dtype": "float32",
            "lora": lora,
            "value_head": {"kind": "linear", "detach": False, "bias": False},
            "value_model": "shared",
            "reference": False,
            "temperature": 1.0,
            "init_seed": 0,
        },
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:  # head and, under LoRA, adapters start at 0
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += (0.3 if "value_head" in name else 0.05) * noise
    return module


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(WITHOUT)))
def test_an_export_scores_as_the_module(tmp_path, family, lora):
    module = reward_module(write_folder(tmp_path / "model", family), lora)
    trained = [n for n, p in module.named_parameters() if p.requires_grad]
    assert any("lora_" in n for n in trained) == (lora is not None)
    module.save_model(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    inputs = tokenizer.apply_chat_template(
        CHAT, tokenize=True, return_dict=True, return_tensors="pt"
    )
    ids = inputs["input_ids"][0].tolist()
    assert ids == ChatRenderer(tokenizer, history="rerender").conversation(CHAT)
    with torch.no_grad():
        plain = float(model(**inputs).logits[0, 0])
    expected = module.score_of(ids)
    assert abs(expected) > 1e-2
    assert plain == pytest.approx(expected, abs=1e-4)
    both = Classifier(str(tmp_path / "out")).scores([ids, ids[:4]], 1000)
    assert both[0] == pytest.approx(expected, abs=1e-4)


def test_padding_is_never_the_token_that_ends_a_conversation(tmp_path):
    folder = write_folder(tmp_path / "model", "llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token  # as many checkpoints have it
    tokenizer.save_pretrained(folder)
    reward_module(folder).save_model(tmp_path / "out")
    written = AutoTokenizer.from_pretrained(tmp_path / "out")
    last = ChatRenderer(written, history="rerender").conversation(CHAT)[-1]
    assert last == tokenizer.eos_token_id != written.pad_token_id


@pytest.mark.parametrize("family", WITHOUT)
def test_architectures_without_a_classifier_are_refused(tmp_path, family):
    folder = write_folder(tmp_path, family)
    with pytest.raises(ModelError, match="has no class ...ForSequenceClassification"):
        check_classifier(read_config(folder), folder)


def test_an_adapter_alone_is_refused(tmp_path):
    module = reward_module(write_folder(tmp_path / "model", "qwen2"))
    with pytest.raises(ConfigError, match="Leave --adapter out"):
        module.save_model(tmp_path / "out", merged=False)
