"""Moving average inside an episode. Our own stabiliser [O], not in the papers."""

from __future__ import annotations

import numpy as np

from robo_rl.errors import DataError


def smooth_within_episodes(values: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """Centred moving average over `width` rows, never across episodes: (N,) -> float64 (N,).

    Near an end the window shrinks on both sides alike, so a straight line (an exact countdown) is
    returned unchanged and the credit at the terminal step keeps its meaning.

    Args:
        lengths: int (E,) rows of each episode, one after the other, summing to N.
        width: odd number of rows; 1 changes nothing.
    """
    values, lengths = np.asarray(values, dtype=np.float64), np.asarray(lengths, dtype=np.int64)
    if width < 1 or width % 2 == 0:
        raise DataError(f"the smoothing width must be an odd number of frames, got {width}")
    if values.ndim != 1 or lengths.sum() != len(values):
        raise DataError(f"episode lengths sum to {lengths.sum()} rows but there are {values.shape} values")
    if width == 1:
        return values.copy()
    last = np.repeat(np.cumsum(lengths) - 1, lengths)
    first = last - np.repeat(lengths, lengths) + 1
    rows = np.arange(len(values))
    half = np.minimum(width // 2, np.minimum(rows - first, last - rows))
    result = np.zeros(len(values))
    # width additions instead of one running sum: a sum over the whole dataset would lose digits
    for offset in range(-(width // 2), width // 2 + 1):
        inside = np.abs(offset) <= half
        result[inside] += values[rows[inside] + offset]
    return result / (2 * half + 1)
