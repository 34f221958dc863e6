"""Make a success probability mean what it says, on episodes that it was not fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

MIN_PER_CLASS = 4  # episodes of each outcome below which nothing is calibrated


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """p = sigmoid(scale * logit + shift)."""

    scale: float = 1.0
    shift: float = 0.0
    num_episodes: int = 0
    reason: str = ""  # why it is the identity


def fit_calibration(logits: list[np.ndarray], outcomes: np.ndarray) -> Calibration:
    """Scale and shift (Platt 1999; a temperature and a bias) that minimise the log loss on held-out episodes.

    Args:
        logits: one (T+1,) array an episode. Every episode counts alike, however long; half of it is its last frame,
            where the outcome is in sight, so that doubt at the start does not blur the end.
        outcomes: (episodes,) 0 or 1.

    The scale stays in [0.2, 3], so calibration never turns the order round nor makes certainty from nothing. A weak
    pull towards the identity, worth about two episodes, keeps small sets from extremes.
    """
    outcomes = np.asarray(outcomes, dtype=np.float64)
    positives = int(outcomes.sum())
    if min(positives, len(outcomes) - positives) < MIN_PER_CLASS:
        reason = (
            f"{positives} successes and {len(outcomes) - positives} failures held out; needs {MIN_PER_CLASS} of each"
        )
        return Calibration(num_episodes=len(outcomes), reason=reason)
    z = np.concatenate(logits).astype(np.float64)
    lengths = np.array([len(part) for part in logits])
    label = np.repeat(outcomes, lengths)
    weight = np.repeat(0.5 / lengths, lengths)
    weight[np.cumsum(lengths) - 1] += 0.5

    def loss(parameters: np.ndarray) -> float:
        scale, shift = np.exp(parameters[0]), parameters[1]
        nll = np.logaddexp(0.0, scale * z + shift) - label * (scale * z + shift)
        return float(weight @ nll + 2.0 * (parameters[0] ** 2 + 0.25 * shift**2))

    found = minimize(loss, np.zeros(2), method="L-BFGS-B", bounds=[(np.log(0.2), np.log(3.0)), (-3.0, 3.0)])
    return Calibration(scale=float(np.exp(found.x[0])), shift=float(found.x[1]), num_episodes=len(outcomes))


def apply_calibration(logits: np.ndarray, calibration: Calibration) -> np.ndarray:
    """Calibrated probabilities of logits."""
    return np.asarray(expit(calibration.scale * logits + calibration.shift))
