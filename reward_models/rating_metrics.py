"""Error on RoboReward's scale from 1 to 5 (METHODS 6 and 8).

1 no success, 2 minimal, 3 partial, 4 near, 5 perfect. The published headline is the macro mean over subsets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robo_rl.errors import DataError
from robo_rl.statistics import Estimate

LEVELS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingError:
    """Mean absolute error on the scale 1-5."""

    macro: Estimate  # mean over subsets, each alike; `count` is the number of subsets
    micro: Estimate  # mean over episodes
    by_subset: Mapping[str, Estimate]


def rating_of(progress: np.ndarray) -> np.ndarray:
    """What a continuous judge says on the scale 1-5: round(4 v) + 1, int64 (n,), of v clipped to [0, 1].

    A value half way between two levels goes to the even one of 4 v, as numpy rounds: .125 is a 1, .375 a 3.
    """
    values = np.asarray(progress, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise DataError(f"a rating needs finite values (n,), got {values.shape}")
    return np.rint(4.0 * values.clip(0.0, 1.0)).astype(np.int64) + 1


def rating_mae(predicted: np.ndarray, ratings: np.ndarray, subsets: Sequence[str] | None = None) -> RatingError:
    """Mean |k^ - k| of ratings 1-5 (n,), (n,); macro over `subsets` (n names; None: one subset).

    Both must be whole numbers from 1 to 5: turn a continuous judge's values with `rating_of` first. Undefined without
    episodes. A judge that always says 3 scores at most 2, so compare with `rating_mae` of a constant.
    """
    said, true = _ratings(predicted, "predicted rating"), _ratings(ratings, "rating")
    names = np.asarray([""] * len(true) if subsets is None else list(subsets), dtype=np.str_)
    if said.shape != true.shape or names.shape != true.shape:
        raise DataError(f"ratings and subsets must be (n,), got {said.shape}, {true.shape}, {names.shape}")
    if not len(true):
        nothing = Estimate(value=math.nan, reason="no rated episodes")
        return RatingError(macro=nothing, micro=nothing, by_subset={})
    error = np.abs(said - true)
    by_subset = {
        str(name): Estimate(value=float(error[names == name].mean()), count=int((names == name).sum()))
        for name in np.unique(names)
    }
    mean = float(np.mean([part.value for part in by_subset.values()]))
    return RatingError(
        macro=Estimate(value=mean, count=len(by_subset)),
        micro=Estimate(value=float(error.mean()), count=len(true)),
        by_subset=by_subset,
    )


def _ratings(values: np.ndarray, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise DataError(f"every {name} must be one number, got {array.shape}")
    bad = np.flatnonzero(~np.isin(array, LEVELS))
    if len(bad):
        raise DataError(f"every {name} must be 1, 2, 3, 4 or 5; number {bad[0]} is {array[bad[0]]:g}")
    return array
