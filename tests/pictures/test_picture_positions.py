"""Positions of three dimensions: Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf
from family_folders import QWEN, WRITERS
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
from rllib_llm.engines import SamplingParams
from rllib_llm.engines.model_runner import ModelRunner
from rllib_llm.engines.slot_cache import SlotCache
from rllib_llm.modules.picture_inputs import row_inputs
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.features import part_parameters
from rllib_llm.pictures.placed_features import PlacedFeatures
from rllib_llm.pictures.placement import PlacedPicture
from rllib_llm.pictures.positions import positions_3d
from rllib_llm.pictures.text_part import TextPart

TWO = [("<image> What?", [picture(1, 24, 24)]), ("And <image>?", [picture(2, 60, 20)])]
BOTH = [("First <image>, then <image>.", [picture(4), picture(1)]), ("Again.", [])]
NONE = [("What colour?", []), ("Look again.", [])]


@pytest.fixture(scope="module", params=QWEN)
def folder(request, tmp_path_factory) -> str:
    """Write the folder of a family."""
    return WRITERS[request.param](tmp_path_factory.mktemp(request.param))


def shown_to(folder, spec, ids, pixels):
    """Return the inputs of transformers' own model for rows of ids with pictures."""
    processor = tf.AutoImageProcessor.from_pretrained(folder)
    shown = dict(processor(images=list(pixels), return_tensors="pt"))
    return {**shown, "mm_token_type_ids": (ids == spec.token_id).int()}


# The rule -------------------------------------------------------------------------


def test_positions_by_hand():
    # Two words, a picture of 2 x 2, one word, another picture, one word.
    found = positions_3d(np.arange(12)[None], np.array([[2, 7, -1]]), 2)
    expected = [
        [0, 1, 2, 2, 2, 2, 4, 5, 5, 5, 5, 7],
        [0, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6, 7],
        [0, 1, 2, 3, 2, 3, 4, 5, 6, 5, 6, 7],
    ]
    assert found[:, 0].tolist() == expected


def test_a_part_of_a_history_has_the_positions_of_the_whole():
    starts = np.array([[3, 20], [5, -1], [-1, -1]])
    whole = positions_3d(np.tile(np.arange(40), (3, 1)), starts, 3)
    part = positions_3d(np.array([[7, 8], [30, 31], [9, 9]]), starts, 3)
    for row, cols in enumerate(([7, 8], [30, 31], [9, 9])):
        np.testing.assert_array_equal(part[:, row], whole[:, row, cols])


def test_positions_of_rows_are_those_of_transformers(folder):
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    engine, spec = make_vlm_engine(module, folder), renderer.pictures
    shown = (NONE, TWO, BOTH, TWO[:1])
    conversations = [sample_conversation(engine, renderer, s) for s in shown]
    batch = row_batch(conversations, folder)
    ids, mask = batch[columns.INPUT_IDS], batch[columns.ATTENTION_MASK]
    grids = torch.tensor([[1, 2 * spec.side, 2 * spec.side]] * 5)
    expected, deltas = module.lm.model.get_rope_index(
        ids, (ids == spec.token_id).int(), grids, attention_mask=mask
    )
    found = row_inputs(module.lm, batch, spec)["position_ids"]
    assert torch.equal(found[:, mask], expected[:, mask])
    assert deltas.ravel().tolist() == [0, -12, -12, -6]
    assert len({len(row[m]) for row, m in zip(ids, mask, strict=True)}) > 1


# The engine -----------------------------------------------------------------------


def prompt_of(renderer, text, images):
    names = " ".join(digest(image) for image in images)
    message = {"role": "user", "content": text, "images": names}
    if not images:
        del message["images"]
    prompt = renderer.opened([message])
    placed = [PlacedPicture(r, i) for r, i in zip(prompt.images, images, strict=True)]
    return prompt.ids, placed


def run(engine):
    done = {}
    while engine.num_unfinished:
        done |= {r.session_id: r for r in engine.step()}
    return done


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_greedy_turns_are_those_of_transformers_own_generate(folder, forward):
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    engine = make_vlm_engine(module, folder, forward=forward)
    assert engine.is_fused == (forward == "auto")
    images = [picture(1, 24, 24), picture(2, 24, 24)]
    ids, placed = prompt_of(renderer, "Look: <image> or <image>, which?", images)
    engine.open("s")
    params = SamplingParams(max_new_tokens=12, seed=0, temperature=0.0)
    engine.submit("s", ids, params, pictures=placed)
    found = run(engine)["s"].token_ids
    inputs = torch.as_tensor(ids)[None]
    module.lm.generation_config.eos_token_id = None
    shown = shown_to(folder, renderer.pictures, inputs, np.stack(images))
    with torch.no_grad():
        out = module.lm.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=12,
            **shown,
        )
    assert found.tolist() == out[0, len(ids) :].tolist()


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_turns_equal_rows_with_chunks_that_cut_pictures(folder, forward, monkeypatch):
    monkeypatch.setattr("rllib_llm.engines.torch_engine.PREFILL_CHUNK", 5)
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    engine = make_vlm_engine(module, folder, forward=forward)
    conversations = [sample_conversation(engine, renderer, s) for s in (TWO, BOTH)]
    batch = row_batch(conversations, folder)
    gap = row_scores(module, batch) - batch[columns.BEHAVIOUR_LOGP]
    assert gap.abs().max() < 1e-5


@pytest.mark.parametrize("layers", [2, 3])
def test_the_fused_forward_adds_features_to_layers(tmp_path, layers):
    # With two layers the features enter the last one, of which the fused forward
    # computes each row's last token alone: that of row 0 is a placeholder.
    module = make_vlm_module(WRITERS["qwen3_vl"](tmp_path, layers=layers))
    ids = np.arange(10).reshape(2, 5) + 20
    features = torch.randn(4, 3 * 32, generator=torch.Generator().manual_seed(0))
    placed = PlacedFeatures(np.array([0, 0, 1, 1]), np.array([1, 4, 0, 1]), features)
    positions = np.arange(5) // np.array([1, 2, 3])[:, None, None] + np.zeros((2, 1))
    logits = []
    for forward in ("auto", "plain"):
        runner = ModelRunner(TextPart(module.lm), forward=forward)
        assert runner.is_fused == (forward == "auto")
        cache = SlotCache(2, 8, runner.device)
        starts, counts = np.zeros(2, np.int64), np.array([5, 3])
        at = positions.astype(np.int64)
        with runner.serving():
            logits.append(
                runner.forward(
                    cache, 0, ids, starts, counts, placed=placed, positions=at
                )
            )
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_sessions_with_and_without_pictures_decode_together(folder, forward):
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    prompts = [
        prompt_of(renderer, text, images)
        for text, images in (
            ("Look: <image> and <image>.", [picture(1), picture(2)]),
            ("What colour is it?", []),
            ("Look: <image> and <image>.", [picture(1), picture(3)]),
        )
    ]

    def sampled(numbers, interrupt=None):
        engine = make_vlm_engine(module, folder, forward=forward)
        for number in numbers:
            ids, placed = prompts[number]
            engine.open(number)
            params = SamplingParams(max_new_tokens=8, seed=number)
            engine.submit(number, ids, params, pictures=placed)
        for _ in range(interrupt or 0):
            engine.step()
        if interrupt:  # the whole histories are computed again
            engine.set_weights_version(1)
        return run(engine), engine.stats()

    alone = {n: sampled([n])[0][n] for n in range(3)}
    together, stats = sampled(range(3))
    assert stats["shared_tokens"] > 0  # up to the second picture
    again, stats = sampled(range(3), interrupt=4)
    assert stats["reprefills"] == 3
    for found in (together, again):
        for number, expected in alone.items():
            assert found[number].token_ids.tolist() == expected.token_ids.tolist()
            np.testing.assert_allclose(found[number].logps, expected.logps, atol=1e-5)


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_drafts_after_pictures_change_no_token(folder, forward):
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    prompts = [
        prompt_of(renderer, "Look: <image> and <image>.", [picture(1), picture(2)]),
        prompt_of(renderer, "What colour is it?", []),
    ]
    found = {}
    for drafted in (0, 4):
        settings = {"forward": forward, "num_speculative_tokens": drafted}
        engine = make_vlm_engine(module, folder, **settings)
        for _ in range(14):
            for number, (ids, placed) in enumerate(prompts):
                engine.open(number)
                params = SamplingParams(max_new_tokens=8, seed=number)
                engine.submit(number, ids, params, pictures=placed)
            found[drafted] = run(engine)
            for number in range(2):
                engine.close(number)
        assert (engine.stats()["accepted_tokens"] > 15) == bool(drafted)
    for number, expected in found[0].items():
        result = found[4][number]
        assert result.token_ids.tolist() == expected.token_ids.tolist()
        np.testing.assert_allclose(result.logps, expected.logps, atol=1e-5)


# The Learner ----------------------------------------------------------------------


def test_gradients_go_to_tower_and_projector_and_not_to_placeholders(folder):
    module, renderer = make_vlm_module(folder), make_renderer(folder)
    engine = make_vlm_engine(module, folder)
    batch = row_batch([sample_conversation(engine, renderer, TWO)], folder)
    is_placeholder = batch[columns.INPUT_IDS] == renderer.pictures.token_id
    assert is_placeholder.sum() == 2 * renderer.pictures.count
    assert not batch[Columns.LOSS_MASK][is_placeholder].any()
    seen = {}

    def keep(_, __, output):
        output.retain_grad()
        seen["embeddings"] = output

    handle = module.lm.get_input_embeddings().register_forward_hook(keep)
    row_scores(module, batch).sum().backward()
    handle.remove()
    gradient = seen["embeddings"].grad
    assert gradient[is_placeholder].abs().max() == 0
    assert gradient[~is_placeholder & batch[columns.ATTENTION_MASK]].abs().max() > 0
    for part in ("vision", "projector"):
        gradients = [p.grad for p in part_parameters(module.lm, part)]
        assert all(g is not None and g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("value_model", ["shared", "own"])
def test_values_are_those_of_transformers_own_forward(folder, value_model):
    head = {"kind": "linear", "detach": False}
    module = make_vlm_module(folder, value_head=head, value_model=value_model)
    trunk = module.value_head.trunk or module.lm.model
    with torch.no_grad():
        module.value_head.out.weight.fill_(0.1)
        for parameter in part_parameters(trunk, "vision"):
            parameter.mul_(1.2)
    renderer = make_renderer(folder)
    conversation = sample_conversation(make_vlm_engine(module, folder), renderer, TWO)
    batch = row_batch([conversation], folder)
    ids = batch[columns.INPUT_IDS]
    shown = shown_to(folder, renderer.pictures, ids, batch[columns.PICTURES].pixels)
    with torch.no_grad():
        out = trunk(input_ids=ids, **shown)
        expected = module.value_head(out.last_hidden_state)[:, :-1]
        computed = module.compute_values(batch)
    torch.testing.assert_close(computed[:, 1:], expected, atol=1e-5, rtol=1e-4)
