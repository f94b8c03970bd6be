"""Output layer in chunks: equal scores and gradients, limited memory."""

from __future__ import annotations

import functools
import gc
import itertools

import pytest
import torch
from hf_folders import write_folder
from module_helpers import LORA, make_module, random_rows
from ray.rllib.core.columns import Columns

from rllib_llm.errors import ModelError


def scores_and_gradients(module, rows):
    """Return the gradients of a loss of log-probabilities and entropies."""
    scores = module.forward_train(rows)[Columns.ACTION_DIST_INPUTS]
    (scores[..., 0].square().sum() - 0.3 * scores[..., 1].square().sum()).backward()
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return scores.detach(), gradients


@pytest.mark.parametrize("family", ["qwen2", "qwen2_tied", "gemma2"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)]
)
@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_chunks_change_neither_scores_nor_gradients(
    tmp_path, family, dtype, tolerance, chunk
):
    folder = write_folder(tmp_path, family)
    found = []
    for head_chunk_tokens in (None, chunk):
        module = make_module(
            folder, head_chunk_tokens=head_chunk_tokens, temperature=0.7
        )
        found.append(scores_and_gradients(module.to(dtype), random_rows()))
    (plain, expected), (scores, gradients) = found
    assert scores.any()
    torch.testing.assert_close(scores, plain, atol=1e-6, rtol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (gradients[name] - gradient).norm() <= tolerance * gradient.norm(), name


def test_adapters_get_their_gradient_through_chunks(tmp_path):
    folder = write_folder(tmp_path, "qwen2")
    found = []
    for chunk in (None, 4):
        module = make_module(folder, lora=LORA, head_chunk_tokens=chunk)
        # In float32 the order of sums differs by more between kinds of CPUs.
        found.append(scores_and_gradients(module.to(torch.float64), random_rows()))
    assert all("lora_" in n for n in found[1][1])
    for name, gradient in found[0][1].items():
        difference = (found[1][1][name] - gradient).norm()
        assert difference <= 1e-11 * gradient.norm(), name


def peak_mib(function) -> float:
    """Return the peak memory that torch allocates in addition, in MiB."""
    gc.collect()  # a module of an earlier test must not be freed meanwhile
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    moved = [
        e.nbytes()
        for e in sorted(events, key=lambda e: e.start_ns())
        if e.name() == "[memory]"
    ]
    return max(itertools.accumulate(moved)) / 2**20


def test_peak_memory_is_limited_by_the_chunk(tmp_path):
    folder = write_folder(tmp_path, "qwen2", vocab_size=50_000)
    peaks = {}
    for chunk in (None, 16):
        for rows in (2, 4):
            module = make_module(folder, head_chunk_tokens=chunk)
            batch = random_rows(lengths=(60,) * rows, vocab=50_000)
            batch[Columns.LOSS_MASK][:, 1:] = True
            peaks[chunk, rows] = peak_mib(
                functools.partial(scores_and_gradients, module, batch)
            )
    logits = 59 * 50_000 * 4 / 2**20  # of one row: 11 MiB
    assert peaks[None, 4] - peaks[None, 2] > 3.5 * logits  # logits and their gradient
    assert peaks[16, 4] - peaks[16, 2] < 0.2 * logits
    assert peaks[16, 4] < 0.7 * peaks[None, 4]


def test_head_chunks_with_scaled_logits_are_refused(tmp_path):
    folder = write_folder(tmp_path, "cohere")
    with pytest.raises(ModelError, match="head_chunk_tokens=8"):
        make_module(folder, head_chunk_tokens=8)
