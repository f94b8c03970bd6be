"""Rows with pictures: equal to sampling turn by turn, with gradients where due."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from picture_helpers import (
    make_vlm_engine,
    make_vlm_module,
    picture,
    row_batch,
    row_scores,
    sample_conversation,
)
from ray.rllib.core.columns import Columns

from rllib_llm.connectors.learner.loss_mask import weigh_observations
from rllib_llm.connectors.learner.token_rows import build_rows, pad_rows
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import micro_batches
from rllib_llm.pictures.contract import digest
from rllib_llm.pictures.features import fit

TWO = [("<image> What colour?", [picture(1)]), ("Look <image> again.", [picture(2)])]
ONE = [("<image> What colour?", [picture(3)])]
NONE = [("What colour?", []), ("Look again.", [])]
BOTH = [("First <image>, then <image>.", [picture(4), picture(1)])]


@pytest.fixture
def engine(module, vlm):
    return make_vlm_engine(module, vlm)


def recorded(batch):
    return batch[columns.BEHAVIOUR_LOGP]


def test_a_row_of_two_pictures_equals_turn_by_turn(engine, module, vlm, renderer):
    turns = sample_conversation(engine, renderer, TWO)
    batch = row_batch([turns], vlm)
    assert batch[columns.INPUT_IDS].shape[0] == 1
    scores = row_scores(module, batch)
    assert (scores - recorded(batch)).abs().max() < 1e-5


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_rows_with_0_1_and_2_pictures_share_a_batch(module, vlm, renderer, forward):
    engine = make_vlm_engine(module, vlm, forward=forward)
    assert engine.is_fused == (forward == "auto")
    conversations = [
        sample_conversation(engine, renderer, shown, seed=n)
        for n, shown in enumerate((NONE, TWO, ONE, BOTH))
    ]
    batch = row_batch(conversations, vlm)
    counts = (batch[columns.PICTURE_STARTS] >= 0).sum(1).tolist()
    assert counts == [0, 2, 1, 2]
    # Equal pictures are stored once.
    assert len(batch[columns.PICTURES].pixels) == 4
    scores = row_scores(module, batch)
    assert (scores - recorded(batch)).abs().max() < 1e-5
    # In micro-batches, too, some of them without pictures.
    for index, part in micro_batches(batch, 40):
        width = part[columns.INPUT_IDS].shape[1]
        gap = row_scores(module, part) - recorded(batch)[index, :width]
        assert gap.abs().max() < 1e-5


def test_patches_count_in_the_cost_of_micro_batches(engine, vlm, renderer):
    shown = [ONE, NONE[:1], ONE, NONE[:1]]
    conversations = [sample_conversation(engine, renderer, s) for s in shown]
    batch = row_batch(conversations, vlm)
    tokens = int(batch[columns.ATTENTION_MASK].sum(1).max())
    patches = batch[columns.PICTURES].patches
    # Two rows fit by their tokens, but not with the patches of two pictures.
    parts = list(micro_batches(batch, 2 * tokens + patches))
    shared = [sorted(index.tolist()) for index, _ in parts]
    assert not any({0, 2} <= set(part) for part in shared)
    assert sorted(i for part in shared for i in part) == [0, 1, 2, 3]


def test_a_picture_changes_the_scores_and_the_learner_sees_it(
    engine, module, vlm, renderer
):
    turns, _ = sample_conversation(engine, renderer, ONE)
    batch = row_batch([(turns, {digest(picture(3)): picture(3)})], vlm)
    other = row_batch([(turns, {digest(picture(3)): picture(9)})], vlm)
    gap = row_scores(module, batch) - row_scores(module, other)
    assert gap.abs().max() > 1e-2


def test_placeholders_are_not_trained_and_their_embedding_gets_no_gradient(
    engine, module, vlm, renderer
):
    batch = row_batch([sample_conversation(engine, renderer, TWO)], vlm)
    placeholder = renderer.pictures.token_id
    is_placeholder = batch[columns.INPUT_IDS] == placeholder
    assert is_placeholder.sum() == 2 * renderer.pictures.count
    assert not batch[Columns.LOSS_MASK][is_placeholder].any()
    # As in a model without tied weights: the output layer sees every token's row.
    embedding = module.lm.get_input_embeddings()
    seen = {}

    def keep(_, __, output):
        output.retain_grad()
        seen["embeddings"] = output

    handle = embedding.register_forward_hook(keep)
    row_scores(module, batch).sum().backward()
    handle.remove()
    gradient = seen["embeddings"].grad
    assert gradient[is_placeholder].abs().max() == 0
    assert gradient[~is_placeholder & batch[columns.ATTENTION_MASK]].abs().max() > 0
    tower = module.lm.model.vision_model
    assert all(p.grad is not None for p in tower.encoder.parameters())


@pytest.mark.parametrize("parts", [["vision"], ["vision", "projector"]])
def test_frozen_parts_get_no_gradient(vlm, renderer, parts):
    module = make_vlm_module(vlm, freeze=parts)
    engine = make_vlm_engine(module, vlm)
    batch = row_batch([sample_conversation(engine, renderer, ONE)], vlm)
    row_scores(module, batch).sum().backward()
    inner = module.lm.model
    assert all(p.grad is None for p in inner.vision_model.parameters())
    connector = [p.grad for p in inner.connector.parameters()]
    assert all((g is None) == ("projector" in parts) for g in connector)
    assert any(p.grad is not None for p in inner.text_model.parameters())


def test_row_per_turn_repeats_the_pictures(engine, module, vlm, renderer):
    turns = sample_conversation(engine, renderer, TWO)
    batch = row_batch([turns], vlm, row_per_turn=True)
    assert (batch[columns.PICTURE_STARTS] >= 0).sum(1).tolist() == [1, 2]
    assert (row_scores(module, batch) - recorded(batch)).abs().max() < 1e-5


def test_a_replaced_history_starts_a_row_with_its_own_pictures(
    engine, module, vlm, renderer
):
    turns, store = sample_conversation(engine, renderer, TWO)
    fresh, more = sample_conversation(engine, renderer, ONE, seed=8)
    turns = [*turns, dataclasses.replace(fresh[0], extends=False)]
    batch = row_batch([(turns, store | more)], vlm)
    assert (batch[columns.PICTURE_STARTS] >= 0).sum(1).tolist() == [2, 1]
    assert (row_scores(module, batch) - recorded(batch)).abs().max() < 1e-5


def test_rows_of_text_get_no_columns(engine, vlm, renderer):
    batch = row_batch([sample_conversation(engine, renderer, NONE)], vlm)
    assert columns.PICTURES not in batch
    assert columns.PICTURE_STARTS not in batch


def test_pictures_of_any_size_fit_the_tower(engine, module, vlm, renderer):
    wide = picture(5, 20, 60)
    assert fit(wide, 32).shape == (32, 32, 3)
    constant = np.full((50, 40, 3), 7, np.uint8)
    assert (fit(constant, 32) == 7).all()
    same = picture(6)
    assert fit(same, 32) is same
    turns = sample_conversation(engine, renderer, [("<image>?", [wide])])
    batch = row_batch([turns], vlm)
    assert (row_scores(module, batch) - recorded(batch)).abs().max() < 1e-5


def test_the_text_part_with_features_equals_transformers_own_forward(
    engine, module, vlm, renderer
):
    turns, store = sample_conversation(engine, renderer, TWO)
    batch = row_batch([(turns, store)], vlm)
    pixels = torch.as_tensor(batch[columns.PICTURES].pixels)
    values = ((pixels.float() / 255 - 0.5) / 0.5).permute(0, 3, 1, 2)[None]
    ids = batch[columns.INPUT_IDS]
    logits = module.lm(input_ids=ids, pixel_values=values).logits
    logits = logits[..., : module.vocabulary]
    logp = logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    mask = batch[Columns.LOSS_MASK][:, 1:]
    gap = (logp - row_scores(module, batch)[:, 1:])[mask]
    assert gap.abs().max() < 1e-5


def test_trained_observations_leave_placeholders_out(engine, vlm, renderer):
    turns, _ = sample_conversation(engine, renderer, TWO)
    rows = build_rows(turns, [0.0] * len(turns))
    out = pad_rows(rows, pad_id=0, trained=[True])
    out[columns.LOSS_WEIGHTS] = out[Columns.LOSS_MASK].astype(np.float32)
    weigh_observations(out, 0.5, renderer.pictures)
    is_placeholder = out[columns.INPUT_IDS] == renderer.pictures.token_id
    assert is_placeholder.any()
    assert not out[Columns.LOSS_MASK][is_placeholder].any()
    assert not out[columns.LOSS_WEIGHTS][is_placeholder].any()
    assert out[Columns.LOSS_MASK][:, 1:][~is_placeholder[:, 1:]].all()


def test_gradient_checkpointing_changes_nothing(vlm, renderer):
    gradients = []
    for checkpointing in (False, True):
        module = make_vlm_module(vlm, gradient_checkpointing=checkpointing)
        engine = make_vlm_engine(module, vlm)
        batch = row_batch([sample_conversation(engine, renderer, TWO)], vlm)
        module.train()
        row_scores(module, batch).sum().backward()
        gradients.append({n: p.grad for n, p in module.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)
