"""A reference that is another model than the initial policy."""

from __future__ import annotations

import shutil

import pytest
import torch
from hf_folders import write_folder
from module_helpers import LORA, make_module, plain_scores, random_rows

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.config.sections import section_keys
from rllib_llm.algorithms.config.sft import SFTGiven
from rllib_llm.algorithms.driver.memory_plan import plan_memory
from rllib_llm.algorithms.driver.prepared_models import with_models
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.llm_rl_module import LLMRLModule

KEEP = {"value_head": None, "reference": True}
FINE_TUNED = {"demonstrations": 8, "epochs": 1}


@pytest.fixture
def folders(tmp_path):
    """Folders of a policy and of a teacher of another architecture."""
    policy = write_folder(tmp_path / "policy", "llama")
    return policy, write_folder(tmp_path / "teacher", "qwen2")


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_other_model_scores_the_rows(folders, lora):
    policy, teacher = folders
    module = make_module(policy, ref_model=teacher, lora=lora, **KEEP)
    rows = random_rows()
    alone = make_module(teacher, value_head=None)
    expected, _ = plain_scores(alone.lm, rows)
    torch.testing.assert_close(
        module.reference_logps(rows), expected, atol=2e-5, rtol=1e-4
    )
    own, _ = plain_scores(module.lm, rows)
    assert (own - expected).abs().max() > 0.01


def test_it_is_frozen_and_no_part_of_the_state(folders):
    policy, teacher = folders
    module = make_module(policy, ref_model=teacher, **KEEP)
    assert not any(p.requires_grad for p in module._reference[0].parameters())
    assert not any(name.startswith("reference.") for name in module.get_state())
    before = module.reference_logps(random_rows())
    module.refresh_reference()  # as a later stage does
    torch.testing.assert_close(module.reference_logps(random_rows()), before)


def test_a_checkpoint_loads_without_it_but_does_not_train(folders, tmp_path):
    policy, teacher = folders
    module = make_module(policy, ref_model=teacher, lora=LORA, **KEEP)
    path = module.save_to_path(tmp_path / "saved")
    shutil.rmtree(teacher)
    loaded = LLMRLModule.from_checkpoint(path)
    # With its adapters off, the policy's own base would be scored in its place.
    with pytest.raises(ModelError, match="Put it back to train further"):
        loaded.reference_logps(random_rows())
    with pytest.raises(ModelError, match="teacher"):
        make_module(policy, ref_model=teacher, **KEEP)


def config_with(ref_model, **training):
    """Return a config whose policy has a tiny model, and a reference."""
    settings = {"ref_kl_coeff": 0.1, "ref_model": ref_model, **training}
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    return (
        GRPOConfig()
        .environment("delay_probe-v0")
        .language_model(model="tiny", tiny=sizes)
        .training(**settings)
    )


def test_a_tiny_reference_is_built_with_its_own_sizes_and_fine_tuning():
    plain = with_models(config_with({"tiny": {"hidden_size": 48}}))
    tuned = with_models(config_with({"tiny": {"hidden_size": 48}, "sft": FINE_TUNED}))
    assert plain.resolved_model == tuned.resolved_model
    assert plain.resolved_ref_model != tuned.resolved_ref_model
    settings = tuned.language_model_config()
    module = make_module(**settings | {"model": tuned.resolved_model})
    assert module.lm.config.hidden_size == 32
    assert module._reference[0].config.hidden_size == 48


def test_the_policys_fine_tuning_is_not_its_own():
    sizes = {"tiny": {"hidden_size": 48}}
    plain = with_models(config_with(sizes))
    tuned = with_models(config_with(sizes).sft(**FINE_TUNED))
    assert tuned.resolved_model != plain.resolved_model
    assert tuned.resolved_ref_model == plain.resolved_ref_model


def test_its_fine_tuning_has_the_settings_of_the_section():
    assert set(SFTGiven.__annotations__) == set(section_keys(GRPOConfig, "sft"))


def test_the_memory_plan_counts_it():
    (_, _, plain), (_, _, larger) = (
        plan_memory(with_models(config_with(ref_model)))
        for ref_model in (None, {"tiny": {"hidden_size": 96}})
    )
    assert larger.weights > plain.weights


def test_another_tokenizer_is_refused():
    with pytest.raises(ModelError, match="share a tokenizer"):
        with_models(config_with({"tiny": {"vocab_size": 300}}))


@pytest.mark.parametrize(
    ("ref_model", "training", "words"),
    [
        ({"tiny": {}}, {"ref_kl_coeff": 0.0}, "Set ref_kl_coeff above 0"),
        ({"tiny": {"hiden_size": 1}}, {}, "hiden_size"),
        ({"sft": {"lr": -1}}, {}, "lr"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_built(ref_model, training, words):
    with pytest.raises(ConfigError, match=words):
        config_with(ref_model, **training).validate()
