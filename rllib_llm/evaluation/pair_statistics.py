"""Accuracy and calibration of scores on preference pairs."""

from __future__ import annotations

import dataclasses

import numpy as np

from rllib_llm.evaluation.success_statistics import Estimate, share_of_tasks

_BINS = 10


@dataclasses.dataclass(frozen=True)
class PairEvaluation:
    """Agreement of scores with preference pairs.

    The scores' probability that the chosen episode is better is
    ``sigmoid(s_chosen - s_rejected)``.

    Attributes:
        pairs: Number of pairs.
        accuracy: Share of pairs whose chosen episode has the higher score; a tie counts
            half.
        log_loss: Mean negative log-probability of the labels, in nats; log 2 for equal
            scores.
        calibration_error: Expected calibration error: mean absolute difference of
            confidence and accuracy, over ten bins of confidence in [0.5, 1].
        score_mean: Mean of all scores.
        score_std: Their standard deviation.
    """

    pairs: int
    accuracy: Estimate
    log_loss: float
    calibration_error: float
    score_mean: float
    score_std: float


def evaluate_pairs(scores: np.ndarray) -> PairEvaluation:
    """Return the agreement of scores with pairs.

    Args:
        scores: Scores of the chosen and the rejected episode. [P, 2], P >= 1
    """
    difference = scores[:, 0] - scores[:, 1]
    is_right = 0.5 * (1 + np.sign(difference))
    confidence = 1 / (1 + np.exp(-np.abs(difference)))  # in [0.5, 1]
    return PairEvaluation(
        pairs=len(scores),
        accuracy=share_of_tasks([[float(each)] for each in is_right]),
        log_loss=float(np.logaddexp(0.0, -difference).mean()),
        calibration_error=calibration_error(confidence, is_right),
        score_mean=float(scores.mean()),
        score_std=float(scores.std()),
    )


def calibration_error(confidence: np.ndarray, is_right: np.ndarray) -> float:
    """Return the expected calibration error (Guo et al. 2017, arXiv:1706.04599).

    Args:
        confidence: Probability of each prediction, in [0.5, 1]. [P]
        is_right: 1 for right predictions, 0 for wrong ones. [P]
    """
    bins = np.minimum(((confidence - 0.5) * 2 * _BINS).astype(int), _BINS - 1)
    error = 0.0
    for number in np.unique(bins):
        inside = bins == number
        gap = abs(confidence[inside].mean() - is_right[inside].mean())
        error += inside.mean() * gap
    return float(error)
