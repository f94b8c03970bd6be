"""The last MLP of policies is computed where logits are needed, with equal results."""

from __future__ import annotations

import copy

import pytest
import torch
from hf_folders import write_folder
from module_helpers import LORA, make_module, plain_scores, random_rows, scores_of
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import micro_batches
from rllib_llm.modules import last_mlp
from rllib_llm.modules.last_mlp import limit_last_mlp, only_read_at

CPU = torch.device("cpu")
LENGTHS = (9, 1, 6, 12, 2)
LIMITED = ("qwen2", "qwen3", "llama", "gemma2", "gemma3")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(last_mlp, "_STEP", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("lm"), "qwen2")


def mlp_of(module):
    return module.lm.base_model.layers[-1].mlp


def is_limited(module):
    return "forward" in vars(mlp_of(module))


def random_batch():
    rows = random_rows(LENGTHS)
    rows[Columns.LOSS_MASK] &= rows[columns.ATTENTION_MASK]
    return rows


def computed_tokens(module, rows):
    """Return the number of tokens that reach the last layer's gate projection."""
    counts = []
    hook = mlp_of(module).gate_proj.register_forward_hook(
        lambda layer, inputs, output: counts.append(output[..., 0].numel())
    )
    module._forward(rows)
    hook.remove()
    (count,) = counts
    return count


def results(module, rows):
    """Return log-probabilities, entropies and all gradients."""
    module.zero_grad()
    logps, entropies = scores_of(module, rows)
    (logps * torch.cos(torch.arange(logps.numel())).view_as(logps)).sum().backward()
    return logps, entropies, {n: p.grad for n, p in module.named_parameters()}


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("family", LIMITED)
def test_scores_and_gradients_are_the_same(tmp_path, family, packing):
    module = make_module(write_folder(tmp_path, family), value_head=None)
    limited = copy.deepcopy(module)
    limit_last_mlp(limited, CPU)
    assert is_limited(limited) and not is_limited(module)
    rows = random_batch()
    if packing:
        ((_, rows),) = micro_batches(rows, None, packing=True)
    logps, entropies, gradients = results(module, rows)
    found = results(limited, rows)
    torch.testing.assert_close(found[0], logps, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], entropies, atol=1e-5, rtol=1e-5)
    assert logps.abs().max() > 0.5
    for name, expected in gradients.items():
        torch.testing.assert_close(found[2][name], expected, atol=1e-5, rtol=1e-4)
    if not packing:
        expected = plain_scores(module.lm, rows)
        torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)


def test_only_tokens_before_trained_ones_and_a_few_others_are_computed(folder):
    module = make_module(folder, value_head=None)
    limit_last_mlp(module, CPU)
    rows = random_rows((30, 30))
    rows[Columns.LOSS_MASK][:] = False
    assert computed_tokens(module, rows) == 0
    for trained, computed in ((1, 4), (4, 4), (5, 8), (29, 32)):
        rows[Columns.LOSS_MASK][0, 1 : 1 + trained] = True
        assert computed_tokens(module, rows) == computed
    rows[Columns.LOSS_MASK][:, 1:] = True
    assert computed_tokens(module, rows) == 60


def test_the_tokens_that_are_read_are_among_the_chosen():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        is_read = torch.rand(3, 7, generator=generator) < 0.4
        rows, places = is_read.nonzero(as_tuple=True)
        # In any order, and repeated.
        order = torch.randperm(len(rows), generator=generator).repeat(2)
        chosen = last_mlp._chosen(rows[order], places[order], torch.Size((3, 7, 5)))
        assert len(chosen) == len(set(chosen.tolist()))
        assert len(chosen) in (21, -(-len(rows) // 4) * 4)
        assert {r * 7 + c for r, c in is_read.nonzero().tolist()} <= set(
            chosen.tolist()
        )


def test_outside_of_the_block_every_token_is_computed(folder):
    module = make_module(folder, value_head=None)
    limited = copy.deepcopy(module)
    limit_last_mlp(limited, CPU)
    ids = torch.arange(24).view(2, 12)
    hidden, found = (m.lm.base_model(ids).last_hidden_state for m in (module, limited))
    assert torch.equal(found, hidden)
    with only_read_at((torch.tensor([0]), torch.tensor([3]))):
        found = limited.lm.base_model(ids).last_hidden_state
    torch.testing.assert_close(found[0, 3], hidden[0, 3])
    assert not torch.allclose(found[1], hidden[1])


@pytest.mark.parametrize(
    ("settings", "limited"),
    [
        ({"value_head": None}, True),
        ({"value_model": "own"}, True),
        ({"value_model": "shared"}, False),
        ({"value_head": None, "lora": LORA}, True),
        ({"value_head": None, "dtype": "bfloat16"}, True),
        ({"value_head": None, "gradient_checkpointing": True}, False),
    ],
    ids=str,
)
def test_who_reads_all_hidden_states_gets_them(folder, settings, limited):
    module = make_module(folder, **settings)
    limit_last_mlp(module, CPU)
    assert is_limited(module) == limited


def test_values_of_a_separate_trunk_are_those_of_whole_rows(folder):
    module = make_module(folder, value_model="own")
    with torch.no_grad():
        module.value_head.out.weight.normal_()
    rows = random_batch()
    expected = module.compute_values(rows)
    limit_last_mlp(module, CPU)
    embeddings = module._forward(rows)[Columns.EMBEDDINGS]
    assert torch.equal(module.compute_values(rows, embeddings), expected)


def test_other_devices_and_layers_are_left_alone(folder, tmp_path):
    module = make_module(folder, value_head=None)
    limit_last_mlp(module, torch.device("meta"))
    assert not is_limited(module)
    other = make_module(write_folder(tmp_path, "gpt2"), value_head=None)
    limit_last_mlp(other, CPU)
    assert all("forward" not in vars(m) for m in other.lm.modules())


def test_an_mlp_whose_output_reaches_other_tokens_is_left_alone(folder):
    module = make_module(folder, value_head=None)
    norm = module.lm.base_model.norm
    plain = norm.forward
    norm.forward = lambda x: plain(x + x.mean(1, keepdim=True))
    limit_last_mlp(module, CPU)
    assert not is_limited(module)


def test_a_copy_has_an_mlp_of_its_own(folder):
    module = make_module(folder, value_head=None)
    limit_last_mlp(module, CPU)
    copied = copy.deepcopy(module)
    rows = random_batch()
    expected, _ = scores_of(module, rows)
    with torch.no_grad():
        for parameter in mlp_of(module).parameters():
            parameter.zero_()
    found, _ = scores_of(copied, rows)
    assert torch.equal(found, expected)
    assert not torch.allclose(scores_of(module, rows)[0], expected)


def test_a_replaced_forward_stays(folder):
    module = make_module(folder, value_head=None)
    replacement = mlp_of(module).forward
    mlp_of(module).forward = replacement
    limit_last_mlp(module, CPU)
    assert mlp_of(module).forward is replacement
