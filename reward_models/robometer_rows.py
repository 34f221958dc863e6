"""Which frames Robometer looks at for every moment, and how much those prompts have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def frame_rows(frames: int, looked_at: int) -> np.ndarray:
    """For each frame t the `looked_at` frames between 0 and t, int64 (frames, looked_at), as lerobot samples them.

    `linspace(0, t, K).round()`: the first is always 0 and the last t, so early rows repeat a frame. Robometer's
    evaluation server ("frame steps"), METHODS 5; `_build_subsample_indices` in lerobot's labelling script.
    """
    return np.stack([np.linspace(0, t, looked_at).round().astype(np.int64) for t in range(frames)])


@dataclass(frozen=True)
class Level:
    """The distinct prompts up to a certain picture: each continues one prompt of the level before."""

    episode: np.ndarray  # int64 (nodes,): which of the batch's episodes
    frame: np.ndarray  # int64 (nodes,): the picture added
    parent: np.ndarray  # int64 (nodes,): node of the level before; at the first level, the episode


def prefix_tree(episode: np.ndarray, rows: np.ndarray) -> tuple[list[Level], np.ndarray]:
    """Prompts that begin with the same pictures, merged.

    Args:
        episode: int64 (R,), number of each row's episode in this batch, from 0.
        rows: int64 (R, K), the pictures of each row in order; the first is the same in all rows of an episode.

    Returns:
        One level for each picture after the first, and each row's node in the last level (R,).
    """
    levels: list[Level] = []
    parent = episode
    for depth in range(1, rows.shape[1]):
        pairs = np.stack([parent, rows[:, depth]], axis=1)
        _, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        inverse = inverse.reshape(-1)
        levels.append(Level(episode[first], rows[first, depth], parent[first]))
        parent = inverse
    return levels, parent
