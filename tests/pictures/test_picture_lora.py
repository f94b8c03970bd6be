"""LoRA on models that read pictures: adapters in the text part, a trained tower."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from family_folders import WRITERS
from picture_helpers import (
    make_renderer,
    make_vlm_engine,
    make_vlm_module,
    picture,
    row_batch,
    row_scores,
    sample_conversation,
)
from picture_runs import MISMATCH, config_of, learned, weights_of
from ray.rllib.core.columns import Columns

from rllib_llm import GRPO, LLMPPO, GRPOConfig, LLMPPOConfig
from rllib_llm.algorithms.driver.init_from_checkpoint import check_initialisable
from rllib_llm.algorithms.driver.memory_plan import plan_memory
from rllib_llm.data import columns
from rllib_llm.errors import ConfigError
from rllib_llm.modules.architectures import check_folder
from rllib_llm.modules.lora import lora_settings
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.pictures.features import vision_parameters

pytest.importorskip("peft")
TWO = [("<image> What?", [picture(1)]), ("And <image>?", [picture(2, 60, 20)])]
RANK = {"rank": 2}
BOTH = ["vision", "projector"]
ALL = {"rank": 2, "parts": ["text", *BOTH]}
TEXT = ("model.text_model.", "model.language_model.")


def lora_module(folder, freeze=(), shake=True, lora=RANK, **settings):
    """Return a module whose adapters, and trained vision, have left their start."""
    module = make_vlm_module(folder, lora=lora, freeze=list(freeze), **settings)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if shake and parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.03)
    return module


def batch_of(module, folder):
    engine, renderer = make_vlm_engine(module, folder), make_renderer(folder)
    return row_batch([sample_conversation(engine, renderer, TWO)], folder)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("freeze", [[], BOTH])
def test_adapters_are_in_the_text_part_and_sample_as_they_score(tmp_path, name, freeze):
    folder = WRITERS[name](tmp_path)
    check_folder(folder, lora_settings(RANK))
    module = lora_module(folder, freeze)
    adapters = [n for n, _ in module.lm.named_parameters() if "lora_" in n]
    assert adapters
    assert all(n.startswith(TEXT) for n in adapters)
    trained = {n for n, p in module.lm.named_parameters() if p.requires_grad}
    assert trained >= set(adapters)
    rest = trained - set(adapters)
    assert not any(n.startswith(TEXT) or "lm_head" in n for n in rest)
    assert bool(rest) == (freeze != BOTH)
    batch = batch_of(module, folder)
    scores = row_scores(module, batch)
    assert (scores - batch[columns.BEHAVIOUR_LOGP]).abs().max() < 1e-5
    plain = row_scores(make_vlm_module(folder), batch)
    assert (scores - plain).abs().max() > 1e-3


@pytest.mark.parametrize("name", WRITERS)
def test_adapters_of_the_tower_change_pictures_and_get_gradients(tmp_path, name):
    folder = WRITERS[name](tmp_path)
    module = lora_module(folder, shake=False, lora=ALL)
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    assert all("lora_" in n for n in trained)
    of_vision = {id(p) for p in vision_parameters(module.lm)}
    inside = {n for n, p in trained.items() if id(p) in of_vision}
    assert inside
    assert set(trained) - inside
    batch = batch_of(module, folder)
    before = row_scores(module, batch)
    out = module._forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    out[..., 0].sum().backward()
    # lora_B starts at 0, so that lora_A has no gradient yet.
    dead = {
        n
        for n in inside
        if "lora_B" in n
        and (trained[n].grad is None or not trained[n].grad.abs().sum())
    }
    # Of LLaVA's towers the last layer, or the pooling of the output, is not read.
    unread = {
        "llava": ".layers.1.",
        "llava_siglip": ".head.",
        "llava_onevision": ".head.",
    }
    assert {unread.get(name, "none") in n for n in dead} == (
        {True} if name in unread else set()
    ), dead
    with torch.no_grad():
        for n in inside:
            trained[n].add_(torch.randn_like(trained[n]) * 0.1)
    assert (row_scores(module, batch) - before).abs().max() > 1e-4
    again = batch_of(module, folder)
    gap = row_scores(module, again) - again[columns.BEHAVIOUR_LOGP]
    assert gap.abs().max() < 1e-5


@pytest.mark.parametrize("parts", [["text"], ["vision"], ["text", "projector"]])
def test_parts_decide_which_layers_get_adapters(vlm, parts):
    module = lora_module(vlm, lora={"rank": 2, "parts": parts}, freeze=BOTH)
    names = {
        "text": "text_model",
        "vision": "vision_model",
        "projector": "connector",
    }
    adapters = [n for n, p in module.lm.named_parameters() if p.requires_grad]
    for part, name in names.items():
        assert any(name in n for n in adapters) == (part in parts)


def test_the_reference_is_the_model_without_the_adapters_of_its_tower(vlm):
    module = lora_module(vlm, lora=ALL, reference=True)
    batch = batch_of(module, vlm)
    plain = row_scores(make_vlm_module(vlm), batch)
    mask = batch[Columns.LOSS_MASK].bool()
    torch.testing.assert_close(module.reference_logps(batch)[mask], plain[mask])
    assert (row_scores(module, batch) - plain).abs().max() > 1e-3


@pytest.mark.parametrize("parts", [["vision"], ["projector"], []])
def test_checkpoints_and_weights_hold_the_trained_parts(tmp_path, vlm, parts):
    module = lora_module(vlm, parts)
    tensors = module.shared_tensors(inference_only=True)
    assert any("vision_model" in n for n in tensors) == ("vision" not in parts)
    assert any("connector" in n for n in tensors) == ("projector" not in parts)
    assert not any("text_model" in n and "lora_" not in n for n in tensors)
    batch = batch_of(module, vlm)
    module.save_to_path(tmp_path / "saved")
    again = type(module).from_checkpoint(tmp_path / "saved")
    assert torch.equal(row_scores(again, batch), row_scores(module, batch))


def test_policies_share_the_base_but_no_trained_tower(vlm):
    one, two = (lora_module(vlm, ["projector"], shake=False) for _ in range(2))
    for name, parameter in one.lm.named_parameters():
        other = two.lm.get_parameter(name)
        is_shared = parameter.data_ptr() == other.data_ptr()
        assert is_shared == (not parameter.requires_grad), name


@pytest.mark.parametrize(("freeze", "lora"), [(BOTH, RANK), ([], ALL)])
def test_exports(tmp_path, vlm, freeze, lora):
    module = lora_module(vlm, freeze, lora=lora)
    batch = batch_of(module, vlm)
    module.save_model(tmp_path / "merged")
    merged = make_vlm_module(str(tmp_path / "merged"))
    torch.testing.assert_close(row_scores(merged, batch), row_scores(module, batch))
    module.save_model(tmp_path / "adapter", merged=False)
    loaded = tf.AutoModelForImageTextToText.from_pretrained(vlm)
    loaded.load_adapter(str(tmp_path / "adapter"))
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        logits = [m(input_ids=ids).logits for m in (loaded, module.lm)]
        pixels = torch.randn(1, 1, 3, *[module.lm.config.vision_config.image_size] * 2)
        features = [
            m.model.get_image_features(pixels).pooler_output
            for m in (loaded, module.lm)
        ]
    torch.testing.assert_close(*logits)
    torch.testing.assert_close(*features)


def test_an_adapter_alone_is_refused_if_the_tower_was_trained(tmp_path, vlm):
    module = lora_module(vlm, ["projector"])
    batch = batch_of(module, vlm)
    with pytest.raises(ConfigError, match="tower or projector was trained as well"):
        module.save_model(tmp_path / "adapter", merged=False)
    module.save_model(tmp_path / "merged")
    merged = make_vlm_module(str(tmp_path / "merged"))
    torch.testing.assert_close(row_scores(merged, batch), row_scores(module, batch))


def test_settings_of_freeze_and_reference(vlm):
    config = config_of(model={"model": vlm, "lora": RANK})
    assert config.resolved_freeze() == BOTH
    config.training(ref_kl_coeff=0.1).validate()
    config.language_model(freeze=["vision"])
    with pytest.raises(ConfigError, match="freeze=.'vision'. trains a part"):
        config.validate()
    config.training(ref_kl_coeff=0.0).validate()
    earlier = config_of(model={"model": vlm, "lora": RANK})
    with pytest.raises(ConfigError, match="language_model.freeze"):
        check_initialisable(earlier, config)
    adapted = config_of(model={"model": vlm, "lora": ALL, "freeze": []})
    adapted.training(ref_kl_coeff=0.1).validate()
    with pytest.raises(ConfigError, match="language_model.lora"):
        check_initialisable(earlier, adapted)


def test_parts_that_a_model_or_an_engine_does_not_have_are_refused(tmp_path, vlm):
    text = GRPOConfig().environment("countdown-v0")
    text.language_model(model="tiny", lora=ALL)
    with pytest.raises(ConfigError, match="reads text alone. Leave it out"):
        text.validate()
    with pytest.raises(ConfigError, match="lora.parts"):
        config_of(model={"model": vlm, "lora": {"parts": []}}).validate()
    with pytest.raises(ConfigError, match="lora.parts"):
        config_of(model={"model": vlm, "lora": {"parts": ["tower"]}}).validate()
    config = config_of(model={"model": WRITERS["idefics3"](tmp_path), "lora": ALL})
    config.generation(engine="vllm")
    with pytest.raises(ConfigError, match="adapts the text part alone"):
        config.validate()


@pytest.mark.parametrize(
    ("parts", "lora"), [([], RANK), (["vision"], RANK), (BOTH, RANK), ([], ALL)]
)
def test_the_memory_plan_counts_the_parts_that_are_trained(parts, lora):
    config = config_of().language_model(freeze=parts, lora=lora)
    config.validate()
    config.resolved_model = prepare_language_model(config)
    _, trained, _ = plan_memory(config)
    module = make_vlm_module(config.resolved_model, lora=lora, freeze=parts)
    assert trained == sum(p.numel() for p in module.parameters() if p.requires_grad)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("kind", "parts", "lora"),
    [
        (GRPOConfig, [], RANK),
        (GRPOConfig, [], ALL),
        (LLMPPOConfig, [], RANK),
        (LLMPPOConfig, BOTH, RANK),
    ],
)
def test_a_run_learns_and_resumes_to_the_bit(tmp_path, kind, parts, lora):
    config = config_of(kind).language_model(lora=lora, freeze=parts)
    algo = config.build_algo()
    before = weights_of(algo)
    results = [learned(algo.train())]
    algo.save_to_path(tmp_path / "one")
    results.append(learned(algo.train()))
    assert all(r[MISMATCH] < 1e-5 for r in results)
    expected = weights_of(algo)
    algo.stop()
    changed = {n for n in before if not torch.equal(before[n], expected[n])}
    assert any("lora_" in n for n in changed)
    assert any("vision_model" in n for n in changed) == (not parts)
    beside = {n for n in changed if "lora_" not in n}
    assert not any("text_model" in n for n in beside)
    assert bool(beside) == ((not parts and lora is RANK) or kind is LLMPPOConfig)
    again = (GRPO if kind is GRPOConfig else LLMPPO).from_checkpoint(tmp_path / "one")
    again.train()
    resumed = weights_of(again)
    again.stop()
    assert all(torch.equal(expected[n], resumed[n]) for n in expected)
