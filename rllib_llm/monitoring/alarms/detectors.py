"""Conditions of alarms, as functions of the values of past iterations.

A detector takes one or more series, newest value last, and its thresholds as keyword
arguments. It returns a description if the condition holds, else None. If a series is
shorter than a window (early in a run, or if the metric is not reported), the condition
does not hold.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

Series = Sequence[float]


def finite(series: Series) -> list[float]:
    """Return the values that are finite numbers."""
    return [v for v in series if math.isfinite(v)]


def window_mean(series: Series, window: int) -> float | None:
    """Return the mean of the last ``window`` finite values; None if there are fewer."""
    last = finite(series)[-window:]
    return statistics.fmean(last) if len(last) == window else None


def first_mean(series: Series, count: int, window: int) -> float | None:
    """Return the mean of the first finite values, or None if they reach the window."""
    values = finite(series)
    return statistics.fmean(values[:count]) if len(values) >= count + window else None


def is_above(series: Series, *, above: float, window: int) -> str | None:
    """Describe a mean of the last iterations above a bound, or an infinite value."""
    if series and series[-1] == math.inf:
        return f"infinite, above {above:g}"
    now = window_mean(series, window)
    if now is None or now <= above:
        return None
    return f"{_shown(now, window)}, above {above:g}"


def is_below(series: Series, *, below: float, window: int) -> str | None:
    """Describe a mean of the last iterations below a bound."""
    now = window_mean(series, window)
    if now is None or now >= below:
        return None
    return f"{_shown(now, window)}, below {below:g}"


def has_grown(
    series: Series, *, factor: float, above: float, window: int, baseline: int
) -> str | None:
    """Describe a mean above a bound that is a multiple of the run's first values."""
    now = window_mean(series, window)
    start = first_mean(series, baseline, window)
    if now is None or start is None or now <= above or now <= factor * start:
        return None
    times = f"{now / start:.1f} times" if start else "up from"
    return f"{_shown(now, window)}, {times}" + _of_first(start, baseline)


def was_never_below(series: Series, *, below: float, window: int) -> str | None:
    """Describe a value that has never been below a bound."""
    values = finite(series)
    if len(values) < window or min(values) < below:
        return None
    return f"{values[-1]:.3g}, and was never below {below:g}"


def variance_is_gone(
    zero_variance_groups: Series,
    return_std: Series,
    *,
    above: float,
    fraction: float,
    window: int,
    baseline: int,
) -> str | None:
    """Describe zero-variance groups, or a collapsed standard deviation of returns.

    The second condition is that of RAGEN-2: the standard deviation of returns falls
    below a tenth of its mean in the first ten iterations.
    """
    share = is_above(zero_variance_groups, above=above, window=window)
    if share:
        return f"the share of zero-variance groups is {share}"
    now, start = (
        window_mean(return_std, window),
        first_mean(return_std, baseline, window),
    )
    if now is None or not start or now >= fraction * start:
        return None
    text = f"the standard deviation of returns is {_shown(now, window)}, "
    return text + f"{now / start:.0%}" + _of_first(start, baseline)


def has_spiked(series: Series, *, factor: float, history: int) -> str | None:
    """Describe a newest value far above the median of those before it."""
    values = finite(series)
    before = values[-history - 1 : -1]
    if len(before) < max(3, history // 4):
        return None
    usual = statistics.median(before)
    if values[-1] <= factor * usual or usual <= 0.0:
        return None
    return f"{values[-1]:.3g}, {values[-1] / usual:.0f} times the median {usual:.3g}"


def is_not_finite(*series: Series) -> str | None:
    """Describe a newest value that is NaN or infinite, or skipped optimiser steps.

    The last series counts the steps skipped since the run began.
    """
    *values, counts = series
    newest = [s[-1] for s in values if s]
    if any(not math.isfinite(v) for v in newest):
        return "a loss or gradient is not finite"
    skipped = counts[-1] - (counts[-2] if len(counts) > 1 else 0.0) if counts else 0.0
    if skipped > 0:
        return f"{skipped:.0f} optimiser steps had gradients that are not finite"
    return None


def has_dropped(series: Series, *, fraction: float, window: int) -> str | None:
    """Describe a mean far below the best mean of as many iterations.

    The drop must also exceed eight standard errors of such a mean, estimated from the
    differences between successive iterations.
    """
    values = finite(series)
    now = window_mean(values, window)
    if now is None or len(values) < 4 * window:
        return None
    before = values[:-window]
    means = [
        statistics.fmean(before[i : i + window])
        for i in range(len(before) - window + 1)
    ]
    best = max(means)
    fall = best - now
    steps = [abs(b - a) for a, b in itertools.pairwise(before)]
    # Median absolute difference to standard deviation of one iteration: 1.4826 is the
    # factor for normal noise, and a difference has twice the variance of a value.
    noise = 1.4826 * statistics.median(steps) / math.sqrt(2.0)
    if fall <= fraction * abs(best) or fall <= 8.0 * noise / math.sqrt(window):
        return None
    return f"{_shown(now, window)}, down from {best:.3g}"


def has_happened(series: Series) -> str | None:
    """Describe a newest value above zero."""
    if not series or not series[-1] > 0:
        return None
    return f"{series[-1]:.0f}"


def _shown(value: float, window: int) -> str:
    return f"{value:.3g}" + (f" (mean of {window} iterations)" if window > 1 else "")


def _of_first(start: float, baseline: int) -> str:
    return f" the {start:.3g} of the first {baseline} iterations"
