"""Rates with intervals, paired comparisons, ranking quality. Numpy and scipy.

What is not defined is NaN with a reason, never 0: a rate of no trials, an AUROC of one class.
Frames of an episode are not independent: give `clusters` wherever rows come from episodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from robo_rl.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number and how sure it is. NaN where undefined, and `reason` says why."""

    value: float
    low: float = math.nan
    high: float = math.nan
    count: int = 0  # independent units behind it: trials, pairs, clusters
    reason: str = ""

    @property
    def defined(self) -> bool:
        return not math.isnan(self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedTest:
    """Outcomes of the same initial states under two policies, and the exact McNemar test."""

    both: int
    only_a: int
    only_b: int
    neither: int
    p_value: float  # two-sided; NaN without any pair
    reason: str = ""


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """Success rate with its Wilson score interval (no continuity correction).

    Raises:
        DataError: counts that cannot be, a confidence outside (0, 1).
    """
    z = _normal_quantile(confidence)
    if not 0 <= successes <= trials:
        raise DataError(f"successes must be in 0..trials, got {successes} of {trials}")
    if trials == 0:
        return Estimate(value=math.nan, reason="no trials")
    rate = successes / trials
    scale = 1.0 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / scale
    half = z * math.sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2) / scale
    # at 0 and at n the bound is exact; rounding would leave 1e-17
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Estimate(value=rate, low=low, high=high, count=trials)


def mcnemar_exact(success_a: np.ndarray, success_b: np.ndarray) -> PairedTest:
    """Two-sided exact McNemar test of two policies on the same initial states: (N,) bool each.

    Among the pairs that differ, either side is equally likely to win: binomial with probability 1/2.
    Without such a pair p is 1 (nothing speaks for a difference).

    Raises:
        DataError: not the same number of results, or results that are not 0/1.
    """
    a, b = _binary(success_a, "success_a"), _binary(success_b, "success_b")
    _paired(a, b)
    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    both, neither = int((a & b).sum()), int((~a & ~b).sum())
    # the two tails of a symmetric binomial are alike; the middle value would be counted twice
    tail = float(stats.binom.cdf(min(only_a, only_b), only_a + only_b, 0.5))
    return PairedTest(
        both=both,
        only_a=only_a,
        only_b=only_b,
        neither=neither,
        p_value=min(1.0, 2.0 * tail) if len(a) else math.nan,
        reason="" if len(a) else "no pairs",
    )


def paired_difference_interval(
    success_a: np.ndarray,
    success_b: np.ndarray,
    confidence: float = 0.95,
    *,
    method: Literal["newcombe", "bootstrap"] = "newcombe",
    rng: np.random.Generator | None = None,
    resamples: int = 5000,
) -> Estimate:
    """rate(a) - rate(b) on the same initial states: (N,) bool each.

    "newcombe": the square-and-add Wilson interval for paired proportions (Newcombe 1998, method 10).
    "bootstrap": percentile interval over pairs; needs `rng`.

    Raises:
        DataError: not the same number of results, results that are not 0/1, or no `rng` to draw with.
    """
    a, b = _binary(success_a, "success_a"), _binary(success_b, "success_b")
    _paired(a, b)
    if len(a) == 0:
        return Estimate(value=math.nan, reason="no pairs")
    if method == "bootstrap":
        if rng is None:
            raise DataError("a bootstrap interval needs rng=numpy.random.default_rng(seed)")
        difference = a.astype(np.float64) - b
        return bootstrap_mean_interval(difference, confidence=confidence, rng=rng, resamples=resamples)
    if method != "newcombe":
        raise DataError(f"method must be 'newcombe' or 'bootstrap', got {method!r}")
    low, high = _newcombe_paired(a, b, confidence)
    return Estimate(value=float(a.mean() - b.mean()), low=low, high=high, count=len(a))


def bootstrap_mean_interval(
    values: np.ndarray,
    clusters: np.ndarray | None = None,
    confidence: float = 0.95,
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
) -> Estimate:
    """Mean with a percentile bootstrap interval that redraws whole clusters (episodes).

    Args:
        values: (N,)
        clusters: (N,) episode of each value; None: every value is independent.

    Returns:
        The mean of all values; its interval is NaN (with a reason) when there is a single cluster.

    Raises:
        DataError: lengths that differ, values that are not finite.
    """
    _normal_quantile(confidence)
    values = np.asarray(values, dtype=np.float64)
    clusters = np.arange(len(values)) if clusters is None else np.asarray(clusters)
    if values.ndim != 1 or clusters.shape != values.shape:
        raise DataError(f"values and clusters must be (N,), got {values.shape} and {clusters.shape}")
    _finite(values, "value")
    if len(values) == 0:
        return Estimate(value=math.nan, reason="no values")
    _, member = np.unique(clusters, return_inverse=True)
    size, total = np.bincount(member), np.bincount(member, weights=values)
    mean, count = float(values.mean()), len(size)
    if count == 1:
        return Estimate(value=mean, count=1, reason="one cluster says nothing of the spread between clusters")
    means = np.empty(resamples)
    block = max(1, 4_000_000 // count)  # keeps the matrix of draws below 32 MB
    for begin in range(0, resamples, block):
        draws = rng.multinomial(count, np.full(count, 1 / count), size=min(block, resamples - begin))
        means[begin : begin + len(draws)] = (draws @ total) / (draws @ size)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value=mean, low=float(low), high=float(high), count=count)


def auroc(scores: np.ndarray, labels: np.ndarray) -> Estimate:
    """P(score of a success > score of a failure) + half the ties (METHODS 8): (N,), (N,) 0/1.

    tau_a of outcomes is 2 AUROC - 1. No interval: bootstrap over episodes if one is needed.

    Raises:
        DataError: lengths that differ, scores that are not finite, labels that are not 0/1.
    """
    scores, success = np.asarray(scores, dtype=np.float64), _binary(labels, "labels")
    if scores.shape != success.shape:
        raise DataError(f"scores and labels must be (N,), got {scores.shape} and {success.shape}")
    _finite(scores, "score")
    positives = int(success.sum())
    negatives = len(success) - positives
    if positives == 0 or negatives == 0:
        return Estimate(value=math.nan, count=len(success), reason=f"{positives} successes and {negatives} failures")
    rank_sum = stats.rankdata(scores)[success].sum()
    value = (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
    return Estimate(value=float(value), count=len(success))


def brier(probabilities: np.ndarray, labels: np.ndarray) -> Estimate:
    """Mean squared error of probabilities against 0/1 outcomes (METHODS 8): (N,), (N,)."""
    p, success = np.asarray(probabilities, dtype=np.float64), _binary(labels, "labels")
    if p.shape != success.shape:
        raise DataError(f"probabilities and labels must be (N,), got {p.shape} and {success.shape}")
    bad = np.flatnonzero(~((p >= 0) & (p <= 1)))
    if len(bad):
        raise DataError(f"probabilities must lie in [0, 1]; number {bad[0]} is {p[bad[0]]}")
    if len(p) == 0:
        return Estimate(value=math.nan, reason="no labelled samples")
    return Estimate(value=float(np.square(p - success).mean()), count=len(p))


def pearson(a: np.ndarray, b: np.ndarray) -> Estimate:
    """Pearson's r: (N,), (N,). A constant input has none.

    Raises:
        DataError: lengths that differ, values that are not finite.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise DataError(f"a correlation needs two (N,) arrays, got {a.shape} and {b.shape}")
    _finite(a, "value")
    _finite(b, "value")
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Estimate(value=math.nan, count=len(a), reason="undefined (fewer than two values, or constant ones)")
    return Estimate(value=float(np.corrcoef(a, b)[0, 1]), count=len(a))


def _newcombe_paired(a: np.ndarray, b: np.ndarray, confidence: float) -> tuple[float, float]:
    n = len(a)
    both, only_a, only_b, neither = (int(x.sum()) for x in (a & b, a & ~b, ~a & b, ~a & ~b))
    rate_a, rate_b = wilson_interval(both + only_a, n, confidence), wilson_interval(both + only_b, n, confidence)
    product = float(both * neither - only_a * only_b)
    if product > 0:  # Newcombe's continuity correction of phi
        product = max(product - n / 2, 0.0)
    marginals = float((both + only_a) * (only_b + neither)) * float((both + only_b) * (only_a + neither))
    phi = product / math.sqrt(marginals) if marginals > 0 else 0.0

    def reach(x: float, y: float) -> float:
        return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

    difference = rate_a.value - rate_b.value
    low = difference - reach(rate_a.value - rate_a.low, rate_b.high - rate_b.value)
    high = difference + reach(rate_a.high - rate_a.value, rate_b.value - rate_b.low)
    return low, high


def _normal_quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise DataError(f"confidence must lie between 0 and 1, got {confidence}")
    return float(stats.norm.ppf(0.5 + confidence / 2))


def _binary(values: np.ndarray, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{name} must be (N,), got {array.shape}")
    bad = np.flatnonzero(~np.isin(array, (0, 1)))
    if len(bad):
        raise DataError(f"{name} must be 0 or 1; number {bad[0]} is {array[bad[0]]}")
    return array.astype(bool)


def _paired(a: np.ndarray, b: np.ndarray) -> None:
    if a.shape != b.shape:
        raise DataError(f"a paired comparison needs the same initial states: {len(a)} results against {len(b)}")


def _finite(values: np.ndarray, name: str) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise DataError(f"every {name} must be finite; number {bad[0]} is {values[bad[0]]}")
