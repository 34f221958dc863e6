"""The statistics lerobot keeps of every feature: min, max, mean, std, count and five quantiles.

lerobot estimates quantiles with histograms of 5000 bins and averages those of the episodes; these are exact.
"""

from __future__ import annotations

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
Stats = dict[str, np.ndarray]
CHUNK = 64  # frames counted together


def of_rows(rows: np.ndarray) -> Stats:
    """Statistics over the first axis: (N, D) or (N,) -> float64 (D,); `count` int64 (1,), the number of rows."""
    rows = np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
    levels = np.quantile(rows, list(QUANTILES.values()), axis=0)
    return {
        "min": rows.min(0),
        "max": rows.max(0),
        "mean": rows.mean(0),
        "std": rows.std(0),
        "count": np.array([len(rows)]),
        **dict(zip(QUANTILES, levels, strict=True)),
    }


def of_columns(columns: dict[str, np.ndarray]) -> dict[str, Stats]:
    """`of_rows` of several features with the same number of rows, in one pass."""
    widths = [int(np.prod(rows.shape[1:])) for rows in columns.values()]
    together = of_rows(
        np.concatenate([rows.reshape(len(rows), -1) for rows in columns.values()], axis=1, dtype=np.float64)
    )
    ends = np.cumsum(widths)
    return {
        key: {name: values if name == "count" else values[end - width : end] for name, values in together.items()}
        for key, width, end in zip(columns, widths, ends, strict=True)
    }


def histogram(frames: np.ndarray) -> np.ndarray:
    """How often every value of every channel occurs: uint8 (N, H, W, 3) -> int64 (3, 256).

    Frames above 300 pixels are thinned to about 150, as lerobot does. A few frames at a time: bincount makes eight
    bytes of each.
    """
    step = max(1, max(frames.shape[1:3]) // 150) if max(frames.shape[1:3]) > 300 else 1
    counts = np.zeros((3, 256), np.int64)
    for first in range(0, len(frames), CHUNK):
        thinned = frames[first : first + CHUNK, ::step, ::step]
        for channel in range(3):
            counts[channel] += np.bincount(thinned[..., channel].reshape(-1), minlength=256)
    return counts


def of_histogram(counts: np.ndarray, num_frames: int) -> Stats:
    """Statistics of pixel values scaled to [0, 1]: int64 (3, 256) -> float64 (3, 1, 1); `count` is frames."""
    values = np.arange(256) / 255.0
    total = counts.sum(1)
    mean = counts @ values / total
    cumulated = np.cumsum(counts, axis=1) / total[:, None]
    seen = counts > 0

    def shaped(array: np.ndarray) -> np.ndarray:
        return np.asarray(array, dtype=np.float64).reshape(3, 1, 1)

    return {
        "min": shaped(values[seen.argmax(1)]),
        "max": shaped(values[255 - seen[:, ::-1].argmax(1)]),
        "mean": shaped(mean),
        "std": shaped(np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0.0))),
        "count": np.array([num_frames]),
        **{name: shaped(values[(cumulated >= level).argmax(1)]) for name, level in QUANTILES.items()},
    }
