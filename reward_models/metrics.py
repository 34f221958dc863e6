"""How good a judge is, each number in one function with its definition (METHODS 8).

Every function says its ties rule and where it is undefined: NaN with a reason, never 0. Intervals redraw whole
episodes, because the frames of one episode are not independent. AUROC, Brier score, Pearson's r and the interval of a
mean are in `robo_rl.statistics`; what is taken task by task in `task_metrics`, the 1-5 scale in `rating_metrics`,
calibration in `recalibrate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats
from sklearn.metrics import f1_score

from reward_models.heads import PROGRESSIVE, REGRESSIVE, STAGNANT
from robo_rl.errors import DataError
from robo_rl.statistics import Estimate, auroc, pearson
from robo_rl.types import RewardSignal, Trajectory

Frame = Literal["last", "max", "middle"]
Ties = Literal["wrong", "half"]


def voc(progress: np.ndarray) -> Estimate:
    """Value-order correlation of one video (GVL): Spearman of progress (n,) with frame order, average ranks for ties.

    Only for episodes that succeeded, and never alone: a clock scores 1. A constant prediction is undefined.
    """
    return _spearman(progress, np.arange(len(progress)))


def vroc(progress: np.ndarray) -> Estimate:
    """The same on a video shown backwards (VLAC): Spearman of progress in order of showing with n-1, ..., 0.

    +1 is a judge that sees everything undone; a clock scores -1.
    """
    return _spearman(progress, np.arange(len(progress))[::-1])


def _spearman(values: np.ndarray, order: np.ndarray) -> Estimate:
    values = _finite(values, "progress")
    if len(values) < 2 or np.ptp(values) == 0:
        return Estimate(value=math.nan, count=len(values), reason="constant prediction")
    return Estimate(value=float(stats.spearmanr(values, order).statistic), count=len(values))


def mean_defined(estimates: Sequence[Estimate]) -> Estimate:
    """Mean over those that are defined; `count` is their number, `reason` says how many are not."""
    values = [estimate.value for estimate in estimates if estimate.defined]
    left_out = (
        f"undefined for {len(estimates) - len(values)} of {len(estimates)}" if len(values) < len(estimates) else ""
    )
    if not values:
        return Estimate(value=math.nan, reason=left_out or "no episodes")
    return Estimate(value=float(np.mean(values)), count=len(values), reason=left_out)


def kendall_tau_outcome(scores: np.ndarray, labels: np.ndarray) -> Estimate:
    """tau_a of successes against failures (eVTA0): (C - D) / (n_s n_f), a tie counts 0. Equal to 2 AUROC - 1.

    Undefined without both outcomes. Over several tasks eVTA0 averages it: `task_metrics.kendall_tau_outcome_macro`.
    """
    scores, success = _finite(scores, "score"), _outcomes(labels)
    positives, negatives = scores[success], scores[~success]
    if not len(positives) or not len(negatives):
        reason = f"{len(positives)} successes and {len(negatives)} failures"
        return Estimate(value=math.nan, count=len(scores), reason=reason)
    above, below = pair_order(positives, negatives)
    return Estimate(value=(above - below) / (len(positives) * len(negatives)), count=len(scores))


def pair_order(better: np.ndarray, worse: np.ndarray) -> tuple[int, int]:
    """Of all pairs of (n,) and (m,): how many have the better one above, and how many below. The rest are ties."""
    ordered = np.sort(worse)
    above = int(np.searchsorted(ordered, better, side="left").sum())
    not_below = int(np.searchsorted(ordered, better, side="right").sum())
    return above, len(better) * len(worse) - not_below


def kendall_tau_ranking(scores: np.ndarray, quality: np.ndarray) -> Estimate:
    """tau_a of scores and quality levels (n,) (Robometer): (C - D) / (n (n - 1) / 2); ties stay in the denominator."""
    scores, quality = _finite(scores, "score"), _finite(quality, "quality")
    if scores.shape != quality.shape:
        raise DataError(f"scores and quality must be alike, got {scores.shape} and {quality.shape}")
    if len(scores) < 2:
        return Estimate(value=math.nan, count=len(scores), reason="fewer than two episodes")
    agree = np.sign(scores[:, None] - scores) * np.sign(quality[:, None] - quality)
    return Estimate(value=float(agree.sum() / (len(scores) * (len(scores) - 1))), count=len(scores))


@dataclass(frozen=True, kw_only=True, slots=True)
class ReliabilityBin:
    """Predictions that are close to each other, and what really happened."""

    confidence: float  # mean predicted probability
    observed: float  # share of successes
    count: int


def reliability_bins(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> list[ReliabilityBin]:
    """Equal-mass bins of predictions (n,) in rising order; at most n, sizes differ by at most one."""
    p, success = _finite(probabilities, "probability"), _outcomes(labels)
    order = np.argsort(p, kind="stable")
    return [
        ReliabilityBin(confidence=float(p[part].mean()), observed=float(success[part].mean()), count=len(part))
        for part in np.array_split(order, min(bins, max(1, len(p))))
        if len(part)
    ]


def ece(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> Estimate:
    """Expected calibration error: sum_b n_b / N |observed_b - confidence_b| over equal-mass bins.

    It is never 0 by chance: with one episode a bin it is the mean of |p - z|. Compare only equal n and bins.
    """
    parts = reliability_bins(probabilities, labels, bins)
    total = sum(part.count for part in parts)
    if total == 0:
        return Estimate(value=math.nan, reason="no labelled episodes")
    gap = sum(part.count * abs(part.observed - part.confidence) for part in parts)
    return Estimate(value=gap / total, count=total)


def tri_state_labels(true_progress: np.ndarray) -> np.ndarray:
    """Classes of steps from the simulator's progress (T+1,): int64 (T,) [O, METHODS 3.2].

    Progressive above +kappa, regressive below -kappa, else stagnant, with kappa = max(.01, .25 median |delta|).
    """
    delta = np.diff(_finite(true_progress, "true progress"))
    kappa = max(0.01, 0.25 * float(np.median(np.abs(delta))))
    return np.where(delta > kappa, PROGRESSIVE, np.where(delta < -kappa, REGRESSIVE, STAGNANT)).astype(np.int64)


def tri_state_confusion(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts, rows are the true class, columns the predicted one: int64 (3, 3)."""
    return np.bincount(3 * np.asarray(labels) + np.asarray(predicted), minlength=9).reshape(3, 3)


def tri_state_f1(predicted: np.ndarray, labels: np.ndarray) -> Estimate:
    """Macro F1 over the classes that occur among the labels; a class that is never predicted scores 0."""
    present = np.unique(labels)
    if not len(present):
        return Estimate(value=math.nan, reason="no labelled steps")
    value = f1_score(labels, predicted, labels=present, average="macro", zero_division=0.0)
    return Estimate(value=float(value), count=len(labels))


def progress_mse(progress: np.ndarray, true_progress: np.ndarray) -> Estimate:
    """Mean squared error against the simulator's progress (ARM): (n,), (n,). Undefined without frames."""
    a, b = _alike(progress, true_progress)
    if not len(a):
        return Estimate(value=math.nan, reason="no frames")
    return Estimate(value=float(np.square(a - b).mean()), count=len(a))


def progress_pearson(progress: np.ndarray, true_progress: np.ndarray) -> Estimate:
    """Pearson's r of one video's progress with the true progress: (n,), (n,).

    Robometer calls this VOC; it is not the Spearman of `voc`. Undefined where either is constant.
    """
    a, b = _alike(progress, true_progress)
    for values, which in ((a, "prediction"), (b, "true progress")):
        if len(values) < 2 or np.ptp(values) == 0:
            reason = "fewer than two frames" if len(values) < 2 else f"constant {which}"
            return Estimate(value=math.nan, count=len(values), reason=reason)
    return pearson(a, b)


def terminal_mse(scores: np.ndarray, targets: np.ndarray) -> Estimate:
    """Mean squared error of the last frame's score against a soft target in [0, 1] (eVTA0): (episodes,), (episodes,).

    A soft target is how far the episode got, or how often one like it succeeds. Against outcomes of 0 and 1 it is the
    Brier score, which `robo_rl.statistics.brier` gives. Undefined without episodes.
    """
    a, b = _alike(scores, targets)
    bad = np.flatnonzero((b < 0) | (b > 1))
    if len(bad):
        raise DataError(f"a soft target must lie in [0, 1]; number {bad[0]} is {b[bad[0]]}")
    if not len(a):
        return Estimate(value=math.nan, reason="no episodes with a target")
    return Estimate(value=float(np.square(a - b).mean()), count=len(a))


def _alike(progress: np.ndarray, true_progress: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = _finite(progress, "progress"), _finite(true_progress, "true progress")
    if a.shape != b.shape:
        raise DataError(f"progress and true progress must be alike, got {a.shape} and {b.shape}")
    return a, b


def success_failure_gap(scores: np.ndarray, labels: np.ndarray) -> Estimate:
    """Mean score of successes minus mean score of failures: (n,), (n,). Undefined without both outcomes."""
    scores, success = _finite(scores, "score"), _outcomes(labels)
    if success.all() or not success.any():
        return Estimate(value=math.nan, count=len(scores), reason="only one outcome")
    return Estimate(value=float(scores[success].mean() - scores[~success].mean()), count=len(scores))


def preference_accuracy(scores: np.ndarray, labels: np.ndarray, *, ties: Ties = "wrong") -> Estimate:
    """Share of success-failure pairs in the right order; undefined without both outcomes.

    A tie is wrong (as Robometer counts from progress) or, with `ties="half"`, half right: then it is the AUROC.
    """
    scores, success = _finite(scores, "score"), _outcomes(labels)
    if success.all() or not success.any():
        return Estimate(value=math.nan, count=len(scores), reason="only one outcome")
    above, below = pair_order(scores[success], scores[~success])
    pairs = int(success.sum()) * int((~success).sum())
    return Estimate(value=(above + tie_share(ties) * (pairs - above - below)) / pairs, count=len(scores))


def tie_share(ties: Ties) -> float:
    """How right a tie is. Raises DataError for a rule that is none."""
    if ties not in ("wrong", "half"):
        raise DataError(f"ties must be 'wrong' or 'half', got {ties!r}")
    return 0.5 if ties == "half" else 0.0


def final_scores(signals: Sequence[RewardSignal], frame: Frame = "last") -> np.ndarray:
    """One score an episode: success probability, or progress where the judge has none; float64 (episodes,)."""
    rows = [signal.progress if signal.success_prob is None else signal.success_prob for signal in signals]
    if frame == "max":
        return np.array([row.max() for row in rows], dtype=np.float64)
    return np.array([row[-1 if frame == "last" else len(row) // 2] for row in rows], dtype=np.float64)


def outcome_auroc(
    signals: Sequence[RewardSignal],
    episodes: Sequence[Trajectory],
    *,
    frame: Frame = "last",
    rng: np.random.Generator | None = None,
) -> Estimate:
    """AUROC of one frame's score against the outcome; episodes without a label are left out. Interval with `rng`."""
    kept = [n for n, episode in enumerate(episodes) if episode.outcome.label is not None]
    scores = final_scores([signals[n] for n in kept], frame)
    labels = np.array([episodes[n].success for n in kept], dtype=bool)
    value = auroc(scores, labels)
    if rng is None or not value.defined:
        return value
    return bootstrap(value.value, lambda rows: auroc(scores[rows], labels[rows]).value, len(kept), rng=rng)


def bootstrap(
    value: float,
    statistic: Callable[[np.ndarray], float],
    episodes: int,
    *,
    rng: np.random.Generator,
    clusters: np.ndarray | None = None,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> Estimate:
    """Percentile interval of any statistic of episodes: `statistic` gets the numbers of redrawn episodes.

    `clusters` (episodes,) says which belong together, such as one video under several instructions: whole clusters
    are redrawn, and `count` is their number. Draws for which the statistic is undefined are left out.
    """
    groups = _members(np.arange(episodes) if clusters is None else np.asarray(clusters))
    count = len(groups)
    if count < 2:
        return Estimate(value=value, count=count, reason="too few episodes for an interval")
    drawn = (rng.integers(count, size=count) for _ in range(resamples))
    rows = (d if clusters is None else np.concatenate([groups[g] for g in d]) for d in drawn)
    draws = np.array([statistic(row) for row in rows])
    draws = draws[np.isfinite(draws)]
    if not len(draws):
        return Estimate(value=value, count=count, reason="too few episodes for an interval")
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value=value, low=float(low), high=float(high), count=count)


def _members(clusters: np.ndarray) -> list[np.ndarray]:
    _, member = np.unique(clusters, return_inverse=True)
    return np.split(np.argsort(member, kind="stable"), np.cumsum(np.bincount(member))[:-1]) if len(member) else []


def _finite(values: np.ndarray, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise DataError(f"{name} must be (n,), got {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise DataError(f"every {name} must be finite; number {bad[0]} is {array[bad[0]]}")
    return array


def _outcomes(labels: np.ndarray) -> np.ndarray:
    array = np.asarray(labels)
    bad = np.flatnonzero(~np.isin(array, (0, 1)))
    if len(bad):
        raise DataError(f"outcomes must be 0 or 1; number {bad[0]} is {array[bad[0]]}")
    return array.astype(bool)
