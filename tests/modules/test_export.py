"""Exported folders: loaded with Hugging Face's classes, with equal scores."""

from __future__ import annotations

import json
import os
import stat

import pytest
import torch
from hf_folders import FAMILIES, make_tokenizer, write_folder
from module_helpers import (
    LORA,
    family_module,
    make_module,
    plain_scores,
    random_rows,
    scores_of,
    step,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllib_llm.errors import ConfigError


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_merged_export_equals_the_policy(tmp_path, family, lora):
    module, rows = family_module(tmp_path / "model", family, lora=lora), random_rows()
    step(module, rows)
    ours, _ = scores_of(module, rows)
    module.save_model(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    theirs, _ = plain_scores(loaded, rows)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        ids = rows["input_ids"][:1, :9]
        logits = loaded(ids).logits - module.lm(ids).logits
    assert logits.abs().max() < 1e-5
    assert torch.equal(scores_of(module, rows)[0], ours)  # unchanged by the export
    assert not any("lora" in n or "base_layer" in n for n in loaded.state_dict())


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_export_equals_the_policy_on_its_base(tmp_path, family):
    from peft import PeftModel

    folder = write_folder(tmp_path / "model", family)
    module, rows = make_module(folder, lora=LORA), random_rows()
    step(module, rows)
    module.save_model(tmp_path / "out", merged=False)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(folder)
    loaded = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    with torch.no_grad():
        ids = rows["input_ids"][:1, :9]
        gap = (loaded(input_ids=ids).logits - module.lm(ids).logits).abs().max()
    assert gap < 1e-5
    theirs, _ = plain_scores(loaded, rows)
    torch.testing.assert_close(scores_of(module, rows)[0], theirs, atol=1e-5, rtol=1e-5)
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == folder
    assert settings["r"] == LORA["rank"]


def test_an_adapter_of_a_policy_without_one_is_refused(tmp_path):
    module = family_module(tmp_path / "model", "qwen2")
    with pytest.raises(ConfigError, match="without LoRA. Export it merged"):
        module.save_model(tmp_path / "out", merged=False)


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("llama_tied", True)])
def test_tied_embeddings_stay_tied(tmp_path, family, tied, lora):
    module = family_module(tmp_path / "model", family, lora=lora)
    step(module, random_rows())
    module.save_model(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.config.tie_word_embeddings == tied
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2"])
def test_the_tokenizer_is_exported(tmp_path, family, merged):
    module = family_module(tmp_path / "model", family, lora=LORA)
    module.save_model(tmp_path / "out", merged=merged)
    ours, theirs = (
        make_tokenizer(family),
        AutoTokenizer.from_pretrained(tmp_path / "out"),
    )
    text = "Guess: 12, too \u20ac low\n<|im_end|><end_of_turn><|eot_id|>"
    assert theirs(text)["input_ids"] == ours(text)["input_ids"]
    assert theirs.chat_template == ours.chat_template
    assert theirs.special_tokens_map == ours.special_tokens_map


@pytest.mark.parametrize("merged", [True, False], ids=["merged", "adapter"])
def test_all_files_have_the_permissions_of_new_files(tmp_path, merged):
    module = family_module(tmp_path / "model", "qwen3", lora=LORA)
    before = os.umask(0o027)
    try:
        module.save_model(tmp_path / "out", merged=merged)
    finally:
        os.umask(before)
    files = list((tmp_path / "out").iterdir())
    assert any(f.suffix == ".safetensors" for f in files)
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o640}


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_bfloat16_stays_bfloat16(tmp_path, lora):
    module = family_module(tmp_path / "model", "qwen2", dtype="bfloat16", lora=lora)
    module.save_model(tmp_path / "out")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded.model.norm.weight, module.lm.model.norm.weight)


def test_an_export_can_be_trained(tmp_path):
    module, rows = family_module(tmp_path / "model", "qwen2", lora=LORA), random_rows()
    step(module, rows)
    module.save_model(tmp_path / "out")
    again = make_module(str(tmp_path / "out"))
    torch.testing.assert_close(
        scores_of(again, rows)[0], scores_of(module, rows)[0], atol=1e-5, rtol=1e-5
    )
