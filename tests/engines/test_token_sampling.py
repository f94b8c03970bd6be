"""Sampling: distributions against a float64 reference, frequencies, edge cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_reference import reference_logps

from rllib_llm.engines import SamplingParams
from rllib_llm.engines.token_sampling import BatchSampler, draw_uniforms


def _params(**settings) -> SamplingParams:
    return SamplingParams(max_new_tokens=1, seed=0, **settings)


def processed_logps(logits, params) -> torch.Tensor:
    return BatchSampler(params, logits.device).logps(logits)


def sample_tokens(logits, uniforms, params) -> tuple[np.ndarray, np.ndarray]:
    return BatchSampler(params, logits.device)(logits, uniforms)


MIXED = [
    _params(),
    _params(temperature=0.5),
    _params(temperature=2.0, top_k=5),
    _params(top_p=0.6),
    _params(temperature=0.7, top_k=20, top_p=0.8),
    _params(temperature=0.0, top_k=1),
    _params(top_k=1),
    _params(top_p=1e-6),
    _params(top_k=1000),
]


def test_processed_logps_equal_the_reference_and_sum_to_one():
    logits = torch.randn(len(MIXED), 64, generator=torch.manual_seed(0)) * 2
    logps = processed_logps(logits, MIXED)
    assert logps.dtype == torch.float32
    expected = np.stack([reference_logps(logits[i], p) for i, p in enumerate(MIXED)])
    np.testing.assert_allclose(logps.numpy(), expected, atol=1e-5)
    torch.testing.assert_close(logps.exp().sum(-1), torch.ones(len(MIXED)))
    kept = torch.isfinite(logps).sum(-1).tolist()
    assert kept[0] == kept[1] == kept[5] == kept[8] == 64
    assert kept[2] == 5
    assert kept[6] == kept[7] == 1


def test_samples_stay_inside_the_kept_support():
    logits = torch.randn(1, 64, generator=torch.manual_seed(1))
    for params in MIXED[2:5]:
        support = torch.isfinite(processed_logps(logits, [params]))[0].numpy()
        uniforms = [0.0, 1.0 - 2**-53, *draw_uniforms(3, 500)]
        count = len(uniforms)
        tokens, logps = sample_tokens(
            logits.expand(count, -1), uniforms, [params] * count
        )
        assert support[tokens].all()
        assert np.isfinite(logps).all()
        assert set(tokens) == set(np.flatnonzero(support))


def test_frequencies_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]])
    count = 20_000
    tokens, _ = sample_tokens(
        logits.expand(count, -1), draw_uniforms(0, count), [_params()] * count
    )
    share = np.bincount(tokens, minlength=4) / count
    np.testing.assert_allclose(share, logits.softmax(-1)[0], atol=0.015)
    assert share[3] == 0.0


def test_ties_at_the_cut_keep_exactly_k():
    logps = processed_logps(torch.zeros(1, 10), [_params(top_k=3)])
    assert torch.isfinite(logps).sum() == 3


def test_greedy_reports_the_distribution_at_temperature_one():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    tokens, logps = sample_tokens(logits, [0.0], [_params(temperature=0.0, top_k=1)])
    assert tokens.tolist() == [1]
    assert logps[0] == pytest.approx(logits.log_softmax(-1)[0, 1].item(), abs=1e-6)


def test_rows_do_not_depend_on_each_other():
    logits = torch.randn(len(MIXED), 64, generator=torch.manual_seed(2))
    uniforms = draw_uniforms(5, len(MIXED))
    tokens, logps = sample_tokens(logits, uniforms, MIXED)
    for row, params in enumerate(MIXED):
        alone = sample_tokens(logits[row : row + 1], uniforms[row : row + 1], [params])
        assert (alone[0][0], alone[1][0]) == (tokens[row], logps[row])


def test_bfloat16_logits_are_sampled_in_float32():
    logits = torch.randn(2, 64).bfloat16()
    logps = processed_logps(logits, [_params()] * 2)
    torch.testing.assert_close(logps, logits.float().log_softmax(-1))


def test_longer_draws_start_with_the_shorter_ones():
    np.testing.assert_array_equal(draw_uniforms(9, 100)[:10], draw_uniforms(9, 10))
    assert (draw_uniforms(9, 10) != draw_uniforms(10, 10)).all()
