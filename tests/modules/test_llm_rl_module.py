"""LLMRLModule against plain forward passes of the model."""

from __future__ import annotations

import pytest
import torch
from hf_folders import FAMILIES, write_folder
from module_helpers import (
    LORA,
    family_module,
    make_module,
    plain_scores,
    random_rows,
    scores_of,
    step,
)
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from transformers import AutoModelForCausalLM

from rllib_llm.data import columns
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ModelError
from rllib_llm.modules.llm_rl_module import LLMRLModule
from rllib_llm.modules.lora import adapters_off
from rllib_llm.modules.token_distribution import TokenLogps
from rllib_llm.modules.value_head import ValueHead

REFERENCE = {"reference": True}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_a_plain_forward_pass(tmp_path, family, temperature):
    module = family_module(tmp_path, family, temperature=temperature)
    rows = random_rows()
    logp, entropy = scores_of(module, rows)
    expected_logp, expected_entropy = plain_scores(module.lm, rows, temperature)
    torch.testing.assert_close(logp, expected_logp, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(entropy, expected_entropy, atol=2e-5, rtol=1e-4)
    assert not logp[~rows[Columns.LOSS_MASK]].any()
    assert not entropy[~rows[Columns.LOSS_MASK]].any()


@pytest.mark.parametrize("family", ["cohere", "granite"])
def test_models_that_scale_their_logits_use_their_own_forward(tmp_path, family):
    module = family_module(tmp_path, family)
    assert not module._trunk_and_head_suffice
    rows = random_rows()
    embeddings = module._forward(rows)[Columns.EMBEDDINGS]
    real = rows[columns.ATTENTION_MASK]
    torch.testing.assert_close(
        embeddings[real], module._hidden(module.lm.base_model, rows)[real]
    )


def test_common_families_compute_logits_of_scored_tokens_only(tmp_path):
    for family in ("qwen2", "qwen3", "llama", "gemma2", "gemma3", "gpt2"):
        module = family_module(tmp_path / family, family)
        assert module._trunk_and_head_suffice, family


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt2"])
def test_padding_does_not_change_the_scores(tmp_path, family):
    module = family_module(tmp_path, family)
    module.value_head.out.weight.data.normal_()
    rows, wide = random_rows(), random_rows(width=20)
    wide[columns.INPUT_IDS][~wide[columns.ATTENTION_MASK]] = 7
    for ours, theirs in zip(scores_of(module, rows), scores_of(module, wide)):
        torch.testing.assert_close(ours, theirs[:, :12], atol=1e-5, rtol=1e-5)
    real = rows[columns.ATTENTION_MASK]
    torch.testing.assert_close(
        module.compute_values(rows)[real],
        module.compute_values(wide)[:, :12][real],
        atol=1e-5,
        rtol=1e-5,
    )


def test_a_batch_without_trained_tokens_is_finite(tmp_path):
    module = family_module(tmp_path, "qwen2")
    rows = random_rows()
    rows[Columns.LOSS_MASK][:] = False
    scores = module.forward_train(rows)[Columns.ACTION_DIST_INPUTS]
    assert not scores.any()


# Critic -------------------------------------------------------------------------------


def test_values_do_not_depend_on_their_token(tmp_path):
    module = family_module(tmp_path, "qwen3")
    module.value_head.out.weight.data.normal_()
    rows = random_rows()
    values = module.compute_values(rows)
    hidden = module._hidden(module.lm.base_model, rows)
    torch.testing.assert_close(values[:, 1:], module.value_head(hidden)[:, :-1])
    assert not values[:, 0].any()
    changed = {**rows, columns.INPUT_IDS: rows[columns.INPUT_IDS].clone()}
    changed[columns.INPUT_IDS][:, 5] += 1
    same = (module.compute_values(changed) - values).abs().amax(0) < 1e-6
    assert same[:6].all()
    assert not same[6]


def test_values_from_the_embeddings_are_the_same(tmp_path):
    for family in ("qwen3", "cohere"):
        module = family_module(tmp_path / family, family)
        module.value_head.out.weight.data.normal_()
        rows = random_rows()
        real = rows[columns.ATTENTION_MASK]
        embeddings = module._forward(rows)[Columns.EMBEDDINGS]
        torch.testing.assert_close(
            module.compute_values(rows, embeddings)[real],
            module.compute_values(rows)[real],
        )


def test_a_fresh_critic_predicts_zero_in_float32(tmp_path):
    module = family_module(tmp_path, "qwen2", dtype="bfloat16")
    rows = random_rows()
    values = module.compute_values(rows)
    assert values.dtype == torch.float32
    assert not values.any()
    assert {p.dtype for p in module.value_head.parameters()} == {torch.float32}


@pytest.mark.parametrize("detach", [True, False])
def test_detach_keeps_the_critics_gradient_out_of_the_trunk(tmp_path, detach):
    head = {"kind": "linear", "detach": detach}
    module = family_module(tmp_path, "qwen2", value_head=head)
    module.value_head.out.weight.data.normal_()
    module.compute_values(random_rows()).sum().backward()
    assert all((p.grad is None) == detach for p in module.lm.base_model.parameters())
    assert module.value_head.out.weight.grad is not None


def test_unknown_value_heads_are_refused():
    with pytest.raises(ValueError, match="must be 'linear' or 'mlp'"):
        ValueHead(8, kind="conv")


def test_bfloat16_scores_are_float32_and_close(tmp_path):
    folder = write_folder(tmp_path, "qwen3", initializer_range=0.05)
    rows = random_rows()
    half = make_module(folder, dtype="bfloat16")
    assert next(half.lm.parameters()).dtype == torch.bfloat16
    logp, entropy = scores_of(half, rows)
    assert logp.dtype == entropy.dtype == torch.float32
    exact, _ = scores_of(make_module(folder), rows)
    torch.testing.assert_close(logp, exact, atol=0.05, rtol=0.02)


# Reference ----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2", "qwen2_tied", "gemma2", "cohere"])
def test_the_reference_of_full_training_is_a_frozen_copy(tmp_path, family):
    module = family_module(tmp_path, family, **REFERENCE)
    rows = random_rows()
    before, _ = scores_of(module, rows)
    frozen = {id(p) for p in module._reference[0].parameters()}
    assert not frozen & {id(p) for p in module.parameters()}
    step(module, rows)
    torch.testing.assert_close(module.reference_logps(rows), before)
    assert (scores_of(module, rows)[0] - before).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["qwen2", "llama_tied", "gpt2"])
def test_the_reference_under_lora_is_the_base_model(tmp_path, family):
    folder = write_folder(tmp_path, family)
    module = make_module(folder, lora=LORA, **REFERENCE)
    rows = random_rows()
    base = AutoModelForCausalLM.from_pretrained(folder)
    expected, _ = plain_scores(base.eval(), rows)
    step(module, rows)
    torch.testing.assert_close(
        module.reference_logps(rows), expected, atol=2e-5, rtol=1e-4
    )
    assert (scores_of(module, rows)[0] - expected).abs().max() > 1e-3
    assert not module._reference


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_reference_pass_inside_a_graph_keeps_the_adapters_gradient(
    tmp_path, checkpointing
):
    module = family_module(
        tmp_path, "qwen2", lora=LORA, gradient_checkpointing=checkpointing, **REFERENCE
    )
    rows = random_rows()
    step(module, rows)  # at the initial B = 0 the gradient of A is zero

    def gradients(with_reference: bool):
        module.zero_grad()
        logp = module.forward_train(rows)[Columns.ACTION_DIST_INPUTS][..., 0]
        if with_reference:
            module.reference_logps(rows)
        logp.sum().backward()
        return {n: p.grad for n, p in module.named_parameters() if p.requires_grad}

    expected, found = gradients(False), gradients(True)
    for name, gradient in expected.items():
        if not name.startswith("value_head."):
            assert gradient.any(), name
            torch.testing.assert_close(found[name], gradient)


def test_to_device_moves_the_reference(tmp_path):
    module = family_module(tmp_path, "qwen2", **REFERENCE)
    module.to("meta")
    assert {p.device.type for p in module._reference[0].parameters()} == {"meta"}


# LoRA ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_starts_as_the_base_and_trains_adapters_and_critic_only(tmp_path, family):
    folder = write_folder(tmp_path, family)
    module, rows = make_module(folder, lora=LORA), random_rows()
    expected, _ = plain_scores(make_module(folder).lm, rows)
    torch.testing.assert_close(
        scores_of(module, rows)[0], expected, atol=2e-5, rtol=1e-4
    )
    trained = {n for n, p in module.named_parameters() if p.requires_grad}
    assert all("lora_" in n or n.startswith("value_head.") for n in trained)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    step(module, rows)
    step(module, rows)
    for name, parameter in module.named_parameters():
        moved = not torch.equal(parameter, before[name])
        assert moved == (name in trained), name


def test_an_empty_dict_is_lora_with_its_defaults(tmp_path):
    module = family_module(tmp_path, "qwen2", lora={})
    assert module.model_config["lora"]["rank"] == 16
    assert "lm.lm_head.weight" not in module.get_state()


def test_adapters_off_can_be_nested_and_is_undone_after_an_error(tmp_path):
    module, rows = family_module(tmp_path, "qwen2", lora=LORA), random_rows()
    base, _ = scores_of(module, rows)
    step(module, rows)
    adapted, _ = scores_of(module, rows)
    with adapters_off(module.lm):
        with adapters_off(module.lm):
            pass
        torch.testing.assert_close(scores_of(module, rows)[0], base)
    with pytest.raises(RuntimeError), adapters_off(module.lm):
        raise RuntimeError
    torch.testing.assert_close(scores_of(module, rows)[0], adapted)
    assert any(p.requires_grad for p in module.lm.parameters())


def test_adapters_learn_in_float32_on_a_bfloat16_base(tmp_path):
    module = family_module(tmp_path, "qwen2", lora=LORA, dtype="bfloat16")
    dtypes = {p.requires_grad: p.dtype for p in module.lm.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    step(module, random_rows())


def test_target_modules_without_a_match_are_refused(tmp_path):
    with pytest.raises(ModelError, match="'qkv'.*q_proj"):
        family_module(tmp_path, "qwen2", lora={**LORA, "target_modules": ["qkv"]})


# Building -----------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [None, LORA])
def test_instances_with_one_init_seed_are_equal(tmp_path, lora):
    folder = write_folder(tmp_path, "qwen2")
    left = make_module(folder, lora=lora)
    torch.manual_seed(99)
    right = make_module(folder, lora=lora)
    after = torch.rand(3)
    torch.manual_seed(99)
    assert torch.equal(torch.rand(3), after)  # the global generator is unchanged
    other = make_module(folder, lora=lora, init_seed=1)
    for name, parameter in left.named_parameters():
        assert torch.equal(parameter, right.state_dict()[name]), name
    assert not torch.equal(
        left.value_head.body[0].weight, other.value_head.body[0].weight
    )


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("family", ["qwen2", "gemma3", "gpt2"])
def test_gradient_checkpointing_changes_no_gradient(tmp_path, family, lora):
    folder, rows = write_folder(tmp_path, family), random_rows()
    plain = make_module(folder, lora=lora)
    thrifty = make_module(folder, lora=lora, gradient_checkpointing=True)
    assert thrifty.lm.is_gradient_checkpointing
    calls = []
    layer = next(m for m in thrifty.lm.modules() if hasattr(m, "mlp"))
    layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    for module in (plain, thrifty):
        out = module.forward_train(rows)[Columns.ACTION_DIST_INPUTS]
        out.sum().backward()
    assert len(calls) == 2  # forward, and again in backward
    for left, right in zip(plain.lm.parameters(), thrifty.lm.parameters(), strict=True):
        if left.requires_grad:
            torch.testing.assert_close(left.grad, right.grad)


def test_training_mode_samples_the_same_distribution(tmp_path):
    module, rows = family_module(tmp_path, "gpt2"), random_rows()  # dropout by default
    evaluated, _ = scores_of(module, rows)
    trained = module.forward_train(rows)[Columns.ACTION_DIST_INPUTS][..., 0]
    torch.testing.assert_close(trained, evaluated)


def test_loading_hides_progress_bars_and_restores_the_setting(tmp_path, capfd):
    from transformers.utils import logging

    folder = write_folder(tmp_path, "qwen2")
    capfd.readouterr()
    module = make_module(folder)
    module.save_model(tmp_path / "out")
    out, err = capfd.readouterr()
    assert "Loading" not in out + err
    assert "Writing" not in out + err
    assert logging.is_progress_bar_enabled()


@pytest.mark.parametrize(
    ("model", "message"),
    [("/no/such/folder", "does not exist"), ("{tmp}", "without a config.json")],
)
def test_missing_models_are_refused(tmp_path, model, message):
    with pytest.raises(ModelError, match=message):
        make_module(model.format(tmp=tmp_path))


def test_an_attribute_error_in_setup_is_reported(tmp_path):
    class Faulty(LLMRLModule):
        def setup(self):
            super().setup()
            self.lm.no_such_part.reset()

    config = make_module(write_folder(tmp_path, "qwen2")).model_config
    space = UnicodeText()
    spec = RLModuleSpec(Faulty, space, space, model_config=config)
    with pytest.raises(
        ModelError, match=r"Faulty\.setup\(\).*'no_such_part'"
    ) as caught:
        spec.build()
    assert isinstance(caught.value.__cause__, AttributeError)


def test_unknown_dtypes_are_refused(tmp_path):
    with pytest.raises(ModelError, match="'float8' must be one of"):
        family_module(tmp_path, "qwen2", dtype="float8")


# Action distribution of RLlib's loss --------------------------------------------------


def test_token_distribution():
    inputs = torch.tensor([[[-1.0, 0.5], [-2.0, 0.7]]])
    ours, other = TokenLogps.from_logits(inputs), TokenLogps(inputs - 0.3)
    assert torch.equal(ours.logp(None), inputs[..., 0])
    assert torch.equal(ours.entropy(), inputs[..., 1])
    ratio = torch.tensor(-0.3).exp()
    torch.testing.assert_close(ours.kl(other), (ratio - 1 + 0.3).expand(1, 2))
    with pytest.raises(NotImplementedError, match="GenerationEngine"):
        ours.sample()
