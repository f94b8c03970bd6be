"""Pictures of each family for vLLM: settings of processors, ids, tiles, refusals.

The processors are transformers' own, the ones that vLLM calls.
"""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from family_folders import QWEN, WRITERS
from picture_helpers import picture
from test_picture_vllm_prompts import LLM, Renderer, placed_at

from rllib_llm.engines import vllm_pictures
from rllib_llm.engines.checkpoint_format import CheckpointFormat
from rllib_llm.engines.vllm_pictures import (
    PicturePrompts,
    picture_arguments,
    tower_values,
)
from rllib_llm.errors import ModelError
from rllib_llm.modules.loading import load_tokenizer
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.families import FAMILIES
from rllib_llm.pictures.placement import PictureRef, PlacedPicture
from rllib_llm.pictures.spec import image_spec

TILED = "llava_onevision"
OTHERS = ("llava", TILED, "internvl", *QWEN)


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """Let the packages of processors seem to be installed."""
    monkeypatch.setattr(vllm_pictures, "check_family", lambda *_: None)


@pytest.fixture(params=OTHERS)
def folder(request, tmp_path):
    return WRITERS[request.param](tmp_path)


def prepare(folder, image, **changes):
    """Return what the processor of a folder makes of a picture for vLLM's tower."""
    settings = picture_arguments(image_spec(folder), 256)["mm_processor_kwargs"]
    processor = tf.AutoImageProcessor.from_pretrained(folder)
    out = processor(images=[image], return_tensors="pt", **{**settings, **changes})
    values = out["pixel_values"]
    return values if image_spec(folder).frames else values[0]


def make_llm(folder, run=None, **changes):
    """Return a vLLM that writes placeholders alone, with a folder's processor."""
    spec, llm = image_spec(folder), LLM(image_spec(folder), load_tokenizer(folder))
    if spec.family != "internvl":
        run = [spec.token_id] * (run or spec.count)
    llm.renderer = Renderer(
        spec,
        run or llm.renderer.run,
        lambda image: prepare(folder, image, **changes),
    )
    return llm


def make_prompts(folder):
    return PicturePrompts(image_spec(folder), load_tokenizer(folder))


def test_vllm_reads_every_family():
    assert vllm_pictures._PROCESSORS.keys() == FAMILIES.keys()


def test_settings_make_the_learners_values_of_a_picture(folder):
    spec = image_spec(folder)
    image = picture(1, spec.size, spec.size)
    values = prepare(folder, image)
    if spec.family == TILED:
        assert len(values) == 2
        values = values[0]
    torch.testing.assert_close(values.float(), tower_values(spec, image))


def test_the_probe_accepts_the_processor_of_the_folder(folder):
    run = 78 if image_spec(folder).family == TILED else None
    make_prompts(folder).probe(make_llm(folder, run))


@pytest.mark.parametrize("name", QWEN)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merge_size": 1}, "differ from this package's"),
        ({"temporal_patch_size": 1}, "splits or scales"),
        ({"image_mean": [0.1] * 3}, "differ from this package's"),
        ({"size": {"shortest_edge": 64, "longest_edge": 256}}, "splits or scales"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_the_probe_finds_other_patches_of_qwen(name, changes, message, tmp_path):
    folder = WRITERS[name](tmp_path)
    with pytest.raises(ModelError, match=message):
        make_prompts(folder).probe(make_llm(folder, **changes))


@pytest.mark.parametrize("name", QWEN)
def test_the_probe_finds_another_number_of_qwens_placeholders(name, tmp_path):
    folder = WRITERS[name](tmp_path)
    with pytest.raises(ModelError, match=r"\(4 ids\)|vLLM writes the ids"):
        make_prompts(folder).probe(make_llm(folder, run=4))


@pytest.mark.parametrize("name", QWEN)
def test_qwens_control_tokens_are_those_of_the_history(name, tmp_path):
    folder = WRITERS[name](tmp_path)
    spec, llm = image_spec(folder), make_llm(folder)
    tokenizer = load_tokenizer(folder)
    run = tokenizer.encode(spec.expand(), add_special_tokens=False)
    assert len(run) == spec.count + 2
    history = [5, *run, spec.token_id, *run, 7]  # a sampled placeholder between them
    starts = [2, 3 + len(run)]
    pictures = [placed_at(spec, n, start) for n, start in enumerate(starts)]
    prompt = make_prompts(folder)(llm, history, pictures)
    assert prompt["prompt_token_ids"] == history
    places = prompt["mm_placeholders"]["image"]
    assert [(r.offset, r.length) for r in places] == [(s, spec.count) for s in starts]


def test_the_whole_picture_is_all_that_is_kept_of_tiles(tmp_path):
    folder = WRITERS[TILED](tmp_path)
    spec, llm = image_spec(folder), make_llm(folder, run=78)
    run = [spec.token_id] * spec.count
    history = [5, *run, *run, 7]
    image = picture(3, spec.size, spec.size)
    first = PlacedPicture(PictureRef(digest(image), 1, spec.count), image)
    pictures = [first, placed_at(spec, 2, 1 + spec.count)]
    prompts = make_prompts(folder)
    for known in (set(), {pictures[1].ref.digest}):
        llm.renderer.known = known
        prompt = prompts(llm, history, pictures)
        places = prompt["mm_placeholders"]["image"]
        assert [(r.offset, r.length) for r in places] == [(1, 37), (38, 37)]
        first, second = prompt["mm_kwargs"]["image"]
        (value,) = first.get_data()["pixel_values"]
        torch.testing.assert_close(value.float(), tower_values(spec, image))
        assert (second is None) == bool(known)


@pytest.mark.parametrize("name", ["llava", TILED])
def test_towers_of_llavas_have_the_names_of_files_on_the_hub(name, tmp_path):
    folder = WRITERS[name](tmp_path)
    model = tf.AutoModelForImageTextToText.from_pretrained(folder)
    names = dict(CheckpointFormat(folder)(model.state_dict().items()))
    tower = [n for n in names if "vision_tower" in n]
    assert tower
    assert all("vision_tower.vision_model." in n for n in tower)
