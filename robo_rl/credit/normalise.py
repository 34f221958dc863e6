"""Sample weights: mean 1 over the dataset (never over a batch), and how many samples really count."""

from __future__ import annotations

import numpy as np

from robo_rl.errors import DataError


def unit_mean(weight: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
    """Scale weights to mean 1 over the valid samples of the whole dataset: (N,) -> float32 (N,).

    Samples that are not valid get 0.

    Raises:
        DataError: a weight that is negative or not finite, or no valid sample with positive weight.
    """
    weight = np.asarray(weight, dtype=np.float64)
    valid = np.ones(len(weight), dtype=bool) if valid is None else np.asarray(valid, dtype=bool)
    _check(weight, valid)
    weight = np.where(valid, weight, 0.0)
    return (weight * (valid.sum() / weight.sum())).astype(np.float32)


def effective_sample_size(weight: np.ndarray) -> float:
    """(sum w)^2 / sum w^2: N for equal weights, 1 when a single sample has them all (METHODS 1.7.6)."""
    weight = np.asarray(weight, dtype=np.float64)
    _check(weight, np.ones(len(weight), dtype=bool))
    return float(weight.sum() ** 2 / np.square(weight).sum())


def weight_entropy(weight: np.ndarray) -> float:
    """Entropy of w / sum w in nats: ln N for equal weights, 0 when a single sample has them all."""
    weight = np.asarray(weight, dtype=np.float64)
    _check(weight, np.ones(len(weight), dtype=bool))
    share = weight[weight > 0] / weight.sum()
    return float(-(share * np.log(share)).sum())


def weight_summary(weight: np.ndarray, valid: np.ndarray | None = None) -> dict[str, float]:
    """What to log beside a weighted loss, over the valid samples.

    Keys: samples, positive (share of samples with weight > 0), mean, max, ess, ess_share, entropy.
    """
    weight = np.asarray(weight, dtype=np.float64)
    weight = weight if valid is None else weight[np.asarray(valid, dtype=bool)]
    ess = effective_sample_size(weight)
    return {
        "samples": float(len(weight)),
        "positive": float((weight > 0).mean()),
        "mean": float(weight.mean()),
        "max": float(weight.max()),
        "ess": ess,
        "ess_share": ess / len(weight),
        "entropy": weight_entropy(weight),
    }


def _check(weight: np.ndarray, valid: np.ndarray) -> None:
    if weight.ndim != 1 or valid.shape != weight.shape:
        raise DataError(f"weights and their mask must be (N,), got {weight.shape} and {valid.shape}")
    bad = np.flatnonzero(valid & ~((weight >= 0) & np.isfinite(weight)))
    if len(bad):
        raise DataError(f"sample weights must be finite and not negative; sample {bad[0]} has {weight[bad[0]]}")
    if not (weight[valid] > 0).any():
        raise DataError(f"no sample has positive weight: {valid.sum()} of {len(weight)} samples are valid, all are 0")
