"""Module states: contents, bit-exact round trips, refused states, sharing."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.fs
import pytest
import torch
from hf_folders import write_folder
from module_helpers import (
    LORA,
    assert_bit_equal,
    family_module,
    make_module,
    random_rows,
    scores_of,
    step,
)
from ray.rllib.core.rl_module.rl_module import RLModule
from safetensors.torch import load_file, save_file

from rllib_llm import weights
from rllib_llm.errors import CheckpointError, ModelError
from rllib_llm.modules import loading
from rllib_llm.modules.llm_rl_module import LLMRLModule

SETTINGS = [
    {},
    {"lora": LORA},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "lora": LORA},
    {"dtype": "float16"},
    {"reference": True},
    {"value_head": None},
    {"value_model": "own"},
    {"value_model": "own", "dtype": "bfloat16"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("family", ["qwen2", "gemma2"])
def test_state_round_trip_is_bit_exact(tmp_path, family, settings):
    folder = write_folder(tmp_path, family)
    source = make_module(folder, **settings)
    step(source, random_rows(), lr=1e-3)
    saved = source.get_state()
    target = make_module(folder, **{**settings, "init_seed": 5})
    target.set_state(pickle.loads(pickle.dumps(saved)))
    assert_bit_equal(saved, target.get_state())
    for name, parameter in source.named_parameters():
        assert torch.equal(parameter, target.get_parameter(name)), name


def test_a_state_is_a_copy(tmp_path):
    module = family_module(tmp_path, "qwen2")
    saved = module.get_state()
    before = {n: v.copy() for n, v in saved.items()}
    step(module, random_rows())
    assert_bit_equal(before, saved)


def test_read_only_arrays_load_without_a_warning(tmp_path, recwarn):
    module = family_module(tmp_path, "qwen2")
    saved = module.get_state()
    for value in saved.values():
        value.flags.writeable = False
    module.set_state(saved)
    assert not recwarn.list


@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("llama_tied", True)])
def test_tied_weights_are_in_the_state_once(tmp_path, family, tied):
    saved = family_module(tmp_path, family).get_state()
    assert ("lm.lm_head.weight" in saved) != tied
    assert "lm.model.embed_tokens.weight" in saved


def test_rebuilt_buffers_are_not_in_the_state(tmp_path):
    saved = family_module(tmp_path, "llama").get_state()
    assert not any("inv_freq" in name for name in saved)


@pytest.mark.parametrize(
    "settings",
    [{}, {"lora": LORA}, {"value_head": None}, {"value_model": "own"}],
)
def test_inference_only_excludes_critic_and_reference(tmp_path, settings):
    folder = write_folder(tmp_path, "qwen2")
    module = make_module(folder, reference=True, **settings)
    saved = module.get_state(inference_only=True)
    assert not any(n.startswith(("value_head.", "reference.")) for n in saved)
    actor = make_module(folder, inference_only=True, reference=True, **settings)
    assert not hasattr(actor, "value_head")
    assert not actor._reference
    step(module, random_rows())
    actor.set_state(module.get_state(inference_only=True))
    assert_bit_equal(actor.get_state(), module.get_state(inference_only=True))
    actor.set_state(module.get_state())  # a full state works as well


def test_a_lora_state_holds_adapters_and_critic_only(tmp_path):
    module = family_module(tmp_path, "qwen2", lora=LORA)
    saved = module.get_state()
    names = {n for n, p in module.named_parameters() if p.requires_grad}
    assert set(saved) == names | {"base_fingerprint"}
    adapters = sum(v.nbytes for n, v in saved.items() if "lora_" in n)
    assert adapters < sum(p.nbytes for p in module.lm.parameters()) / 2


def test_a_frozen_adapter_is_in_the_state(tmp_path):
    module = family_module(tmp_path, "qwen2", lora=LORA)
    module.requires_grad_(False)
    assert any("lora_" in n for n in module.get_state())


# Refused states -----------------------------------------------------------------------


def test_a_state_of_another_model_is_refused(tmp_path):
    module = family_module(tmp_path / "a", "qwen2")
    before = module.get_state()
    others = {
        "family": family_module(tmp_path / "b", "gemma2"),
        "size": make_module(write_folder(tmp_path / "c", "qwen2", hidden_size=64)),
        "tied": family_module(tmp_path / "d", "qwen2_tied"),
        "lora": family_module(tmp_path / "e", "qwen2", lora=LORA),
    }
    for other in others.values():
        with pytest.raises(CheckpointError, match="state of another model"):
            module.set_state(other.get_state())
    assert_bit_equal(before, module.get_state())  # unchanged, not partly written


@pytest.mark.parametrize("settings", [{}, {"lora": LORA}])
def test_a_partial_state_is_refused(tmp_path, settings):
    module = family_module(tmp_path, "qwen2", **settings)
    saved = module.get_state()
    for part in ("lm.", "value_head."):
        lacking = dict(saved)
        lacking.pop(next(n for n in saved if n.startswith(part)))
        with pytest.raises(CheckpointError, match="nothing there and shape"):
            module.set_state(lacking)
    with pytest.raises(CheckpointError):
        module.set_state({})


def test_a_state_without_a_critic_loads_into_a_module_with_one(tmp_path):
    folder = write_folder(tmp_path, "qwen2")
    module = make_module(folder)
    module.set_state(make_module(folder, value_head=None).get_state())


def test_adapters_of_another_base_model_are_refused(tmp_path):
    ours = family_module(tmp_path / "a", "qwen2", lora=LORA)
    theirs = make_module(write_folder(tmp_path / "b", "qwen2", seed=1), lora=LORA)
    with pytest.raises(CheckpointError, match="trained on another base model"):
        ours.set_state(theirs.get_state())
    half = make_module(str(tmp_path / "a"), lora=LORA, dtype="bfloat16")
    half.set_state(ours.get_state())  # the same base in another dtype is the same


# Sharing ------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("family", ["qwen2", "llama_tied", "gpt2", "gemma3"])
def test_shared_parameters_follow_every_change(tmp_path, family, lora):
    folder, rows = write_folder(tmp_path, family), random_rows()
    learner = make_module(folder, lora=lora)
    actor = make_module(folder, lora=lora, inference_only=True, init_seed=3)
    actor.share_parameters_with(learner)
    step(learner, rows)
    assert torch.equal(scores_of(actor, rows)[0], scores_of(learner, rows)[0])
    restored = {n: np.zeros_like(v) for n, v in learner.get_state().items()}
    if lora:
        restored["base_fingerprint"] = learner.get_state()["base_fingerprint"]
    learner.set_state(restored)
    assert torch.equal(scores_of(actor, rows)[0], scores_of(learner, rows)[0])
    ours = {p.data_ptr() for p in actor.lm.parameters()}
    assert ours == {p.data_ptr() for p in learner.lm.parameters()}


# Packing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
)
def test_pack_and_unpack_keep_every_bit(dtype):
    tensor = (torch.randn(3, 4) * 7).to(dtype).T  # not contiguous
    packed = weights.pack({"x": tensor})
    assert all(isinstance(v, np.ndarray) for v in packed.values())
    assert torch.equal(weights.unpack(packed)["x"], tensor)
    assert weights.unpack(packed)["x"].dtype == dtype


# On disk ------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_checkpoint_round_trip(tmp_path, settings):
    module = family_module(tmp_path / "model", "qwen2", **settings)
    step(module, random_rows(), lr=1e-3)
    module.save_to_path(tmp_path / "checkpoint")
    restored = RLModule.from_checkpoint(tmp_path / "checkpoint")
    assert_bit_equal(module.get_state(), restored.get_state())
    rows = random_rows()
    assert torch.equal(scores_of(module, rows)[0], scores_of(restored, rows)[0])


def test_a_checkpoint_on_another_filesystem(tmp_path):
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    module = family_module(tmp_path / "model", "qwen2")
    remote = SubTreeFileSystem(str(tmp_path / "bucket"), LocalFileSystem())
    module.save_to_path("run/module", filesystem=remote)
    restored = LLMRLModule.from_checkpoint(tmp_path / "bucket" / "run" / "module")
    assert_bit_equal(module.get_state(), restored.get_state())
    assert (tmp_path / "bucket/run/module/hf/tokenizer.json").is_file()


@pytest.mark.parametrize("settings", [{}, {"reference": True}, {"dtype": "bfloat16"}])
def test_a_full_checkpoint_restores_without_its_model_folder(tmp_path, settings):
    module = family_module(tmp_path / "model", "gemma2", **settings)
    step(module, random_rows(), lr=1e-3)
    module.save_to_path(tmp_path / "first")
    shutil.rmtree(tmp_path / "model")
    restored = LLMRLModule.from_checkpoint(tmp_path / "first")
    assert_bit_equal(module.get_state(), restored.get_state())
    # The restored module can be saved, exported, and restored again.
    restored.save_to_path(tmp_path / "second")
    restored.save_model(tmp_path / "exported")
    again = LLMRLModule.from_checkpoint(tmp_path / "second")
    rows = random_rows()
    assert torch.equal(scores_of(module, rows)[0], scores_of(again, rows)[0])


def test_a_lora_checkpoint_without_its_base_model_is_refused(tmp_path):
    module = family_module(tmp_path / "model", "qwen2", lora=LORA)
    module.save_to_path(tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(CheckpointError, match="adapters only.*model' does not exist"):
        LLMRLModule.from_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(ModelError, match="does not exist"):
        RLModule.from_checkpoint(tmp_path / "checkpoint")


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = write_folder(tmp_path, "qwen2")
    (tmp_path / "model.safetensors").unlink()
    for lora in (None, LORA):
        with pytest.raises(ModelError, match=f"'{folder}' holds a config but no weig"):
            make_module(folder, lora=lora)


def test_weights_that_lack_a_layer_are_refused(tmp_path):
    folder = write_folder(tmp_path, "qwen2")
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack model\.layers\.1\.mlp\.up_proj.*1 in"):
        make_module(folder)


def test_a_checkpoint_keeps_weights_in_safetensors_alone(tmp_path):
    module = family_module(tmp_path / "model", "qwen2", dtype="bfloat16")
    module.save_to_path(tmp_path / "checkpoint")
    saved = load_file(tmp_path / "checkpoint" / "module_state.safetensors")
    tensors = module.shared_tensors()
    assert saved.keys() == tensors.keys()
    assert all(torch.equal(saved[name], t) for name, t in tensors.items())
    pickles = [p.name for p in (tmp_path / "checkpoint").rglob("*.pkl")]
    assert pickles == ["class_and_ctor_args.pkl"]
    again = LLMRLModule.from_checkpoint(tmp_path / "checkpoint")
    assert all(torch.equal(again.shared_tensors()[n], t) for n, t in tensors.items())
    # Its model folder holds no weights; they are in the checkpoint's module state.
    with pytest.raises(ModelError, match="belongs to a checkpoint"):
        loading.require_weights(str(tmp_path / "checkpoint" / "hf"))


def test_a_checkpoint_of_another_file_system_is_read_and_written(tmp_path):
    module = family_module(tmp_path / "model", "qwen2")
    (tmp_path / "bucket").mkdir()
    remote = pyarrow.fs.SubTreeFileSystem(
        str(tmp_path / "bucket"), pyarrow.fs.LocalFileSystem()
    )
    module.save_to_path("checkpoint", filesystem=remote)
    other = make_module(str(tmp_path / "model"))
    with torch.no_grad():
        other.lm.model.norm.weight.add_(1.0)
    other.restore_from_path("checkpoint", filesystem=remote)
    tensors = module.shared_tensors()
    assert all(torch.equal(other.shared_tensors()[n], t) for n, t in tensors.items())


_OTHER_PROCESS = """
import pickle, sys
from module_helpers import LORA, make_module
states = [make_module(sys.argv[1], lora=lora).get_state() for lora in (None, LORA)]
pickle.dump(states, open(sys.argv[2], "wb"))
"""


@pytest.mark.slow
def test_another_process_has_equal_initial_weights(tmp_path):
    folder, out = write_folder(tmp_path / "model", "qwen2"), tmp_path / "states.pkl"
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{_OTHER_PROCESS}"
    subprocess.run([sys.executable, "-c", code, folder, str(out)], check=True)
    for lora, theirs in zip((None, LORA), pickle.loads(out.read_bytes()), strict=True):
        assert_bit_equal(make_module(folder, lora=lora).get_state(), theirs)
