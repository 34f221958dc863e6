"""Can a judge's success probability be mended afterwards? Temperature and isotonic regression, on held-out episodes.

For reports: what is fitted on one half of the episodes is measured on the other. (`calibrate` is what a judge of ours
carries inside it.) A judge whose order is right needs no more than this; one whose order is wrong is not helped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression

from reward_models.metrics import ReliabilityBin, ece, reliability_bins
from robo_rl.errors import DataError
from robo_rl.statistics import Estimate, brier

Method = Literal["temperature", "isotonic"]
COLDEST, HOTTEST = 0.05, 20.0  # a temperature outside would be certainty from nothing, or none at all
EDGE = 1e-6  # probabilities are kept this far from 0 and 1 while a temperature is fitted


class Recalibration(Protocol):
    """A rising map of probabilities."""

    @property
    def reason(self) -> str:
        """Why it is the identity; empty when it was fitted."""
        ...

    def apply(self, probabilities: np.ndarray) -> np.ndarray:
        """float64 (n,) of (n,)."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Temperature:
    """p' = sigmoid(logit(p) / T): T > 1 makes less certain, T < 1 more, T = 1 is the identity; .5 stays .5."""

    temperature: float = 1.0
    reason: str = ""

    def apply(self, probabilities: np.ndarray) -> np.ndarray:
        p = _probabilities(probabilities)
        return p if self.temperature == 1.0 else np.asarray(expit(logit(p) / self.temperature))


@dataclass(frozen=True, kw_only=True, slots=True)
class Isotonic:
    """A rising curve through `points`, straight between them and constant outside. Makes ties; keeps the order."""

    points: tuple[tuple[float, float], ...] = ()  # (p, p'), p rising; empty: the identity
    reason: str = ""

    def apply(self, probabilities: np.ndarray) -> np.ndarray:
        p = _probabilities(probabilities)
        if not self.points:
            return p
        known, given = np.array(self.points, dtype=np.float64).T
        return np.asarray(np.interp(p, known, given))


def fit_temperature(probabilities: np.ndarray, labels: np.ndarray) -> Temperature:
    """The temperature with the least log loss on (n,), (n,) 0 or 1, between 1/20 and 20.

    One outcome only would drive it to certainty: the identity, with a reason.
    """
    p, z, reason = _both(probabilities, labels)
    if reason:
        return Temperature(reason=reason)
    slope = logit(p.clip(EDGE, 1 - EDGE))

    def loss(log_temperature: float) -> float:
        x = slope * math.exp(-log_temperature)
        return float(np.mean(np.logaddexp(0.0, x) - z * x))

    found = minimize_scalar(loss, bounds=(math.log(COLDEST), math.log(HOTTEST)), method="bounded")
    # the search is over an interval and ends near its minimum, so it must not lose to doing nothing
    best = float(found.x) if found.fun < loss(0.0) else 0.0
    return Temperature(temperature=math.exp(best))


def fit_isotonic(probabilities: np.ndarray, labels: np.ndarray) -> Isotonic:
    """The rising map with the least squared error on (n,), (n,) 0 or 1 (scikit-learn's IsotonicRegression).

    Where it was fitted its Brier score is never worse than before, since the identity rises, too. One outcome only:
    the identity, with a reason.
    """
    p, z, reason = _both(probabilities, labels)
    if reason:
        return Isotonic(reason=reason)
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(p, z)
    points = zip(fitted.X_thresholds_.tolist(), fitted.y_thresholds_.tolist(), strict=True)
    return Isotonic(points=tuple((float(x), float(y)) for x, y in points))


def split_by_episode(
    episodes: Sequence[str], labels: np.ndarray, *, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit to and rows to measure on, bool (n,) each: halves of the episodes, each outcome halved.

    `episodes` (n names) keeps all rows of one episode on one side. Outcomes are those of an episode's first row.
    """
    names, z = np.asarray(episodes, dtype=np.str_), _labels(labels)
    if names.shape != z.shape:
        raise DataError(f"episodes and labels must be (n,), got {names.shape} and {z.shape}")
    known, first, member = np.unique(names, return_index=True, return_inverse=True)
    to_fit = np.zeros(len(known), dtype=bool)
    for outcome in (0.0, 1.0):
        rows = rng.permutation(np.flatnonzero(z[first] == outcome))
        to_fit[rows[: (len(rows) + 1) // 2]] = True
    return to_fit[member], ~to_fit[member]


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationReport:
    """How well probabilities agree with outcomes on held-out episodes, before and after a map fitted to the others."""

    method: Method
    brier_before: Estimate
    brier_after: Estimate
    ece_before: Estimate
    ece_after: Estimate
    diagram_before: tuple[ReliabilityBin, ...] = ()  # equal-mass bins, for a reliability diagram
    diagram_after: tuple[ReliabilityBin, ...] = ()
    fitted: Recalibration = field(default_factory=Temperature)
    num_fitted: int = 0  # rows
    num_measured: int = 0

    @property
    def reason(self) -> str:
        """Why nothing was fitted; empty when it was."""
        return self.fitted.reason


def recalibrate(
    probabilities: np.ndarray,
    labels: np.ndarray,
    episodes: Sequence[str],
    *,
    method: Method,
    rng: np.random.Generator,
    bins: int = 15,
) -> CalibrationReport:
    """Fit on one half of the episodes, measure on the other: (n,), (n,) 0 or 1, n names of episodes.

    Raises DataError for values that are not probabilities, labels that are not 0 or 1, or an unknown method.
    """
    p, z = _probabilities(probabilities), _labels(labels)
    to_fit, to_measure = split_by_episode(episodes, z, rng=rng)
    fits: dict[str, Callable[[np.ndarray, np.ndarray], Recalibration]]
    fits = {"temperature": fit_temperature, "isotonic": fit_isotonic}
    if method not in fits:
        raise DataError(f"method must be 'temperature' or 'isotonic', got {method!r}")
    fitted = fits[method](p[to_fit], z[to_fit])
    before, truth = p[to_measure], z[to_measure]
    after = fitted.apply(before)
    return CalibrationReport(
        method=method,
        brier_before=brier(before, truth),
        brier_after=brier(after, truth),
        ece_before=ece(before, truth, bins),
        ece_after=ece(after, truth, bins),
        diagram_before=tuple(reliability_bins(before, truth, bins)),
        diagram_after=tuple(reliability_bins(after, truth, bins)),
        fitted=fitted,
        num_fitted=int(to_fit.sum()),
        num_measured=int(to_measure.sum()),
    )


def _both(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    p, z = _probabilities(probabilities), _labels(labels)
    if p.shape != z.shape:
        raise DataError(f"probabilities and labels must be (n,), got {p.shape} and {z.shape}")
    successes = int(z.sum())
    one_sided = successes in (0, len(z))
    return p, z, f"{successes} successes and {len(z) - successes} failures to fit to" if one_sided else ""


def _probabilities(values: np.ndarray) -> np.ndarray:
    p = np.asarray(values, dtype=np.float64)
    if p.ndim != 1:
        raise DataError(f"probabilities must be (n,), got {p.shape}")
    bad = np.flatnonzero(~((p >= 0) & (p <= 1)))
    if len(bad):
        raise DataError(f"probabilities must lie in [0, 1]; number {bad[0]} is {p[bad[0]]}")
    return p


def _labels(values: np.ndarray) -> np.ndarray:
    z = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(~np.isin(z, (0.0, 1.0)))
    if z.ndim != 1 or len(bad):
        raise DataError(f"labels must be 0 or 1 (n,); number {bad[0]} is {z[bad[0]]}" if len(bad) else "labels: (n,)")
    return z
