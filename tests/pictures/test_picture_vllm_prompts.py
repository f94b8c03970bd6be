"""Requests with pictures for vLLM, with a renderer that does what vLLM's does."""

from __future__ import annotations

import asyncio
import dataclasses
import functools

import numpy as np
import pytest
import torch
from picture_helpers import (
    make_renderer,
    make_vlm_engine,
    picture,
)
from PIL import Image

from rllib_llm.engines import ActorEngine, SamplingParams, VLLMEngine, vllm_setup
from rllib_llm.engines import vllm_engine as vllm_engine_module
from rllib_llm.engines.vllm_host import EngineHost
from rllib_llm.engines.vllm_pictures import PicturePrompts, picture_arguments
from rllib_llm.engines.vllm_process import Live
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.loading import load_tokenizer
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.features import fit
from rllib_llm.pictures.placement import PictureRef, PlacedPicture
from rllib_llm.pictures.spec import image_spec


@dataclasses.dataclass(frozen=True)
class Range:
    """vLLM's PlaceholderRange."""

    offset: int
    length: int
    is_embed: torch.Tensor | None = None


@dataclasses.dataclass(frozen=True)
class Element:
    """vLLM's MultiModalFieldElem."""

    data: torch.Tensor | None


class Item(dict):
    """vLLM's MultiModalKwargsItem: a prepared picture."""

    def get_data(self):
        return {name: element.data for name, element in self.items()}


class Renderer:
    """Expands placeholders and refuses malformed prompts as vLLM's renderer does.

    Attributes:
        run: Ids of a picture.
        prepare: Returns the tower's values of a picture.
        known: Digests of the pictures that vLLM's engine has.
    """

    def __init__(self, spec, run, prepare):
        self.spec, self.run, self.prepare = spec, run, prepare
        self.prompts, self.known = [], set()

    def render_cmpl(self, prompts, skip_mm_cache=False):
        (prompt,) = prompts
        self.prompts.append(prompt)
        images = prompt["multi_modal_data"]["image"]
        uuids = prompt["multi_modal_uuids"]["image"]
        if len(images) != len(uuids):
            raise ValueError(f"got {len(uuids)} uuids vs {len(images)} images")
        if not all(isinstance(image, Image.Image) for image in images):
            raise TypeError("an image is no PIL image")
        ids, ranges, left = [], [], len(images)
        embedded = torch.tensor([i == self.spec.token_id for i in self.run])
        embedded = None if embedded.all() else embedded
        for token in prompt["prompt_token_ids"]:
            if token == self.spec.token_id and left:
                ranges.append(Range(len(ids), len(self.run), embedded))
                ids += self.run
                left -= 1
            else:
                ids.append(token)
        if left:
            raise RuntimeError(f"{left} images have no placeholder")
        items = [self._item(*pair) for pair in zip(images, uuids, strict=True)]
        return [
            {
                "type": "multimodal",
                "prompt_token_ids": ids,
                "mm_kwargs": {"image": items},
                "mm_hashes": {"image": uuids},
                "mm_placeholders": {"image": ranges},
            }
        ]

    def _item(self, image, uuid):
        if uuid in self.known:
            return None
        return Item(pixel_values=Element(self.prepare(np.asarray(image))))


def normalised(spec, pixels, tiles=1, mean=None):
    """Return the values of a picture, and again for each further tile."""
    scaled = torch.from_numpy(pixels.copy()).float() / 255
    values = (scaled - torch.tensor(mean or spec.mean)) / torch.tensor(spec.std)
    return values.permute(2, 0, 1).repeat(tiles, 1, 1, 1).squeeze(0)


class LLM:
    """vLLM's LLMEngine as far as requests and caches go."""

    def __init__(self, spec, tokenizer):
        run = tokenizer.encode(spec.expand(), add_special_tokens=False)
        self.renderer = Renderer(spec, run, functools.partial(normalised, spec))
        self.added, self.calls = [], []
        self.model_config = self

    def get_vocab_size(self):
        return 9

    def add_request(self, name, prompt, params, lora_request):
        self.added.append(prompt)

    def abort_request(self, names):
        self.calls.append(f"abort {names}")

    def reset_prefix_cache(self, reset_running_requests):
        self.calls.append("prefix")

    def reset_encoder_cache(self):
        self.calls.append("encoder")

    def collective_rpc(self, method, kwargs):
        self.calls.append(method)

    def apply_model(self, function):
        pass


@pytest.fixture
def spec(vlm):
    return image_spec(vlm)


@pytest.fixture
def llm(vlm, spec):
    return LLM(spec, load_tokenizer(vlm))


@pytest.fixture
def prompts(vlm, spec):
    return PicturePrompts(spec, load_tokenizer(vlm))


@pytest.fixture
def engine(llm, vlm, spec, monkeypatch):
    """Build an engine that uses the LLM above."""
    live = Live(llm, {})
    monkeypatch.setattr(vllm_setup, "check_engine_kwargs", lambda *_, **__: None)
    monkeypatch.setattr(vllm_engine_module, "start_vllm", lambda settings: live)
    monkeypatch.setattr(vllm_engine_module, "running", lambda: live)
    monkeypatch.setattr(vllm_engine_module, "_vllm_params", lambda *_: None)
    tokenizer = load_tokenizer(vlm)
    settings = {"max_slots": 2, "max_context_tokens": 128}
    return VLLMEngine(vlm, tokenizer=tokenizer, pictures=spec, **settings)


def placed_at(spec, seed, start):
    pixels = picture(seed)
    return PlacedPicture(PictureRef(digest(pixels), start, spec.count), pixels)


def test_requests_have_this_packages_ids_and_the_digests(spec, llm, prompts):
    run, token = llm.renderer.run, spec.token_id
    before = run.index(token)
    # A placeholder that the model has sampled stands between the two pictures.
    history = [5, *run, token, 6, *run, 7]
    starts = [1 + before, 3 + len(run) + before]
    pictures = [placed_at(spec, n, start) for n, start in enumerate(starts)]
    prompt = prompts(llm, history, pictures)
    assert prompt["prompt_token_ids"] == history
    offsets = [r.offset for r in prompt["mm_placeholders"]["image"]]
    assert offsets == [1, 3 + len(run)]
    (sent,) = llm.renderer.prompts
    assert sent["multi_modal_uuids"] == {"image": [p.ref.digest for p in pictures]}
    for image, shown in zip(sent["multi_modal_data"]["image"], pictures, strict=True):
        np.testing.assert_array_equal(np.asarray(image), shown.pixels)
    assert prompts(llm, [5, 6], []) == {"prompt_token_ids": [5, 6]}


def test_the_probe_accepts_equal_ids_and_values(llm, prompts):
    prompts.probe(llm)


def test_the_probe_shows_both_ids(llm, prompts):
    ours = list(llm.renderer.run)
    llm.renderer.run = [*ours[:-1], 3, 3]
    with pytest.raises(ModelError, match="vLLM writes the ids") as raised:
        prompts.probe(llm)
    assert str(ours) in str(raised.value)
    assert str(llm.renderer.run) in str(raised.value)
    assert "engine='torch'" in str(raised.value)


def test_requests_compare_the_ids_too(spec, llm, prompts):
    history = [5, *llm.renderer.run, 6]
    shown = placed_at(spec, 1, 1 + llm.renderer.run.index(spec.token_id))
    llm.renderer.run = [*llm.renderer.run[:-1], 3]
    with pytest.raises(ModelError, match="vLLM writes the ids"):
        prompts(llm, history, [shown])


def test_the_probe_finds_tiles_and_other_colours(llm, prompts, spec):
    llm.renderer.prepare = functools.partial(normalised, spec, tiles=2)
    with pytest.raises(ModelError, match="splits or scales"):
        prompts.probe(llm)
    other = (0.4, 0.5, 0.5)
    llm.renderer.prepare = functools.partial(normalised, spec, mean=other)
    with pytest.raises(ModelError, match="differ from this package's by 0.2"):
        prompts.probe(llm)


def test_arguments_bound_the_pictures_and_forbid_tiles(spec):
    arguments = picture_arguments(dataclasses.replace(spec, family="idefics3"), 128)
    assert arguments["limit_mm_per_prompt"] == {"image": 128 // spec.count, "video": 0}
    settings = arguments["mm_processor_kwargs"]
    assert settings["do_image_splitting"] is False
    assert settings["size"] == {"longest_edge": spec.size}
    assert arguments["skip_tokenizer_init"] is False


def test_sessions_keep_their_pictures(engine, llm, spec):
    run, params = llm.renderer.run, SamplingParams(max_new_tokens=4, seed=0)
    start = run.index(spec.token_id)
    wide = picture(1, 20, 60)
    first = PlacedPicture(PictureRef(digest(wide), start, spec.count), wide)
    engine.open("s")
    engine.submit("s", run, params, pictures=[first])
    engine.abort(0)
    second = placed_at(spec, 2, start + 1)
    engine.submit("s", [8, *run], params, pictures=[second])
    names = [first.ref.digest, second.ref.digest]
    assert llm.added[-1]["mm_hashes"] == {"image": names}
    offsets = [r.offset for r in llm.added[-1]["mm_placeholders"]["image"]]
    assert offsets == [0, len(run) + 1]
    # Pictures are scaled as the Learner scales them.
    sent = llm.renderer.prompts[-1]["multi_modal_data"]["image"][0]
    np.testing.assert_array_equal(np.asarray(sent), fit(wide, spec.size))
    engine.abort(1)
    engine.submit("s", [8], params, extends=False)
    assert llm.added[-1] == {"prompt_token_ids": [8]}


def test_new_weights_drop_features_and_prefixes(engine, llm):
    engine.start()
    engine.open("s")
    engine.submit("s", [8], SamplingParams(max_new_tokens=4, seed=0))
    llm.calls.clear()
    engine.update_weights([], 1)
    assert llm.calls == ["prefix", "encoder"]


def test_an_engine_of_text_refuses_pictures_and_one_of_pictures_needs_ids(
    engine, vlm, spec
):
    text = VLLMEngine(vlm, max_slots=2, max_context_tokens=64)
    text.open("s")
    params = SamplingParams(max_new_tokens=4, seed=0)
    with pytest.raises(ConfigError, match="reads text alone"):
        text.submit("s", [5], params, pictures=[placed_at(spec, 1, 0)])
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        VLLMEngine(vlm, max_slots=2, max_context_tokens=64, pictures=spec)


def sampled(engine, prompt, pictures):
    params = SamplingParams(max_new_tokens=5, seed=1)
    engine.submit("s", prompt.ids, params, pictures=pictures)


def test_actors_get_the_pixels_of_a_conversation_once(module, vlm, spec):
    renderer = make_renderer(vlm)
    shown = [picture(1, 40, 30), picture(2)]
    text = {"role": "user", "content": "<image> and <image>"}
    prompt = renderer.opened([{**text, "images": " ".join(map(digest, shown))}])
    pictures = [
        PlacedPicture(ref, pixels)
        for ref, pixels in zip(prompt.images, shown, strict=True)
    ]
    client = ActorEngine(None, name="none", max_context_tokens=256, pictures=spec)
    host = EngineHost(lambda: make_vlm_engine(module, vlm))
    client.open("s")
    loop = asyncio.new_event_loop()
    direct = make_vlm_engine(module, vlm)
    direct.open("s")

    def exchanged():
        commands, client._outbox = client._outbox, []
        results = loop.run_until_complete(_all_results(host, commands))
        client._requests.clear()
        client._sessions["s"].request = None
        return commands[-1], results

    sampled(client, prompt, pictures)
    command, results = exchanged()
    assert list(command.pixels) == [digest(image) for image in shown]
    sampled(direct, prompt, pictures)
    while direct.num_unfinished:
        (expected,) = direct.step() or [None]
    np.testing.assert_array_equal(results[0][1].token_ids, expected.token_ids)
    np.testing.assert_allclose(results[0][1].logps, expected.logps, atol=1e-6)
    # The next turn names them without pixels; a new actor gets them again.
    sampled(client, dataclasses.replace(prompt, ids=[5], images=()), [])
    command, _ = exchanged()
    assert (len(command.images), command.pixels) == (2, {})
    sampled(client, dataclasses.replace(prompt, ids=[5], images=()), [])
    client._discard_host(RuntimeError("lost"))
    assert len(client._outbox[0].pixels) == 2
    client.close("s")
    assert client._sent == {}
    loop.close()


async def _all_results(host, commands):
    results = []
    while not results:
        results = await host.exchange("client", commands, 1.0)
        commands = []
    return results
