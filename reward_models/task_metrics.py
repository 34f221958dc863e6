"""Numbers that are taken within each task and then averaged over tasks, and those of annotated pairs (METHODS 8).

Scores of different tasks are not compared: a judge may be generous with one and strict with another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from reward_models.metrics import Ties, kendall_tau_outcome, mean_defined, pair_order, tie_share
from robo_rl.errors import DataError
from robo_rl.statistics import Estimate

Metric = Callable[[np.ndarray, np.ndarray], Estimate]


def macro(metric: Metric, scores: np.ndarray, labels: np.ndarray, tasks: Sequence[str]) -> Estimate:
    """Mean over tasks of a metric of scores and labels (n,), every task alike; `count` is the number of tasks.

    Tasks for which it is undefined are left out, and `reason` says how many. Undefined when it is so for all.
    """
    scores, labels, names = _rows(scores, labels, tasks)
    return mean_defined([metric(scores[names == name], labels[names == name]) for name in np.unique(names)])


def kendall_tau_outcome_macro(scores: np.ndarray, labels: np.ndarray, tasks: Sequence[str]) -> Estimate:
    """tau_a of successes against failures, averaged over the tasks that have both (eVTA0).

    Args:
        scores: (n,), labels: (n,) 0 or 1, tasks: n names. A tie counts 0 and stays in the denominator.
    """
    return macro(kendall_tau_outcome, scores, labels, tasks)


def kendall_tau_quality(scores: np.ndarray, quality: np.ndarray) -> Estimate:
    """tau_a of scores and quality levels of one task (Robometer's policy ranking): (n,), (n,) any ordered numbers.

    The mean, over all tuples of one clip a level, of (C - D) / (k (k - 1) / 2) with k levels. So every level counts
    alike, however many clips it has; that is the mean over pairs of levels of 2 AUROC - 1, which is how it is computed.
    Levels are distinct within a tuple; equal scores count 0 and stay in the denominator. Undefined for one level.
    """
    scores, quality, _ = _rows(scores, quality, [""] * len(np.atleast_1d(scores)))
    levels = np.unique(quality)
    if len(levels) < 2:
        return Estimate(value=math.nan, count=len(scores), reason="fewer than two quality levels")
    parts = []
    for low, high in combinations(levels, 2):
        better, worse = scores[quality == high], scores[quality == low]
        above, below = pair_order(better, worse)
        parts.append((above - below) / (len(better) * len(worse)))
    return Estimate(value=float(np.mean(parts)), count=len(scores))


def kendall_tau_quality_macro(scores: np.ndarray, quality: np.ndarray, tasks: Sequence[str]) -> Estimate:
    """`kendall_tau_quality` averaged over the tasks that have at least two levels (Robometer)."""
    return macro(kendall_tau_quality, scores, quality, tasks)


def ranking_accuracy(
    scores: np.ndarray, quality: np.ndarray, tasks: Sequence[str], *, ties: Ties = "wrong"
) -> Estimate:
    """Share of pairs of one task with different labels that are in the right order; pairs of all tasks together.

    Labels (n,) may be outcomes, quality levels or how far an episode got. Equal scores are wrong, or half right with
    `ties="half"`. Undefined without such a pair; `count` is the number of pairs.
    """
    scores, quality, names = _rows(scores, quality, tasks)
    right, pairs, share = 0.0, 0, tie_share(ties)
    for name in np.unique(names):
        here = names == name
        for low, high in combinations(np.unique(quality[here]), 2):
            better, worse = scores[here & (quality == high)], scores[here & (quality == low)]
            above, below = pair_order(better, worse)
            number = len(better) * len(worse)
            right += above + share * (number - above - below)
            pairs += number
    if not pairs:
        return Estimate(value=math.nan, reason="no two episodes of a task with different labels")
    return Estimate(value=right / pairs, count=pairs)


def pair_accuracy(a: np.ndarray, b: np.ndarray, labels: np.ndarray, *, ties: Ties = "wrong") -> Estimate:
    """Share of annotated pairs whose scores (n,), (n,) agree with the labels (n,): +1 a is better, -1 b, 0 a tie.

    Only pairs that a person could tell apart are counted. Equal scores are wrong (Robometer) or half right. Undefined
    without such a pair. For agreement with labelled ties, `pair_accuracy_with_ties`.
    """
    difference, labels = _pairs(a, b, labels)
    told = labels != 0
    if not told.any():
        return Estimate(value=math.nan, reason="no pair in which one is better")
    sign = np.sign(difference[told])
    right = np.where(sign == 0, tie_share(ties), sign == labels[told])
    return Estimate(value=float(right.mean()), count=int(told.sum()))


def pair_accuracy_with_ties(a: np.ndarray, b: np.ndarray, labels: np.ndarray, *, margin: float = 0.0) -> Estimate:
    """Share of annotated pairs put into the right one of three classes: a better, b better, tie.

    The judge says tie when its scores differ by at most `margin`. Undefined without pairs.
    """
    difference, labels = _pairs(a, b, labels)
    if not margin >= 0:
        raise DataError(f"a margin must be at least 0, got {margin}")
    if not len(labels):
        return Estimate(value=math.nan, reason="no pairs")
    said = np.where(np.abs(difference) <= margin, 0, np.sign(difference))
    return Estimate(value=float((said == labels).mean()), count=len(labels))


def _pairs(a: np.ndarray, b: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b, labels = (np.asarray(values, dtype=np.float64) for values in (a, b, labels))
    if a.ndim != 1 or a.shape != b.shape or a.shape != labels.shape:
        raise DataError(f"pairs need scores (n,), (n,) and labels (n,), got {a.shape}, {b.shape}, {labels.shape}")
    for values, name in ((a, "score"), (b, "score")):
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise DataError(f"every {name} must be finite; that of pair {bad[0]} is {values[bad[0]]}")
    bad = np.flatnonzero(~np.isin(labels, (-1, 0, 1)))
    if len(bad):
        raise DataError(f"labels must be +1, 0 or -1; that of pair {bad[0]} is {labels[bad[0]]:g}")
    return a - b, labels


def _rows(scores: np.ndarray, labels: np.ndarray, tasks: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    names = np.asarray(tasks, dtype=np.str_)
    if scores.ndim != 1 or scores.shape != labels.shape or scores.shape != names.shape:
        raise DataError(f"scores, labels and tasks must be (n,), got {scores.shape}, {labels.shape}, {names.shape}")
    for values, name in ((scores, "score"), (labels, "label")):
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise DataError(f"every {name} must be finite; number {bad[0]} is {values[bad[0]]}")
    return scores, labels, names
