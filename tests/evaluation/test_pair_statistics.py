"""Accuracy and calibration on pairs."""

from __future__ import annotations

import numpy as np
import pytest

from rllib_llm.evaluation.pair_statistics import calibration_error, evaluate_pairs


def test_accuracy_and_log_loss_of_known_scores():
    result = evaluate_pairs(np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 3.0]]))
    assert result.pairs == 3
    assert result.accuracy.mean == pytest.approx(0.5)  # right, wrong, a tie
    expected = [np.log1p(np.exp(-d)) for d in (2.0, -1.0, 0.0)]
    assert result.log_loss == pytest.approx(np.mean(expected))
    assert result.score_mean == pytest.approx(1.5)


def test_calibrated_scores_have_a_small_error_and_scaled_ones_a_large():
    rng = np.random.default_rng(0)
    margin = rng.normal(0, 1.5, 20_000)
    is_right = rng.random(20_000) < 1 / (1 + np.exp(-margin))
    difference = np.where(is_right, margin, -margin)
    scores = np.stack([difference, np.zeros_like(difference)], axis=1)
    assert evaluate_pairs(scores).calibration_error < 0.015
    assert evaluate_pairs(4 * scores).calibration_error > 0.1


def test_calibration_against_a_loop():
    confidence, right = np.array([0.5, 0.52, 0.93, 1.0]), np.array([1, 0, 1, 0.5])
    expected = 0.5 * abs(0.51 - 0.5) + 0.25 * abs(0.93 - 1) + 0.25 * abs(1 - 0.5)
    assert calibration_error(confidence, right) == pytest.approx(expected)
