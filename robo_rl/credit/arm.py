"""ARM: progress from tri-state step judgements, and tri-state labels from progress. METHODS 3.2, 3.3."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robo_rl.errors import DataError


def step_from_tri_state(tri_state: np.ndarray, *, soft: bool = True) -> np.ndarray:
    """float (T, 3) p(progressive), p(stagnant), p(regressive) -> float64 (T,) steps in [-1, 1].

    soft: the expectation p_+ - p_- (less quantised [O]); otherwise the likeliest of +1, 0, -1 (the paper).
    """
    tri_state = np.asarray(tri_state, dtype=np.float64)
    if tri_state.ndim != 2 or tri_state.shape[1] != 3:
        raise DataError(f"tri-state probabilities must be (T, 3), got {tri_state.shape}")
    if soft:
        return tri_state[:, 0] - tri_state[:, 2]
    return 1.0 - tri_state.argmax(axis=1)


def tri_state_labels(progress: np.ndarray, *, hop: int = 1, kappa: tuple[float, float] | None = None) -> np.ndarray:
    """+1 advances, -1 regresses, 0 waits, of the pairs (t, t + hop): (T+1,) -> int8 (T+1-hop,).

    +1 where P[t+hop] - P[t] > kappa_+, -1 where < -kappa_-. The paper has no threshold (its labels are
    human judgements); ours [O] is max(0.01, a quarter of the median |difference|) for both signs.

    Args:
        kappa: (kappa_+, kappa_-), both positive, to fix the thresholds for a whole dataset.
    """
    progress = np.asarray(progress, dtype=np.float64)
    if progress.ndim != 1 or not 1 <= hop < len(progress):
        raise DataError(f"labels over {hop} frames need more frames than that, got {progress.shape}")
    delta = progress[hop:] - progress[:-hop]
    if kappa is None:
        kappa = (max(0.01, 0.25 * float(np.median(np.abs(delta)))),) * 2
    return (delta > kappa[0]).astype(np.int8) - (delta < -kappa[1]).astype(np.int8)


def reconstruct_progress(
    steps: np.ndarray,
    *,
    completion_frame: int | None = None,
    unit: float | None = None,
    start: float = 0.0,
) -> np.ndarray:
    """Progress from steps (METHODS 3.3): (T,) in [-1, 1] -> float64 (T+1,) in [0, 1].

    With a completion frame t*, P_t = S_t / S_t*, S the running sum: a step is worth 1 / net sum.
    For a fragment [O] (no completion, or a net sum that is not positive): P_t = start + unit * S_t.

    Args:
        completion_frame: in 1..T, where the task was complete; None for a fragment.
        unit: worth of one step in a fragment, see `unit_step`.
        start: progress at the fragment's first frame.

    Raises:
        DataError: a fragment without `unit`, or a completion frame outside 1..T.
    """
    total = np.concatenate([[0.0], np.cumsum(np.asarray(steps, dtype=np.float64))])
    net = _net_sum(total, completion_frame)
    if net > 0:
        return np.clip(total / net, 0.0, 1.0)
    if unit is None:
        raise DataError(
            "a fragment (no completion frame, or steps that do not add up to progress) needs unit=, "
            "the worth of one step; take it from complete episodes with unit_step()"
        )
    return np.clip(start + unit * total, 0.0, 1.0)


def unit_step(steps: Sequence[np.ndarray], completion_frames: Sequence[int | None]) -> float:
    """Worth of one step: the mean of 1 / S_t* over the complete episodes [O].

    Raises:
        DataError: no episode is complete with a positive net sum.
    """
    totals = (np.concatenate([[0.0], np.cumsum(np.asarray(s, dtype=np.float64))]) for s in steps)
    sums = [_net_sum(total, frame) for total, frame in zip(totals, completion_frames, strict=True)]
    units = [1.0 / net for net in sums if net > 0]
    if not units:
        raise DataError(f"none of {len(sums)} episodes is complete with a positive net sum of steps")
    return float(np.mean(units))


def completion_peaks(completion: np.ndarray, *, threshold: float = 0.5) -> np.ndarray:
    """Frames where the completion probability peaks: int64, one for each run above `threshold` [O].

    The peak is the first maximum of its run. (T+1,) -> (number of peaks,), possibly none.
    """
    completion = np.asarray(completion, dtype=np.float64)
    above = np.concatenate([[False], completion > threshold, [False]])
    begins, ends = np.flatnonzero(above[1:] & ~above[:-1]), np.flatnonzero(~above[1:] & above[:-1])
    return np.array([b + int(completion[b:e].argmax()) for b, e in zip(begins, ends, strict=True)], dtype=np.int64)


def anchor_piecewise(progress: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """Make progress 1 at every completion peak [O]: (T+1,), int (K,) -> float64 (T+1,) in [0, 1].

    The drift 1 - P at a peak is spread linearly over the piece before it, and kept after the last one.
    Give progress that was not clipped (`start + unit * cumsum`), or the drift of clipped frames is lost.
    """
    progress, peaks = np.asarray(progress, dtype=np.float64), np.asarray(peaks, dtype=np.int64)
    if len(peaks) == 0:
        return np.clip(progress, 0.0, 1.0)
    if peaks[0] < 1 or peaks[-1] >= len(progress) or (np.diff(peaks) <= 0).any():
        raise DataError(f"completion peaks must rise within 1..{len(progress) - 1}, got {peaks.tolist()}")
    drift = np.interp(np.arange(len(progress)), np.append(0, peaks), np.append(0.0, 1.0 - progress[peaks]))
    return np.clip(progress + drift, 0.0, 1.0)


def _net_sum(total: np.ndarray, frame: int | None) -> float:
    if frame is None:
        return 0.0
    if not 1 <= frame < len(total):
        raise DataError(f"the completion frame must be in 1..{len(total) - 1}, got {frame}")
    return float(total[frame])
