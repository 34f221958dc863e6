"""Normalisation: meta/stats.json against the data, and the data against what a policy was normalised with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from robo_rl.data import layout
from robo_rl.data.doctor_finding import Finding, found
from robo_rl.data.doctor_scan import Moments, Scan
from robo_rl.data.statistics import QUANTILES
from robo_rl.errors import DataError

Stats = Mapping[str, Mapping[str, np.ndarray]]  # feature key -> "mean", "std", "min", ... -> float64 (D,)
MEAN_OFF = 0.05  # standard deviations between the mean of the statistics and that of the data
SPREAD_OFF = 1.1  # factor between the two spreads
SHIFTED, FAR = 1.0, 3.0  # standard deviations of the policy between its mean and the data's: look, error
WIDER, FAR_WIDER = 2.0, 8.0  # factors between the two spreads: look, error
OUTSIDE = 0.02  # share of the data beyond the policy's range


def read_stats(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """meta/stats.json, flat arrays. Raises DataError when it cannot be read; empty where it is missing."""
    if not path.exists():
        return {}
    try:
        facts = json.loads(path.read_text())
        return {
            key: {name: np.asarray(value, dtype=np.float64).reshape(-1) for name, value in kept.items()}
            for key, kept in facts.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None


def examine_stats(scan: Scan) -> Iterator[Finding]:
    where = layout.STATS
    redo = "compute the statistics again from the data"
    try:
        stats = read_stats(scan.recording.root / layout.STATS)
    except DataError as error:
        yield from found("bad-stats", "error", where, str(error), redo)
        return
    if not stats:
        yield from found("no-stats", "warning", where, "there are no normalisation statistics", redo)
        return
    for key, moments in scan.rows.items():
        if not len(moments.mean):
            continue
        if key not in stats:
            yield from found("missing-stats", "error", where, f"nothing is said of {key}", redo)
        else:
            count = stats[key].get("count")
            if scan.recording.damage.why and count is not None and int(count[0]) != moments.count:
                continue  # what was lost may have made the difference
            yield from _compare(key, stats[key], moments, where, redo)
    for key in scan.recording.cameras:
        mean = stats.get(key, {}).get("mean")
        if mean is not None and (not np.isfinite(mean).all() or mean.max(initial=0.0) > 1.0 + 1e-6):
            what = f"the mean colour of {key} is {float(mean.max()):.4g}, pixels are scaled to [0, 1]"
            yield from found("image-stats-scale", "error", where, what, redo, mean=mean.tolist())


def _compare(key: str, kept: Mapping[str, np.ndarray], moments: Moments, where: str, redo: str) -> Iterator[Finding]:
    missing = [name for name in ("mean", "std", "min", "max") if name not in kept]
    if missing:
        what = f"{key} has no {', '.join(missing)}"
        yield from found("missing-stats", "error", where, what, redo)
        return
    wrong = [name for name in kept if name != "count" and kept[name].shape != moments.mean.shape]
    if wrong:
        what = f"{key}: {wrong[0]} has {kept[wrong[0]].size} numbers, the data {moments.mean.size}"
        yield from found("stats-width", "error", where, what, redo)
        return
    if not all(np.isfinite(values).all() for values in kept.values()):
        yield from found("bad-stats", "error", where, f"the statistics of {key} are not finite", redo)
        return
    spread = np.maximum(moments.std, 1e-6)
    shift = np.abs(kept["mean"] - moments.mean) / spread
    ratio = np.maximum(kept["std"], 1e-12) / spread
    moving = moments.std > 1e-6
    off = (shift > MEAN_OFF) | (moving & (np.abs(np.log(ratio)) > np.log(SPREAD_OFF)))
    size = 1e-3 * np.maximum(moments.span, 1e-3)
    off |= (np.abs(kept["min"] - moments.low) > size) | (np.abs(kept["max"] - moments.high) > size)
    if off.any():
        worst = int(np.argmax(np.where(off, shift + np.abs(np.log(ratio)), -1.0)))
        evidence = {
            "dimensions": np.flatnonzero(off).tolist(),
            "worst": worst,
            "stats_mean": float(kept["mean"][worst]),
            "data_mean": float(moments.mean[worst]),
            "stats_std": float(kept["std"][worst]),
            "data_std": float(moments.std[worst]),
        }
        what = f"the statistics of {key} are not those of the data"
        advice = f"the data was edited after they were made: {redo}"
        yield from found("stale-stats", "error", where, what, advice, **evidence)
    elif "count" in kept and int(kept["count"][0]) != moments.count:
        what = f"the statistics of {key} count {int(kept['count'][0])} rows, the data has {moments.count}"
        yield from found("stats-count", "warning", where, what, redo)


# --- a policy's normalisation ----------------------------------------------------------------------------------


def examine_policy_stats(scan: Scan, stats: Stats, modes: Mapping[str, str], where: str) -> Iterator[Finding]:
    """`modes`: feature key -> how the policy normalises it: MEAN_STD, MIN_MAX, QUANTILES, QUANTILE10 or IDENTITY."""
    for key, moments in (("action", scan.action), ("observation.state", scan.state)):
        mode = modes.get(key, "IDENTITY")
        if not len(moments.mean) or mode == "IDENTITY":
            continue
        needed = {"MEAN_STD": ("mean", "std"), "MIN_MAX": ("min", "max"), "QUANTILE10": ("q10", "q90")}
        names = needed.get(mode, ("q01", "q99"))
        kept = stats.get(key, {})
        if any(name not in kept for name in names):
            what = f"normalises {key} by {mode}, but holds no {' and '.join(names)} of it"
            advice = "the policy was saved without statistics: save it again with those of its training data"
            yield from found("policy-stats-missing", "error", where, what, advice)
            continue
        if kept[names[0]].size != moments.mean.size:
            continue  # `doctor_needs` says that widths differ
        if mode == "MEAN_STD":
            yield from _standardised(key, kept["mean"], kept["std"], moments, where)
        else:
            yield from _within(key, mode, (kept[names[0]], kept[names[1]]), moments, where)


def _standardised(key: str, mean: np.ndarray, std: np.ndarray, moments: Moments, where: str) -> Iterator[Finding]:
    still = std < 1e-6
    if (still & (moments.std > 1e-6)).any():
        at = np.flatnonzero(still & (moments.std > 1e-6)).tolist()
        what = f"{key} {', '.join(map(str, at))} never changed in the policy's training data, here it does"
        advice = "normalised values explode: train the policy on data like this"
        yield from found("policy-stats-constant", "error", where, what, advice, dimensions=at)
    safe = np.where(still, 1.0, std)
    shift = np.where(still, 0.0, np.abs(moments.mean - mean) / safe)
    wider = np.where(still | (moments.std < 1e-6), 0.0, np.abs(np.log(np.maximum(moments.std, 1e-12) / safe)))
    worst = int(np.argmax(shift / SHIFTED + wider / np.log(WIDER)))
    if shift.max() <= SHIFTED and wider.max() <= np.log(WIDER):
        return
    is_far = shift.max() > FAR or wider.max() > np.log(FAR_WIDER)
    evidence = {
        "worst": worst,
        "policy_mean": float(mean[worst]),
        "data_mean": float(moments.mean[worst]),
        "policy_std": float(std[worst]),
        "data_std": float(moments.std[worst]),
    }
    what = f"{key} of the dataset is not what the policy was normalised with"
    advice = "other units, another convention or other motions: convert the data, or train with its own statistics"
    yield from found("policy-stats", "error" if is_far else "warning", where, what, advice, **evidence)


def _within(
    key: str, mode: str, ends: tuple[np.ndarray, np.ndarray], moments: Moments, where: str
) -> Iterator[Finding]:
    low, high = ends
    margin = 0.02 * (high - low) + 1e-6
    allowed = OUTSIDE + {"QUANTILES": QUANTILES["q01"] * 2, "QUANTILE10": QUANTILES["q10"] * 2}.get(mode, 0.0)
    sample = moments.sample
    outside = ((sample < low - margin) | (sample > high + margin)).mean(axis=0)
    size = np.maximum(high - low, 1e-12)
    narrow = np.where(moments.span > 1e-6, np.log(size / np.maximum(moments.span, 1e-12)), 0.0)
    worst = int(np.argmax(outside + np.maximum(narrow, 0.0)))
    if outside.max() <= allowed + 0.05 and narrow.max() <= np.log(FAR_WIDER):
        return
    evidence = {
        "worst": worst,
        "policy_range": [float(low[worst]), float(high[worst])],
        "data_range": [float(moments.low[worst]), float(moments.high[worst])],
        "share_outside": float(outside[worst]),
    }
    what = f"{key} of the dataset does not fill the range that the policy was normalised with"
    advice = "other units, another convention or other motions: convert the data, or train with its own statistics"
    is_far = outside.max() > 0.5 or narrow.max() > np.log(FAR_WIDER)
    yield from found("policy-stats", "error" if is_far else "warning", where, what, advice, **evidence)
