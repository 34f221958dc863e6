"""A judge's held-out quality in the numbers that a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from reward_models import metrics
from robo_rl.errors import DataError
from robo_rl.statistics import Estimate, brier
from robo_rl.types import RewardModel, RewardSignal, Trajectory

CHART_BINS = 8  # of the reliability chart; the calibration error uses 15


def measure_quality(
    signals: Sequence[RewardSignal],
    episodes: Sequence[Trajectory],
    *,
    seed: int,
    reversed_signals: Sequence[RewardSignal] | None = None,
) -> dict[str, Any]:
    """Figures of the final success probability and of progress, ready for JSON: None where undefined.

    Keys: auroc, auroc_low, auroc_high, brier, ece (final frame against the outcome), voc (mean over successes),
    vroc (the same episodes shown backwards, +1 is right; needs `reversed_signals` from `score_reversed`),
    num_episodes (with a label), calibration (a list of confidence, observed, count), undefined (key -> why).
    """
    if len(signals) != len(episodes):
        raise DataError(f"{len(episodes)} episodes but {len(signals)} opinions")
    rows = [n for n, episode in enumerate(episodes) if episode.outcome.label is not None]
    labels = np.array([episodes[n].success for n in rows], dtype=bool)
    final = metrics.final_scores([signals[n] for n in rows])
    has_probability = all(signal.success_prob is not None for signal in signals)
    area = metrics.outcome_auroc(signals, episodes, rng=np.random.default_rng(seed))
    missing = Estimate(value=np.nan, reason="the judge gives no success probability")
    order = [metrics.voc(s.progress) for s, e in zip(signals, episodes, strict=True) if e.success]
    figures = {
        "auroc": area,
        "brier": brier(final, labels) if has_probability else missing,
        "ece": metrics.ece(final, labels) if has_probability else missing,
        "voc": metrics.mean_defined(order),
        "vroc": (
            Estimate(value=np.nan, reason="not measured: no reversed videos were scored")
            if reversed_signals is None
            else metrics.mean_defined([metrics.vroc(signal.progress) for signal in reversed_signals])
        ),
    }
    out: dict[str, Any] = {name: (figure.value if figure.defined else None) for name, figure in figures.items()}
    for side in ("low", "high"):
        bound = getattr(area, side)
        out[f"auroc_{side}"] = bound if np.isfinite(bound) else None
    chart = metrics.reliability_bins(final, labels, CHART_BINS) if has_probability and len(rows) else []
    out["calibration"] = [asdict(part) for part in chart]
    out["num_episodes"] = len(rows)
    out["undefined"] = {name: figure.reason for name, figure in figures.items() if not figure.defined}
    return out


def score_reversed(judge: RewardModel, episodes: Sequence[Trajectory]) -> list[RewardSignal]:
    """Opinions of the successful episodes shown backwards, for `vroc`."""
    return judge.score(
        [
            replace(e, images={c: np.ascontiguousarray(v[::-1]) for c, v in e.images.items()})
            for e in episodes
            if e.success
        ]
    )
