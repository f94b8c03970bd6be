"""vLLM itself with pictures: the Learner's log-probabilities, weights, whole runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from picture_helpers import (
    make_renderer,
    make_vlm_engine,
    make_vlm_module,
    picture,
    row_batch,
    row_scores,
    sample_conversation,
)
from vllm_folders import write_for_vllm

from rllib_llm.engines import SamplingParams, VLLMEngine
from rllib_llm.modules.loading import load_tokenizer
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.families import FAMILIES
from rllib_llm.pictures.features import vision_parameters
from rllib_llm.pictures.placement import PlacedPicture
from rllib_llm.pictures.spec import image_spec

pytest.importorskip("vllm")
pytestmark = pytest.mark.slow

KWARGS = {"kv_cache_memory_bytes": 2**26}
SHOWN = [
    ("one <image>", [picture(1)]),
    ("no picture", []),
    ("again <image> and <image>", [picture(1, 40, 20), picture(2)]),
]


@pytest.fixture(scope="module", params=["idefics3", "qwen3_vl"])
def folder(request, tmp_path_factory):
    """Write an Idefics3, whose processor needs no further package, and a Qwen3-VL."""
    if request.param != "idefics3":
        pytest.importorskip("torchvision")
    return write_for_vllm(request.param, tmp_path_factory.mktemp(request.param))


def make_vllm(folder, module, **settings) -> VLLMEngine:
    engine = VLLMEngine(
        folder,
        max_slots=4,
        max_context_tokens=256,
        tokenizer=load_tokenizer(folder),
        pictures=image_spec(folder),
        engine_kwargs=KWARGS,
        **settings,
    )
    engine.update_weights(sent(module), 0)
    return engine


def sent(module):
    tensors = module.shared_tensors(inference_only=True)
    return [(name.removeprefix("lm."), tensor) for name, tensor in tensors.items()]


@torch.no_grad()
def gap(engine, module, folder, session) -> float:
    """Return the largest difference of a conversation's log-probabilities."""
    turns, store = sample_conversation(
        engine, make_renderer(folder), SHOWN, session=session, tokens=8
    )
    scores = row_scores(module, row_batch([(turns, store)], folder))
    ours = scores[scores != 0].numpy()
    theirs = np.concatenate([turn.action_logps for turn in turns])
    return float(np.abs(ours - theirs).max())


@torch.no_grad()
def change(module, is_vision: bool) -> None:
    torch.manual_seed(1)
    vision = {id(p) for p in vision_parameters(module.lm)}
    for parameter in module.parameters():
        if (id(parameter) in vision) == is_vision:
            parameter.add_(torch.randn_like(parameter) * 0.2)


@pytest.mark.parametrize("name", FAMILIES)
def test_conversations_have_the_probabilities_of_the_learner(name, tmp_path):
    if name != "idefics3":
        pytest.importorskip("torchvision")
    if name == "smolvlm":
        pytest.importorskip("num2words")
    path = write_for_vllm(name, tmp_path)
    module = make_vlm_module(path)
    engine = make_vllm(path, module)
    gaps = [gap(engine, module, path, 0)]
    # Of tower and projector first: cached features would be those of the old ones.
    for version, is_vision in enumerate((True, False), 1):
        change(module, is_vision)
        old = gap(engine, module, path, f"old {version}")
        engine.update_weights(sent(module), version)
        gaps.append(gap(engine, module, path, version))
        assert old > 1e-3
    assert max(gaps) < 5e-5


def submit(engine, renderer, image, session, count=12, temperature=1.0):
    text = "Look at <image>" + " red green blue" * 8  # more than a block of the cache
    message = {"role": "user", "content": text, "images": digest(image)}
    prompt = renderer.opened([message])
    placed = [PlacedPicture(ref, image) for ref in prompt.images]
    engine.open(session)
    params = SamplingParams(max_new_tokens=count, seed=1, temperature=temperature)
    engine.submit(session, prompt.ids, params, pictures=placed)


def finish(engine):
    done = {}
    while engine.num_unfinished:
        done |= {r.session_id: r for r in engine.step()}
    return done


def test_equal_ids_of_another_picture_share_no_cache(folder):
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    engine = make_vllm(folder, module)
    logps, cached = [], []
    for session, number in enumerate((1, 2, 1)):
        engine.reset_stats()
        submit(engine, renderer, picture(number), session)
        logps.append(finish(engine)[session].logps)
        cached.append(engine.stats()["cached_tokens"])
    assert cached[:2] == [0, 0]
    assert cached[2] >= 32
    np.testing.assert_allclose(logps[0], logps[2], atol=1e-5)
    assert np.abs(logps[0] - logps[1]).max() > 1e-3


def test_an_update_during_running_requests_reads_the_picture_again(folder):
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    engine = make_vllm(folder, module)
    submit(engine, renderer, picture(5), "s")
    for _ in range(5):
        engine.step()
    change(module, is_vision=True)
    engine.update_weights(sent(module), 1)
    result = finish(engine)["s"]
    fresh = make_vllm(folder, module)
    submit(fresh, renderer, picture(5), "s", count=len(result.token_ids))
    assert result.version_changes == ((5, 1),)
    again = finish(fresh)["s"]
    # With the new tower from the first token on, the first ones differ.
    assert np.abs(result.logps[:5] - again.logps[:5]).max() > 1e-3


def test_a_sampled_placeholder_is_no_picture(folder):
    module, spec = make_vlm_module(folder), image_spec(folder)
    renderer, results = make_renderer(folder), []
    message = {"role": "user", "content": "<image>", "images": digest(picture(2))}
    prompt = renderer.opened([message])
    placed = [PlacedPicture(ref, picture(2)) for ref in prompt.images]
    params = SamplingParams(max_new_tokens=6, seed=1, temperature=0.0)
    for engine in (make_vllm(folder, module), make_vlm_engine(module, folder)):
        submit(engine, renderer, picture(1), "s", count=4, temperature=0.0)
        finish(engine)
        # As if the model had sampled one; then a turn with another picture.
        engine._sessions["s"].history[-2] = spec.token_id
        engine._sessions["s"].cached = 0
        engine.submit("s", prompt.ids, params, pictures=placed)
        results.append(finish(engine)["s"])
    ours, theirs = results
    np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
    np.testing.assert_allclose(ours.logps, theirs.logps, atol=1e-4)
