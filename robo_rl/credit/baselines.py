"""Sample weights of the methods HABC is compared with. METHODS 1.5, 3.4, 7.

The progress weights (RA-BC, AW-BC) come back as the papers give them, in [0, 1]; `normalise.unit_mean` scales them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from robo_rl.credit.kinds import SUCCESS_KINDS, WindowKind
from robo_rl.credit.segments import frame_deltas
from robo_rl.errors import DataError

End = Literal["clamp", "last_window"]


def plain_bc_weights(kind: np.ndarray) -> np.ndarray:
    """Imitate everything that was done: 1, and 0 for EXCLUDED. (N,) int8 -> float32 (N,)."""
    return (np.asarray(kind) != WindowKind.EXCLUDED).astype(np.float32)


def demo_only_weights(kind: np.ndarray) -> np.ndarray:
    """Demonstrations 1, all else 0: the control that only trains longer. (N,) int8 -> float32 (N,)."""
    return (np.asarray(kind) == WindowKind.DEMO).astype(np.float32)


def filtered_bc_weights(kind: np.ndarray) -> np.ndarray:
    """Filtered BC: demonstrations, interventions and successful policy windows 1, all else 0."""
    keep = (WindowKind.DEMO, WindowKind.INTERVENTION, *SUCCESS_KINDS)
    return np.isin(kind, keep).astype(np.float32)


def awr_weights(advantage: np.ndarray, *, beta: float, max_weight: float = 20.0) -> np.ndarray:
    """AWR (Peng et al. 2019): min(exp(A / beta), max_weight), (N,) -> float32 (N,). 20 is their clip."""
    if not (beta > 0 and max_weight > 0):
        raise DataError(f"AWR needs beta > 0 and max_weight > 0, got {beta} and {max_weight}")
    # the clip is taken in the exponent, so a large advantage cannot overflow
    exponent = np.minimum(np.asarray(advantage, dtype=np.float64) / beta, np.log(max_weight))
    return np.exp(exponent).astype(np.float32)


def imit_recap_weights(
    values: np.ndarray, reward: np.ndarray, terminated: bool, *, gamma: float = 0.99, threshold: float = 0.0
) -> np.ndarray:
    """Imit-Recap (METHODS 1.5): w = 1[r + gamma (1 - d) V(s') - V(s) >= threshold] of one episode.

    Args:
        values: (T+1,) V of the observations.
        reward: (T,)
        terminated: whether the last step ended the task; V(s_T) counts as 0 then, and is kept at a timeout.

    Returns:
        float32 (T,)
    """
    values, reward = np.asarray(values, dtype=np.float64), np.asarray(reward, dtype=np.float64)
    if values.shape != (len(reward) + 1,):
        raise DataError(f"values must be ({len(reward) + 1},) for {len(reward)} rewards, got {values.shape}")
    following = values[1:].copy()
    if terminated:
        following[-1] = 0.0
    return (reward + gamma * following - values[:-1] >= threshold).astype(np.float32)


def rabc_weights(
    progress: np.ndarray,
    lengths: np.ndarray,
    *,
    hop: int,
    kappa: float = 0.01,
    epsilon: float = 1e-6,
    end: End = "last_window",
    missing: Literal["error", "one"] = "error",
) -> np.ndarray:
    """RA-BC (SARM, arXiv 2509.25358; METHODS 7): float32 (N,) in [0, 1].

    r = P[t + hop] - P[t]; w~ = clip((r - (mu - 2 s)) / (4 s + epsilon), 0, 1);
    w = 1[r > kappa] + 1[0 <= r <= kappa] w~, with the dataset's mean mu (at least 0) and deviation s.

    `end="clamp", missing="one"` are lerobot's: there the look ahead stops at the last frame, so the frames
    that complete the task get r near 0 and lose most of their weight, and a frame without a score gets 1.
    By default (ours [O]) the last `hop` frames share the gain of the last complete window, and a missing
    score is an error. lerobot then rescales every batch; we do not (`normalise.unit_mean`, over the dataset).

    Args:
        progress: (N,) of all frames, episode after episode.
        lengths: int (E,) frames of each episode.

    Raises:
        DataError: lengths that do not sum to N; a score that is not finite, with `missing="error"`.
    """
    progress = _scores(progress, missing)
    gain = frame_deltas(progress, lengths, hop, end=end)
    known = ~np.isnan(gain)
    mean, spread = 0.0, epsilon
    if known.any():
        mean, spread = max(float(gain[known].mean()), 0.0), max(float(gain[known].std()), epsilon)
    soft = np.clip((gain - (mean - 2 * spread)) / (4 * spread + epsilon), 0.0, 1.0)
    weight = _hard_rules(gain, soft, kappa)
    weight[~known] = 1.0
    return weight.astype(np.float32)


def aw_bc_weights(
    progress: np.ndarray,
    lengths: np.ndarray,
    *,
    hop: int = 32,
    variant: Literal["eq5", "hard"] = "hard",
    kappa: float = 0.01,
    epsilon: float = 1e-6,
    fragment: np.ndarray | None = None,
    end: End = "last_window",
) -> np.ndarray:
    """ARM's AW-BC (METHODS 3.4): float32 (N,) in [0, 1].

    dG = (P[t + hop] - P[t]) L_seq / Lbar; w~ = clamp((dG - (mu - 2 s)) / (4 s + epsilon), 0, 1).
    "eq5" is w~ alone (a mean sample has 0.5); "hard" adds the rules of their Table 7, w = 1 above kappa
    and 0 at or below 0. mu and s are the dataset's; the paper takes them of a batch.

    Args:
        progress: (N,) of all frames, episode after episode.
        lengths: int (E,) frames of each episode: L_seq; their mean is Lbar.
        hop: the action chunk; 32 is the paper.
        fragment: bool (E,): pieces of episodes, whose L_seq has no meaning: factor 1 [O], out of Lbar.
        end: as in `rabc_weights`.

    Raises:
        DataError: lengths that do not sum to N, a score that is not finite, an unknown variant.
    """
    if variant not in ("eq5", "hard"):
        raise DataError(f"variant must be 'eq5' or 'hard', got {variant!r}")
    progress, lengths = _scores(progress, "error"), np.asarray(lengths, dtype=np.int64)
    whole = np.ones(len(lengths), dtype=bool) if fragment is None else ~np.asarray(fragment, dtype=bool)
    factor = np.ones(len(lengths))
    if whole.any():
        factor[whole] = lengths[whole] / lengths[whole].mean()
    gain = frame_deltas(progress, lengths, hop, end=end) * np.repeat(factor, lengths)
    low, high = gain.mean() - 2 * gain.std(), gain.mean() + 2 * gain.std()
    soft = np.clip((gain - low) / (high - low + epsilon), 0.0, 1.0)
    if variant == "eq5":
        return soft.astype(np.float32)
    # unlike RA-BC, a gain of exactly 0 gets nothing
    return np.where(gain > 0, _hard_rules(gain, soft, kappa), 0.0).astype(np.float32)


def _hard_rules(gain: np.ndarray, soft: np.ndarray, kappa: float) -> np.ndarray:
    return np.where(gain > kappa, 1.0, np.where(gain >= 0, soft, 0.0))


def _scores(progress: np.ndarray, missing: str) -> np.ndarray:
    progress = np.asarray(progress, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(progress))
    if len(bad) and missing == "error":
        raise DataError(
            f"progress is missing or not finite at frame {bad[0]} ({len(bad)} such frames); score them first"
        )
    return progress
