"""From scored prefixes to a value for every frame."""

from __future__ import annotations

import numpy as np


def anchors(frames: int, count: int) -> np.ndarray:
    """Prefix lengths to score, int64: all of 1 .. frames when `count` is 0 or not smaller; as lerobot spaces them."""
    if count == 0 or count >= frames:
        return np.arange(1, frames + 1, dtype=np.int64)
    return np.unique(np.linspace(1, frames, count).round().astype(np.int64))


def stretched(values: np.ndarray) -> np.ndarray:
    """Min-max within an episode, float32, as lerobot writes it: a constant episode is 1 throughout.

    (v - min) / (max - min): no two episodes can be compared after this, and every one reaches 1 (METHODS 7).
    """
    low, high = values.min(), values.max()
    if high == low:
        return np.ones(len(values), np.float32)
    return ((values - low) / (high - low)).astype(np.float32)


def curve(lengths: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values at prefix lengths (N,), interpolated to every frame 1 .. lengths[-1], float32."""
    frames = np.arange(1, lengths[-1] + 1, dtype=np.float64)
    return np.interp(frames, lengths.astype(np.float64), values.astype(np.float64)).astype(np.float32)
