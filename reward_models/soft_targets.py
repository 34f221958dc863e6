"""Soft outcomes of failed episodes: how close to a success did they look? (eVTA0, METHODS 2.3)

Per task: embeddings of successes are standardised and clustered (DBSCAN); a failure's distance to the nearest cluster
centre, scaled to [0, 1] over the task's failures, gives z = 0.6 sigmoid(10 (0.5 - d)), in about [0.004, 0.596]. With
soft targets a probability of success is no calibrated probability any more: calibrate on held-out episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.cluster import DBSCAN


def soft_failure_targets(embedding: np.ndarray, success: np.ndarray, tasks: Sequence[str]) -> np.ndarray:
    """Targets of episodes: float (E, D), bool (E,), task names -> float32 (E,).

    1 for successes. 0 for failures of a task without a success to compare with, and where all failures of a task
    are equally far (nothing tells them apart).
    """
    embedding, success = np.asarray(embedding, dtype=np.float64), np.asarray(success, dtype=bool)
    target = success.astype(np.float32)
    names = np.array(tasks)
    for task in np.unique(names):
        won, lost = np.flatnonzero((names == task) & success), np.flatnonzero((names == task) & ~success)
        if len(won) and len(lost):
            target[lost] = _of_distances(_nearest(embedding[lost], success_centres(embedding[won])))
    return target


def success_centres(embedding: np.ndarray) -> np.ndarray:
    """Cluster centres of successes, (n, D) -> (K, D): DBSCAN(eps 0.5, min_samples 2) on standardised embeddings.

    Where it finds no cluster, the mean of all.
    """
    mean, spread = embedding.mean(0), embedding.std(0)
    spread = np.where(spread > 1e-8, spread, 1.0)
    labels = DBSCAN(eps=0.5, min_samples=2).fit_predict((embedding - mean) / spread)
    found = [embedding[labels == label].mean(0) for label in sorted(set(labels) - {-1})]
    return np.stack(found) if found else mean[None]


def _nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(points[:, None] - centres[None], axis=-1).min(1))


def _of_distances(distance: np.ndarray) -> np.ndarray:
    width = distance.max() - distance.min()
    if width <= 0:
        return np.zeros(len(distance), np.float32)
    scaled = (distance - distance.min()) / width
    return (0.6 / (1.0 + np.exp(-10.0 * (0.5 - scaled)))).astype(np.float32)
