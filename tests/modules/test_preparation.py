"""Tiny model and cache of prepared models."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
import torch
from hf_folders import write_folder
from transformers import AutoModelForCausalLM, AutoTokenizer, Phi3Config

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.config.preflight import preflight
from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.context_length import model_context_length
from rllib_llm.modules.loading import load_causal_lm, load_tokenizer
from rllib_llm.modules.tiny import TINY_DEFAULTS, build_tokenizer
from rllib_llm.offline import prepare_model
from rllib_llm.offline.prepare_model import prepare_language_model

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Provide an empty cache folder for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("RLLIB_LLM_CACHE", str(folder))
    return folder


def config(**tiny) -> LLMPPOConfig:
    """Return a config with a small tiny model."""
    return (
        LLMPPOConfig()
        .environment("guess_number-v0", env_config={"upper": 7})
        .language_model(tiny={**SMALL, **tiny})
    )


def test_the_tiny_model_is_an_ordinary_checkpoint_folder(cache, capfd):
    folder = prepare_language_model(config())
    assert str(cache) in folder
    assert "Writing" not in "".join(capfd.readouterr())
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.max_position_embeddings == 2048
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_cudnn_computes_no_attention_in_processes_with_a_model(cache):
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_causal_lm(prepare_language_model(config()))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_the_tokenizer_splits_digits_and_encodes_any_text():
    tokenizer = build_tokenizer(["guess 1234 guess 1234"] * 9, vocab_size=400)
    assert len(tokenizer("1234")["input_ids"]) == 4
    text = "na\u00efve \u20ac <think>\t\n  two  spaces"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert ChatRenderer(tokenizer).rewrites is None


def test_equal_settings_share_a_cached_model(cache):
    seen = []
    first = prepare_language_model(config(), lambda phase, done: seen.append(phase))
    again = prepare_language_model(config(), lambda phase, done: seen.append("again"))
    assert first == again
    assert set(seen) == {"tokenizer"}
    others = [
        config(hidden_size=48),
        config().environment(env_config={"upper": 9}),
        config().debugging(seed=1),
    ]
    assert len({first, *map(prepare_language_model, others)}) == 4


def test_another_system_prompt_is_fine_tuned_again(cache):
    def prepared(prompt):
        small = config().sft(demonstrations=2, epochs=1)
        return prepare_language_model(small.language_model(system_prompt=prompt))

    plain = prepared(None)
    assert plain == prepared("") == prepared(None)
    assert len({plain, prepared("Be brief."), prepared("Be bold.")}) == 3


def test_a_deleted_cache_is_rebuilt_bit_by_bit(cache, monkeypatch):
    """LoRA checkpoints of the tiny model rely on this."""
    first = load_causal_lm(prepare_language_model(config())).state_dict()
    vocabulary = load_tokenizer(prepare_language_model(config())).get_vocab()
    monkeypatch.setenv("RLLIB_LLM_CACHE", str(cache / "other"))
    again = load_causal_lm(prepare_language_model(config())).state_dict()
    assert all((again[n] == t).all() for n, t in first.items())
    assert load_tokenizer(prepare_language_model(config())).get_vocab() == vocabulary


def test_a_failed_build_leaves_no_files(cache):
    def fail(folder):
        (folder / "config.json").write_text("{}")
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError, match="no space left"):
        prepare_model._cached(["key"], fail)
    assert not [p for p in cache.iterdir() if p.is_dir()]


def damage_weights(folder):
    (folder / "model.safetensors").unlink()


def cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def damage_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (damage_weights, "model.safetensors is missing"),
        (cut_weights, r"model.safetensors has \d+ bytes of \d+"),
        (damage_tokenizer, r"tokenizer.json has 1 bytes of \d+"),
    ],
)
def test_a_damaged_cache_is_rebuilt_with_a_warning(cache, caplog, damage, reported):
    folder = Path(prepare_language_model(config()))
    loaded = load_causal_lm(str(folder)).state_dict()
    whole = {name: t.clone() for name, t in loaded.items()}  # it is memory-mapped
    damage(folder)
    # Loading it without the repair names the folder to delete.
    with pytest.raises(ModelError, match=f"delete {folder} to rebuild it"):
        load_tokenizer(str(folder))
        load_causal_lm(str(folder))
    assert prepare_language_model(config()) == str(folder)
    (record,) = caplog.records
    assert re.search(f"{folder} is damaged .{reported}.; rebuild", record.message)
    again = load_causal_lm(str(folder)).state_dict()
    assert all(torch.equal(again[name], t) for name, t in whole.items())
    load_tokenizer(str(folder))


def test_leftovers_of_a_killed_build_are_removed(cache):
    left = []

    def die(folder):
        left.append(folder)
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_model._cached(["key"], die)
    left[0].mkdir()  # as after a kill, which runs no "finally"
    folder = prepare_model._cached(["key"], lambda f: (f / "x").write_text("y"))
    assert [p.name for p in cache.iterdir() if p.is_dir()] == [Path(folder).name]


def test_two_builders_of_one_model_build_it_once(cache):
    built, found = [], []

    def build(folder):
        built.append(folder)
        (folder / "config.json").write_text("{}")

    def work():
        found.append(prepare_model._cached(["key"], build))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert len(set(found)) == 1


def test_an_existing_folder_is_used_unchanged(tmp_path, cache):
    folder = write_folder(tmp_path / "model", "qwen2")
    assert prepare_language_model(config().language_model(model=folder)) == folder
    assert not cache.exists()


def test_context_length_of_models(tmp_path):
    folder = write_folder(tmp_path / "model", "qwen2")
    assert model_context_length(folder) == 512
    assert model_context_length("tiny") == TINY_DEFAULTS["max_position_embeddings"]
    with pytest.raises(ModelError, match="does not exist"):
        model_context_length("/no/such/folder")


def test_long_rope_limits_the_context_length(tmp_path):
    folder = write_folder(tmp_path / "model", "qwen2")
    settings = Phi3Config(
        max_position_embeddings=131072,
        original_max_position_embeddings=100,
        rope_scaling={
            "type": "longrope",
            "short_factor": [1.0] * 48,
            "long_factor": [2.0] * 48,
        },
    )
    settings.save_pretrained(folder)
    assert model_context_length(folder) == 100
    given = config().language_model(model=folder)
    assert given.resolved_context_tokens() == 100
    given.generation(max_context_tokens=101)
    with pytest.raises(ModelError, match=r"=101 exceeds the 100 pos.*long-RoPE.*=100"):
        preflight(given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tiny": {"hiden_size": 3}},
            "tiny has no setting 'hiden_size'.*'hidden_size'",
        ),
        ({"lora": {"rnk": 3}}, "lora has no setting 'rnk'. Did you mean 'rank'"),
        ({"lora": {"rank": 0}}, "rank=0 must be a whole number >= 1"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        config().language_model(**settings).validate()


def test_an_empty_lora_dict_means_the_defaults():
    with_lora = config().language_model(lora={})
    with_lora.validate()
    assert with_lora.lm_lora["rank"] == 16
