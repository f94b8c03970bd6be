"""TorchEngine with pictures: keys of the cache, features, weights, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
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
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.engines import SamplingParams, TorchEngine, generate
from rllib_llm.errors import ConfigError
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.features import part_parameters
from rllib_llm.pictures.placement import PictureRef, PlacedPicture, keys
from rllib_llm.pictures.text_part import TextPart

FAMILIES = ("smolvlm", "qwen2_vl", "qwen3_vl")
TEXT = "Look at this picture for a while: <image> What colour is it? red green blue"


@pytest.fixture(scope="module", params=FAMILIES)
def vlm(request, tmp_path_factory):
    return WRITERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def module(vlm):
    return make_vlm_module(vlm)


@pytest.fixture(scope="module")
def renderer(vlm):
    return make_renderer(vlm)


def submitted(engine, renderer, image, session, tokens=4):
    messages = [{"role": "user", "content": TEXT, "images": digest(image)}]
    prompt = renderer.opened(messages)
    pictures = [PlacedPicture(ref, image) for ref in prompt.images]
    engine.open(session)
    params = SamplingParams(max_new_tokens=tokens, seed=1)
    engine.submit(session, prompt.ids, params, pictures=pictures)


def finish(engine):
    done = {}
    while engine.num_unfinished:
        done |= {r.session_id: r for r in engine.step()}
    return done


def test_equal_ids_with_another_picture_share_only_the_text_before_it(
    module, vlm, renderer
):
    alone = {}
    for number in (1, 2):
        engine = make_vlm_engine(module, vlm)
        submitted(engine, renderer, picture(number), number)
        alone |= finish(engine)
    engine = make_vlm_engine(module, vlm)
    for number in (1, 2, 3):
        submitted(engine, renderer, picture(min(number, 2)), number)
    together = finish(engine)
    for number in (1, 2):
        np.testing.assert_allclose(
            together[number].logps, alone[number].logps, atol=1e-5
        )
    assert np.abs(alone[1].logps - alone[2].logps).max() > 1e-3
    np.testing.assert_array_equal(together[2].token_ids, together[3].token_ids)
    # The text before the picture is shared by all, the rest by equal pictures alone.
    messages = [{"role": "user", "content": TEXT, "images": digest(picture(1))}]
    ids = renderer.opened(messages)
    before = ids.images[0].start
    assert engine.stats()["shared_tokens"] == before + len(ids.ids) - 1


def test_a_replaced_history_keeps_the_cache_up_to_another_picture(
    module, vlm, renderer
):
    engine = make_vlm_engine(module, vlm)
    submitted(engine, renderer, picture(1), "a")
    first = finish(engine)["a"]
    messages = [{"role": "user", "content": TEXT, "images": digest(picture(2))}]
    prompt = renderer.opened(messages)
    pictures = [PlacedPicture(ref, picture(2)) for ref in prompt.images]
    params = SamplingParams(max_new_tokens=4, seed=1)
    engine.reset_stats()
    engine.submit("a", prompt.ids, params, extends=False, pictures=pictures)
    second = finish(engine)["a"]
    assert engine.stats()["cached_tokens"] == prompt.images[0].start
    fresh = make_vlm_engine(module, vlm)
    submitted(fresh, renderer, picture(2), "b")
    np.testing.assert_allclose(second.logps, finish(fresh)["b"].logps, atol=1e-5)
    assert np.abs(first.logps - second.logps).max() > 1e-3


def test_features_are_computed_once_per_picture(module, vlm, renderer):
    engine = make_vlm_engine(module, vlm)
    for number in range(4):
        submitted(engine, renderer, picture(number % 2), number)
    finish(engine)
    assert engine._pictures.computed == 2
    # New weights of the tower make them stale, and the histories need them again.
    with torch.no_grad():
        for parameter in part_parameters(module.lm, "vision"):
            parameter.add_(0.01)
    engine.set_weights_version(1)
    params = SamplingParams(max_new_tokens=1, seed=1)
    engine.submit(0, [5], params)
    finish(engine)
    assert engine._pictures.computed == 3
    for parameter in module.lm.model.parameters():
        parameter.requires_grad_(False)
    engine.set_weights_version(2)
    engine.submit(0, [5], params)
    finish(engine)
    assert engine._pictures.computed == 3


def test_a_conversation_goes_on_with_new_weights(module, vlm, renderer):
    engine = make_vlm_engine(module, vlm)
    shown = [("<image> What?", [picture(1)]), ("And now?", [])]
    submit = engine.submit

    def with_new_weights(*args, **kwargs):
        if kwargs["extends"]:
            with torch.no_grad():
                for parameter in module.lm.parameters():
                    parameter.mul_(1.2)
            engine.set_weights_version(2)
        submit(*args, **kwargs)

    engine.submit = with_new_weights
    conversation = sample_conversation(engine, renderer, shown)
    batch = row_batch([conversation], vlm)
    gap = (row_scores(module, batch) - batch[columns.BEHAVIOUR_LOGP]).abs()[0]
    scored = gap[batch[Columns.LOSS_MASK][0]]
    first, second = (len(turn.action_ids) for turn in conversation[0])
    assert scored[:first].max() > 1e-3  # sampled by the weights before
    assert len(scored[first:]) == second
    assert scored[first:].max() < 1e-5


def test_weights_are_copied_by_the_names_of_the_whole_model(module, vlm, renderer):
    engine = make_vlm_engine(module, vlm)
    named = {n: p + 0.01 for n, p in module.lm.named_parameters()}
    engine.update_weights(named.items(), 3)
    assert engine.weights_version == 3
    for name, parameter in module.lm.named_parameters():
        torch.testing.assert_close(parameter, named[name])


def test_long_prompts_are_prefilled_in_chunks(module, vlm, renderer, monkeypatch):
    shown = [("one <image> two <image> three", [picture(1), picture(2)])]
    whole = sample_conversation(make_vlm_engine(module, vlm), renderer, shown)[0]
    monkeypatch.setattr("rllib_llm.engines.torch_engine.PREFILL_CHUNK", 5)
    cut = sample_conversation(make_vlm_engine(module, vlm), renderer, shown)[0]
    np.testing.assert_array_equal(whole[0].action_ids, cut[0].action_ids)
    np.testing.assert_allclose(whole[0].action_logps, cut[0].action_logps, atol=1e-5)


def test_text_alone_is_sampled_as_by_the_text_part(module, vlm):
    params = [SamplingParams(max_new_tokens=6, seed=n) for n in range(3)]
    prompts = [[5, 6, 7], [9, 30], [40]]
    engine = make_vlm_engine(module, vlm)
    plain = TorchEngine(TextPart(module.lm), max_slots=4, max_context_tokens=64)
    pairs = zip(
        generate(engine, prompts, params), generate(plain, prompts, params), strict=True
    )
    for one, two in pairs:
        np.testing.assert_array_equal(one.token_ids, two.token_ids)


def test_an_engine_of_text_refuses_pictures(module, vlm, renderer):
    engine = TorchEngine(TextPart(module.lm), max_slots=2, max_context_tokens=128)
    with pytest.raises(ConfigError, match="reads text alone"):
        submitted(engine, renderer, picture(1), "s")


def test_keys_differ_by_picture_and_place():
    one, two = (PictureRef(digest(picture(n)), 3, 4) for n in (1, 2))
    assert len({*keys(one), *keys(two)}) == 8
    assert max(keys(one)) < 0
    assert min(keys(one)) > -(2**63)
    assert keys(one) == keys(one.moved(5))
