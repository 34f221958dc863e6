"""Features of the frames a fit looks at: computed once and kept, or anew for every batch."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from robo_rl.types import Trajectory

CHUNK = 64  # frames that are encoded together


class Limits(Protocol):
    """How much may be kept."""

    @property
    def memory_gb(self) -> float: ...
    @property
    def disk_gb(self) -> float: ...


class FrameSource:
    """The frames that are looked at, as rows: frames[e] of episode e are rows first[e], first[e] + 1, ..."""

    def __init__(self, episodes: Sequence[Trajectory], frames: Sequence[np.ndarray], cameras: Sequence[str]) -> None:
        self.episodes, self.frames, self.cameras = episodes, frames, cameras
        lengths = np.array([len(part) for part in frames], dtype=np.int64)
        self.first = np.cumsum(lengths) - lengths
        self.count = int(lengths.sum())

    def pixels(self, rows: np.ndarray) -> dict[str, Tensor]:
        """camera -> uint8 (n, H, W, 3) of rows (n,)."""
        owner = np.searchsorted(self.first, rows, side="right") - 1
        chosen = [(self.episodes[e], self.frames[e][row - self.first[e]]) for e, row in zip(owner, rows, strict=True)]
        return {c: torch.from_numpy(np.stack([episode.images[c][f] for episode, f in chosen])) for c in self.cameras}


def make_features(
    backbone: Any, source: FrameSource, limits: Limits, *, pixels: bool
) -> Callable[[np.ndarray], Tensor]:
    """Rows (B, L) -> features (B, L, ...). With `pixels` they carry a gradient to the image encoder."""

    def fresh(rows: np.ndarray) -> Tensor:
        distinct, where = np.unique(rows, return_inverse=True)
        with torch.set_grad_enabled(pixels):
            computed = torch.cat(
                [backbone.encode(source.pixels(distinct[n : n + CHUNK])) for n in range(0, len(distinct), CHUNK)]
            )
        return computed[torch.from_numpy(where.reshape(rows.shape)).to(computed.device)]

    if pixels:
        return fresh
    with torch.no_grad():
        sample: Tensor = backbone.encode(source.pixels(np.zeros(1, np.int64)))
    gigabytes = 2e-9 * source.count * sample[0].numel()
    return fresh if gigabytes > limits.disk_gb else FeatureCache(backbone, source, sample[0].shape, limits.memory_gb)


class CameraDropout:
    """Features in which one camera shows black where a batch says so; nothing for a single camera."""

    def __init__(self, backbone: Any, source: FrameSource) -> None:
        pictures = source.pixels(np.zeros(1, np.int64))
        with torch.no_grad():
            self._black: Tensor = backbone.encode({c: torch.zeros_like(image) for c, image in pictures.items()})[0]
        self._places: list[slice] = backbone.camera_places()

    def __call__(self, features: Tensor, dropped: np.ndarray | None) -> Tensor:
        """features (B, L, ...), `ClipBatch.dropped` -> the same shape."""
        count = len(self._places)
        if dropped is None or count < 2 or np.isnan(dropped).all():
            return features
        features = features.clone()
        black = self._black.to(features.dtype)
        for row in np.flatnonzero(~np.isnan(dropped)):
            place = self._places[int(dropped[row] * count)]
            features[row, :, place] = black[place]
        return features


class FeatureCache:
    """bfloat16 features of all rows: in memory up to `memory_gb`, in a temporary file beyond.

    Numpy has no bfloat16, so the bits are kept as int16.
    """

    def __init__(self, backbone: Any, source: FrameSource, shape: tuple[int, ...], memory_gb: float) -> None:
        whole = (source.count, *shape)
        if 2 * np.prod(whole, dtype=np.float64) <= memory_gb * 1e9:
            self.rows = np.empty(whole, np.int16)
        else:
            folder = tempfile.mkdtemp(prefix="judge-features-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self.rows = np.memmap(Path(folder) / "features.bf16", np.int16, "w+", shape=whole)
        backbone.eval()
        with torch.no_grad():
            for first in range(0, source.count, CHUNK):
                rows = np.arange(first, min(first + CHUNK, source.count))
                made = backbone.encode(source.pixels(rows)).bfloat16().cpu().contiguous()
                self.rows[rows] = made.view(torch.int16).numpy()

    def __call__(self, rows: np.ndarray) -> Tensor:
        """(B, L) -> bfloat16 (B, L, ...)."""
        return torch.from_numpy(self.rows[rows]).view(torch.bfloat16)
