"""Families of vision-language models: sampling, rows, exports, refusals."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
import transformers as tf
from family_folders import COUNTS, QWEN, WRITERS
from picture_helpers import (
    make_renderer,
    make_vlm_engine,
    make_vlm_module,
    picture,
    row_batch,
    row_scores,
    sample_conversation,
    write_vlm,
)
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import micro_batches
from rllib_llm.errors import ModelError
from rllib_llm.modules.architectures import check_folder, read_config
from rllib_llm.modules.packing_check import check_packing
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.families import flat_patches
from rllib_llm.pictures.features import (
    PictureReader,
    fit,
    is_vision_trained,
)
from rllib_llm.pictures.spec import image_spec, refused_family

TWO = [("<image> What?", [picture(1, 24, 24)]), ("And <image>?", [picture(2, 60, 20)])]
ONE = [("Look: <image>", [picture(3)])]
NONE = [("What colour?", []), ("Look again.", [])]


@pytest.fixture(scope="module", params=WRITERS)
def family(request):
    """Return the name of a writer."""
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory) -> str:
    """Write the family's folder."""
    return WRITERS[family](tmp_path_factory.mktemp(family))


@pytest.fixture
def model(folder):
    """Return the folder's module, renderer and engine."""
    module = make_vlm_module(folder)
    return module, make_renderer(folder), make_vlm_engine(module, folder)


def gap_of(module, batch) -> float:
    scores = row_scores(module, batch)
    return float((scores - batch[columns.BEHAVIOUR_LOGP]).abs().max().detach())


def test_rows_with_0_1_and_2_pictures_equal_turn_by_turn(model, folder, family):
    module, renderer, engine = model
    assert renderer.pictures.count == COUNTS[family]
    conversations = [
        sample_conversation(engine, renderer, shown, seed=n)
        for n, shown in enumerate((NONE, TWO, ONE))
    ]
    batch = row_batch(conversations, folder)
    assert (batch[columns.PICTURE_STARTS] >= 0).sum(1).tolist() == [0, 2, 1]
    assert gap_of(module, batch) < 1e-5


def packed_scores(module, batch):
    """Return the scores of rows that were packed, and their sum's gradients."""
    found = torch.zeros_like(batch[columns.BEHAVIOUR_LOGP])
    for index, part in micro_batches(batch, None, packing=True):
        assert columns.PACKED_ROWS in part
        values = row_scores(module, part)
        found[index, : values.shape[1]] = values
    parameters = [p for p in module.parameters() if p.requires_grad]
    return found, torch.autograd.grad(found.sum(), parameters, allow_unused=True)


@pytest.mark.parametrize("shown", [(NONE, TWO, ONE), (NONE[:1], NONE)])
def test_packed_rows_equal_rows_apart(model, folder, shown):
    module, renderer, engine = model
    conversations = [
        sample_conversation(engine, renderer, each, seed=n)
        for n, each in enumerate(shown)
    ]
    batch = row_batch(conversations, folder)
    check_packing(module)
    scores, gradients = packed_scores(module, batch)
    torch.testing.assert_close(scores, row_scores(module, batch), atol=1e-5, rtol=0)
    parameters = [p for p in module.parameters() if p.requires_grad]
    apart = torch.autograd.grad(
        row_scores(module, batch).sum(), parameters, allow_unused=True
    )
    for one, two in zip(gradients, apart, strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            scale = max(1.0, float(two.abs().max()))
            torch.testing.assert_close(one / scale, two / scale, atol=1e-5, rtol=0)


def test_a_packed_picture_changes_its_own_row_alone(model, folder):
    module, renderer, engine = model
    conversations = [
        sample_conversation(engine, renderer, each, seed=n)
        for n, each in enumerate((ONE, TWO))
    ]
    batch = row_batch(conversations, folder)
    before, _ = packed_scores(module, batch)
    pixels = batch[columns.PICTURES].pixels.copy()
    pixels[batch[columns.PICTURE_INDEX][0, 0]] = fit(picture(9), pixels.shape[1])
    other = dataclasses.replace(batch[columns.PICTURES], pixels=pixels)
    after, _ = packed_scores(module, {**batch, columns.PICTURES: other})
    assert (after[0] - before[0]).abs().max() > 1e-3
    torch.testing.assert_close(after[1], before[1], atol=1e-6, rtol=0)


def test_another_picture_changes_the_scores(model, folder):
    module, renderer, engine = model
    turns, store = sample_conversation(engine, renderer, ONE)
    batch = row_batch([(turns, store)], folder)
    other = row_batch([(turns, {digest(picture(3)): picture(9)})], folder)
    gap = row_scores(module, batch) - row_scores(module, other)
    assert gap.abs().max() > 1e-3


def test_the_text_part_with_features_equals_transformers_own_forward(model, folder):
    module, renderer, engine = model
    batch = row_batch([sample_conversation(engine, renderer, TWO)], folder)
    spec = renderer.pictures
    ids = batch[columns.INPUT_IDS]
    pixels = torch.as_tensor(batch[columns.PICTURES].pixels)
    values = (pixels / 255 - torch.tensor(spec.mean)) / torch.tensor(spec.std)
    values = values.float().permute(0, 3, 1, 2)
    shown = {"pixel_values": values}
    if spec.family in ("smolvlm", "idefics3"):
        shown["pixel_values"] = values[None]
    if spec.family == "llava_onevision":
        shown["image_sizes"] = torch.tensor([[spec.size, spec.size]] * 2)
        shown["batch_num_images"] = torch.tensor([2])
    if spec.family in QWEN:
        processor = tf.AutoImageProcessor.from_pretrained(folder)
        shown = dict(processor(images=list(pixels.numpy()), return_tensors="pt"))
        shown["mm_token_type_ids"] = (ids == spec.token_id).int()
    logits = module.lm(input_ids=ids, **shown).logits[..., : module.vocabulary]
    logp = logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    mask = batch[Columns.LOSS_MASK][:, 1:]
    assert (logp - row_scores(module, batch)[:, 1:])[mask].abs().max() < 1e-5


@pytest.mark.parametrize("name", ["llava", "llava_onevision", "internvl", *QWEN])
def test_pixels_are_normalised_as_by_the_processor(name, tmp_path):
    folder = WRITERS[name](tmp_path)
    spec, image = image_spec(folder), picture(1, 24, 24)
    processor = tf.AutoImageProcessor.from_pretrained(folder)
    expected = processor(images=[image], return_tensors="pt")["pixel_values"]
    ours = (image / 255 - np.array(spec.mean)) / np.array(spec.std)
    if name in QWEN:
        values = torch.as_tensor(ours).permute(2, 0, 1)[None]
        patches = flat_patches(values, patch=4, merged=2, frames=2)
        torch.testing.assert_close(patches.float(), expected)
        return
    expected = expected.reshape(-1, 3, 24, 24)[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("parts", [[], ["vision"], ["projector"]])
def test_gradients_reach_the_parts_that_are_trained(folder, parts):
    gradients = []
    for checkpointing in (False, True):
        settings = {"freeze": parts, "gradient_checkpointing": checkpointing}
        module, renderer = make_vlm_module(folder, **settings), make_renderer(folder)
        assert is_vision_trained(module.lm)
        engine = make_vlm_engine(module, folder)
        batch = row_batch([sample_conversation(engine, renderer, TWO)], folder)
        module.train()
        row_scores(module, batch).sum().backward()
        gradients.append({n: p.grad for n, p in module.named_parameters()})
    moved = {n for n, g in gradients[0].items() if g is not None and g.abs().max() > 0}
    # By names, not by the functions that freeze.
    names = ("connector", "multi_modal_projector", "image_newline", "merger")
    projector = {n for n in moved if any(name in n for name in names)}
    tower = {n for n in moved - projector if "vision" in n or "visual" in n}
    assert bool(tower) == ("vision" not in parts)
    assert bool(projector) == ("projector" not in parts)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_a_saved_model_loads_in_transformers_with_its_processor(
    model, folder, tmp_path
):
    module, renderer, engine = model
    conversation = sample_conversation(engine, renderer, TWO)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.01)
    module.save_model(tmp_path)
    assert image_spec(str(tmp_path)) == image_spec(folder)
    again, batch = make_vlm_module(str(tmp_path)), row_batch([conversation], folder)
    torch.testing.assert_close(row_scores(again, batch), row_scores(module, batch))
    loaded = tf.AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert type(loaded) is type(module.lm)
    if renderer.pictures.family != "idefics3":  # whose folder has no processor
        processor = tf.AutoImageProcessor.from_pretrained(tmp_path)
        assert tuple(processor.image_mean) == renderer.pictures.mean


def test_the_run_has_the_control_tokens_of_its_family(model, family):
    _, renderer, engine = model
    turns, _ = sample_conversation(engine, renderer, ONE, tokens=1)
    shown = renderer.tokenizer.decode(turns[0].prompt_ids)
    run = {
        "smolvlm": "<fake_token_around_image>{}<fake_token_around_image>",
        "idefics3": "<fake_token_around_image><global-img>{}<fake_token_around_image>",
        "internvl": "<img>{}</img>",
        **dict.fromkeys(QWEN, "<|vision_start|>{}<|vision_end|>"),
    }.get(family, "{}")
    tokens = {"internvl": "<IMG_CONTEXT>", **dict.fromkeys(QWEN, "<|image_pad|>")}
    token = tokens.get(family, "<image>")
    assert f"Look: {run.format(token * COUNTS[family])}<" in shown


def test_a_module_checkpoint_restores_to_the_bit(tmp_path, model, folder):
    module, renderer, engine = model
    batch = row_batch([sample_conversation(engine, renderer, ONE)], folder)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.01)
    module.save_to_path(tmp_path / "saved")
    again = type(module).from_checkpoint(tmp_path / "saved")
    assert torch.equal(row_scores(again, batch), row_scores(module, batch))
    assert image_spec(str(tmp_path / "saved" / "hf")) == image_spec(folder)


# Refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        (tf.Qwen3VLMoeConfig(), "'qwen3_vl_moe'.*only those of qwen2_vl, "),
        (tf.Glm4vConfig(), "'glm4v'.*three dimensions"),
        (tf.LlavaNextConfig(), "'llava_next'.*not implemented"),
    ],
)
def test_other_families_are_refused_by_name(tmp_path, config, rule):
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=rule + ".*smolvlm.*tiny-vlm"):
        read_config(str(tmp_path))
    with pytest.raises(ModelError, match=rule):
        check_folder(str(tmp_path), None)


def test_gemma3_remains_a_model_of_text(tmp_path):
    tf.Gemma3Config().save_pretrained(tmp_path)
    assert image_spec(str(tmp_path)) is None
    assert "both directions" in refused_family("gemma3")


def changed(tmp_path, name, change) -> str:
    """Write a folder of a family with a changed config; return its path."""
    folder = WRITERS[name](tmp_path / "model")
    config = tf.AutoConfig.from_pretrained(folder)
    change(config)
    config.save_pretrained(folder)
    return folder


def set_size(config, size):
    config.vision_config.image_size = size


def set_tower(config):
    config.vision_config = tf.PixtralVisionConfig(image_size=24, patch_size=4)


@pytest.mark.parametrize(
    ("name", "change", "rule"),
    [
        # 5 patches, which scale_factor 2 cannot halve
        ("smolvlm", lambda c: set_size(c, 40), "scale_factor=2"),
        ("llava", lambda c: set_size(c, 26), "multiple of the patch"),
        ("llava", set_tower, "tower of type 'pixtral'.*clip_vision_model"),
        ("internvl", lambda c: set_size(c, [20, 20]), "downsample_ratio=0.5"),
        ("internvl", lambda c: set_size(c, [24, 48]), "must be squares"),
        (
            "internvl",
            lambda c: setattr(c, "vision_feature_select_strategy", "full"),
            "must be a number and 'default'",
        ),
        ("llava", lambda c: setattr(c, "image_token_index", 9999), "tokenizer lacks"),
        (
            "qwen2_vl",
            lambda c: setattr(c, "vision_end_token_id", 9999),
            "vision_end_token_id=9999.*tokenizer lacks",
        ),
        (
            "qwen3_vl",
            lambda c: setattr(c.vision_config, "patch_size", [4, 8]),
            "must be squares",
        ),
    ],
)
def test_configs_that_do_not_fit_are_refused(tmp_path, name, change, rule):
    with pytest.raises(ModelError, match=rule):
        image_spec(changed(tmp_path, name, change))


@pytest.mark.parametrize("name", ["llava", "qwen2_vl"])
def test_families_with_several_towers_need_a_processor(tmp_path, name):
    folder = WRITERS[name](tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=f"preprocessor_config.json.*'{name}'"):
        image_spec(folder)


@pytest.mark.parametrize(
    ("areas", "size"),
    [
        ({"min_pixels": 64, "max_pixels": 12_845_056}, 448),
        ({"size": {"shortest_edge": 64, "longest_edge": 12_845_056}}, 448),
        # An edge of the processor's own, which it reads before that of the size.
        ({"max_pixels": 400, "size": {"shortest_edge": 64, "longest_edge": 9999}}, 16),
        ({"min_pixels": 500_000, "max_pixels": 12_845_056}, 712),
        ({"min_pixels": 64, "max_pixels": 64}, 8),
        ({"min_pixels": 65, "max_pixels": 255}, "no square of a multiple of 8"),
        ({"min_pixels": 64}, "lacks min_pixels and max_pixels"),
    ],
)
def test_the_square_is_within_the_limits_of_the_processor(tmp_path, areas, size):
    folder = WRITERS["qwen2_vl"](tmp_path)
    file = tmp_path / "preprocessor_config.json"
    given = json.loads(file.read_text())
    kept = {n: v for n, v in given.items() if n not in ("min_pixels", "max_pixels")}
    file.write_text(json.dumps(kept | areas))
    if isinstance(size, str):
        with pytest.raises(ModelError, match=size):
            image_spec(folder)
        return
    spec = image_spec(folder)
    assert (spec.size, spec.count, spec.side) == (size, (size // 8) ** 2, size // 8)
    # The processor keeps such a picture as it is, too.
    processor = tf.AutoImageProcessor.from_pretrained(folder)
    shown = processor(images=[picture(1, size, size)], return_tensors="pt")
    assert shown["image_grid_thw"].tolist() == [[1, size // 4, size // 4]]


def test_a_processor_inside_of_processor_config_is_read(tmp_path):
    folder = WRITERS["llava"](tmp_path / "model")
    file = tmp_path / "model" / "preprocessor_config.json"
    nested = f'{{"image_processor": {file.read_text()}}}'
    (tmp_path / "model" / "processor_config.json").write_text(nested)
    file.unlink()
    assert image_spec(folder).mean[0] == pytest.approx(0.48145466)


def test_pixels_that_the_processor_does_not_normalise(tmp_path):
    folder = write_vlm(tmp_path / "model")
    file = tmp_path / "model" / "preprocessor_config.json"
    file.write_text('{"do_normalize": false, "image_mean": [0.5, 0.5, 0.5]}')
    spec = image_spec(folder)
    assert (spec.mean, spec.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    module = make_vlm_module(folder)
    assert PictureReader(module.lm, spec)(torch.zeros(1, 32, 32, 3)).shape[1] == 4
