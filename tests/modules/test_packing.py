"""Packed rows of every model family against the rows one by one."""

from __future__ import annotations

import itertools

import pytest
import torch
import transformers as tf
from hf_folders import FAMILIES, make_tokenizer, write_folder
from module_helpers import (
    make_module,
    plain_scores,
    random_rows,
    scores_of,
)
from ray.rllib.core.columns import Columns
from test_action_head import batch_of, conversations, slow_logps
from transformers import AttentionInterface

from rllib_llm import compat
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import micro_batches
from rllib_llm.errors import ModelError
from rllib_llm.modules.loading import load_causal_lm
from rllib_llm.modules.packing_check import check_packing

LENGTHS = (9, 1, 6, 12, 2)


def packed(rows):
    """Return the rows as the only micro-batch, packed, and their indices."""
    ((index, part),) = micro_batches(rows, None, packing=True)
    assert columns.PACKED_ROWS in part
    return part, index


def random_batch(**kwargs):
    rows = random_rows(LENGTHS, **kwargs)
    # A row of one token has nothing to score.
    rows[Columns.LOSS_MASK] &= rows[columns.ATTENTION_MASK]
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("lm"), "qwen2")


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_rows_one_by_one(tmp_path, family, chunk):
    # A window shorter than the rows, in the families that have one.
    window = {"sliding_window": 5} if family.startswith("gemma") else {}
    if chunk and family in ("cohere", "granite"):
        pytest.skip("their output layer is not computed in chunks")
    module = make_module(
        write_folder(tmp_path, family, **window),
        temperature=0.7,
        head_chunk_tokens=chunk,
    )
    rows = random_batch()
    part, index = packed(rows)
    assert module._forward(part)[Columns.EMBEDDINGS].shape[:2] == (1, sum(LENGTHS))
    for found, expected in zip(
        scores_of(module, part), plain_scores(module.lm, rows, 0.7), strict=True
    ):
        torch.testing.assert_close(found, expected[index], atol=1e-5, rtol=1e-5)
        assert found.abs().max() > 0.5
    check_packing(module)


@pytest.mark.parametrize("settings", [{}, {"value_model": "own"}], ids=str)
def test_values_are_before_their_tokens(folder, settings):
    module = make_module(folder, reference=True, **settings)
    with torch.no_grad():
        module.value_head.out.weight.normal_()
    # One column more than the longest row: its value is that after the last token.
    rows = random_batch(width=max(LENGTHS) + 1)
    rows[columns.BOOTSTRAP_COLUMN] = torch.tensor([-1, 1, -1, 12, -1])
    part, index = packed(rows)
    hidden = module._forward(part)[Columns.EMBEDDINGS]
    found = module.compute_values(part, embeddings=hidden)
    expected = module.compute_values(rows)[index]
    for row, length in enumerate(torch.tensor(LENGTHS)[index].tolist()):
        until = slice(0, length + 1)
        torch.testing.assert_close(found[row, until], expected[row, until])
        assert not found[row, length + 1 :].any()
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found, module.compute_values(part))
    reference = module.reference_logps(rows)[index]
    torch.testing.assert_close(module.reference_logps(part), reference)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_a_row_changes_nothing_in_its_neighbours(folder, changed, implementation):
    settings = {"model_kwargs": {"attn_implementation": implementation}}
    module = make_module(folder, **settings)
    rows, others = random_batch(), random_batch()
    others[columns.INPUT_IDS][changed] += 1
    before, after = (module._forward(packed(x)[0]) for x in (rows, others))
    part, index = packed(rows)
    row_of = index[part[columns.PACKED_ROWS].rows]
    for name in (Columns.EMBEDDINGS, Columns.ACTION_DIST_INPUTS):
        of_row = row_of if name == Columns.EMBEDDINGS else index
        left, right = (
            x[name][0] if name == Columns.EMBEDDINGS else x[name]
            for x in (before, after)
        )
        is_other = of_row != changed
        assert torch.equal(left[is_other], right[is_other])
    moved = before[Columns.EMBEDDINGS][0] - after[Columns.EMBEDDINGS][0]
    assert moved[row_of == changed].abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("family", ["qwen3", "llama_tied", "gemma2", "gemma3"])
@pytest.mark.parametrize("row_per_turn", [False, True])
def test_actions_have_their_scores(tmp_path, family, row_per_turn):
    window = {"sliding_window": 5} if family.startswith("gemma") else {}
    module = make_module(write_folder(tmp_path, family, **window)).eval()
    episodes = conversations()
    batch = batch_of(episodes, row_per_turn=row_per_turn)
    part, index = packed(batch)
    expected = module._forward(batch)[Columns.ACTION_DIST_INPUTS][index]
    found = module._forward(part)[Columns.ACTION_DIST_INPUTS]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    by_turn = {tuple(x.tolist()) for x in expected[part[Columns.LOSS_MASK]]}
    slow = [x for turns in episodes for x in slow_logps(module.lm, turns)]
    assert len(by_turn) == len(slow) == 6
    # In order of the rows, which are sorted by length.
    sums = sorted(x[0].item() for x in slow)
    logps = sorted(module.action_logps(part)[:, 0].tolist())
    assert logps == pytest.approx(sums, abs=1e-5)


# The check ------------------------------------------------------------------------

SIZES = {"vocab_size": 340, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
MIXED = {
    "opt": tf.OPTConfig(
        **SIZES, ffn_dim=64, num_attention_heads=4, word_embed_proj_dim=32
    ),
    "bloom": tf.BloomConfig(vocab_size=340, hidden_size=32, n_layer=2, n_head=4),
    "mamba": tf.MambaConfig(**SIZES),
    # A difference of rounding's size: the gradient shows what they mix.
    "lfm2": tf.Lfm2Config(**SIZES, **HEADS, layer_types=["conv", "full_attention"]),
    "jamba": tf.JambaConfig(
        **SIZES, **HEADS, attn_layer_period=2, attn_layer_offset=1, num_experts=2
    ),
}
APART = {
    "mixtral": tf.MixtralConfig(**SIZES, **HEADS, num_local_experts=4),
    "window": tf.MistralConfig(**SIZES, **HEADS, sliding_window=4),
    "neox": tf.GPTNeoXConfig(**SIZES, num_attention_heads=4, intermediate_size=64),
}


def random_module(folder, config, **settings):
    torch.manual_seed(0)
    tf.utils.logging.disable_progress_bar()
    tf.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tf.utils.logging.enable_progress_bar()
    make_tokenizer("qwen2").save_pretrained(folder)
    return make_module(str(folder), **settings)


@pytest.mark.parametrize("kind", MIXED)
def test_models_that_mix_rows_are_refused(tmp_path, kind):
    module = random_module(tmp_path, MIXED[kind])
    module.train()
    with pytest.raises(ModelError, match=f"models of type '{kind}'.*packing to False"):
        check_packing(module)
    assert module.training


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", APART)
def test_models_that_keep_rows_apart_are_accepted(tmp_path, kind, dtype):
    check_packing(random_module(tmp_path, APART[kind], dtype=dtype))


def test_small_leaks_show_in_the_gradient_in_any_data_type(tmp_path):
    module = random_module(tmp_path, MIXED["jamba"], dtype="bfloat16")
    with pytest.raises(ModelError, match="depend on the row before"):
        check_packing(module)


def test_models_without_positions_are_refused(folder):
    module = make_module(folder)
    forward = module.lm.base_model.forward
    module.lm.base_model.forward = lambda input_ids, use_cache: forward(
        input_ids=input_ids, use_cache=use_cache
    )
    with pytest.raises(ModelError, match="take no positions"):
        check_packing(module)


def test_ids_of_the_check_are_the_tokenizers(folder):
    check_packing(make_module(folder, vocabulary=50))


def test_an_adapters_frozen_base_is_checked(folder):
    check_packing(make_module(folder, lora={"rank": 4, "alpha": 8}))


# Flash attention ------------------------------------------------------------------


class VarlenStandIn:
    """Attends as flash attention's kernels for sequences of variable length do.

    Attributes:
        needs_gpu: Whether it refuses to compute, as they do in host memory.
        seen: Keyword arguments of all calls.
    """

    name = "varlen_flash_standin"

    def __init__(self):
        self.needs_gpu, self.seen = True, []

    def __call__(self, layer, query, key, value, mask, scaling=None, **kwargs):
        if self.needs_gpu:
            raise RuntimeError("computes on CUDA devices only")
        assert mask is None
        self.seen.append(kwargs)
        ends = kwargs.get("cu_seq_lens_q")
        ends = [0, query.shape[2]] if ends is None else ends.tolist()
        parts = []
        for begin, end in itertools.pairwise(ends):
            part = (x[:, :, begin:end] for x in (query, key, value))
            attended = torch.nn.functional.scaled_dot_product_attention(
                *part, is_causal=True, scale=scaling, enable_gqa=True
            )
            parts.append(attended)
        return torch.cat(parts, 2).transpose(1, 2), None


@pytest.fixture
def standin(monkeypatch):
    # transformers looks for a kernel on the hub for every name with "flash".
    monkeypatch.setattr(
        tf.PreTrainedModel,
        "_check_and_adjust_attn_implementation",
        lambda self, name, **kwargs: name or "sdpa",
    )
    standin = VarlenStandIn()
    AttentionInterface.register(standin.name, standin)
    return standin


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}], ids=str)
def test_flash_attention_gets_the_boundaries_of_rows(folder, standin, lora):
    # Built in host memory, where flash attention computes nothing.
    kwargs = {"model_kwargs": {"attn_implementation": standin.name}}
    module = make_module(folder, lora=lora, **kwargs)
    assert module.lm.config._attn_implementation == standin.name
    standin.needs_gpu = False
    rows = random_batch()
    part, _ = packed(rows)
    expected = scores_of(make_module(folder, lora=lora), part)
    for found, wanted in zip(scores_of(module, part), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
    boundaries = [0, 1, 3, 9, 18, 30]
    for call in standin.seen:
        assert call["cu_seq_lens_q"].tolist() == boundaries
        assert call["cu_seq_lens_k"].tolist() == boundaries
        assert call["max_length_q"] == call["max_length_k"] == 12
    assert len(standin.seen) == 2  # layers
    check_packing(module)


def test_attention_that_reads_neither_positions_nor_boundaries_is_refused(folder):
    def plain(layer, query, key, value, mask, scaling=None, **kwargs):
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return attended.transpose(1, 2), None

    AttentionInterface.register("plain_standin", plain)
    kwargs = {"model_kwargs": {"attn_implementation": "plain_standin"}}
    with pytest.raises(ModelError, match="'plain_standin' compute other"):
        check_packing(make_module(folder, **kwargs))


def test_loading_keeps_the_chosen_attention_after_a_failed_check(folder, standin):
    lm = load_causal_lm(folder, attn_implementation=standin.name)
    with pytest.raises(ValueError), compat.attention_on_cpu(lm):
        assert lm.config._attn_implementation == "eager"
        raise ValueError
    assert lm.config._attn_implementation == standin.name
