"""Training batches of action chunks, straight from memory-mapped frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robo_rl.credit.habc import warmup_gate
from robo_rl.data import EpisodeSet
from robo_rl.errors import DataError
from robo_rl.nets import tokenize
from robo_rl.policies.compact_vla.modeling_compact_vla import TOKENS
from robo_rl.policies.storage import Normaliser


@dataclass(frozen=True, kw_only=True)
class Anchors:
    """Which frames are learned from, and how much: global frame indices with their sample weights."""

    frames: np.ndarray  # int64 (M,)
    weights: np.ndarray  # float32 (M,), mean 1 over the samples that can be drawn

    def __post_init__(self) -> None:
        if len(self.frames) == 0:
            raise DataError("no frame to learn from: every frame is masked or has weight zero")


class ChunkBatches:
    """Batch number `step` is a function of (seed, step): training resumes at any step exactly.

    Sources are mixed in fixed shares (for instance half demonstrations, half rollouts); within a source
    anchors are drawn uniformly, and their weights stay in the loss. For the first `warmup_steps` steps all
    weights are 1 (METHODS 1.3).
    """

    def __init__(
        self,
        episodes: EpisodeSet,
        sources: Sequence[tuple[float, Anchors]],
        normaliser: Normaliser,
        *,
        chunk: int,
        batch_size: int,
        seed: int,
        shift: int = 4,
        warmup_steps: int = 0,
    ) -> None:
        self._episodes, self._sources = episodes, [(share, source) for share, source in sources if share > 0]
        self._chunk, self._size, self._seed, self._shift = chunk, batch_size, seed, shift
        self._warmup_steps = warmup_steps
        self._state = normaliser.state(np.asarray(episodes.flat_state)).astype(np.float32)
        self._action = normaliser.action(np.asarray(episodes.flat_actions)).astype(np.float32)
        first, lengths = np.asarray(episodes.first_frame), np.asarray(episodes.lengths)
        owner = np.asarray(episodes.episode_of_frame)
        self._last_action = first[owner] + lengths[owner] - 2  # the final row only repeats an action
        self._tokens = tokenize([episodes[e].instruction for e in range(len(episodes))])
        self._owner = owner

    def __call__(self, step: int) -> dict[str, Tensor]:
        """What the policy's preprocessor would leave, plus `sample_weight` (B,) and `index` (B,)."""
        rng = np.random.default_rng([self._seed, step])
        frames, weights = self._draw(rng)
        weights = warmup_gate(weights, step, self._warmup_steps)
        ahead = frames[:, None] + np.arange(self._chunk)
        last = self._last_action[frames][:, None]
        pad = ahead > last
        batch: dict[str, Tensor] = {
            "observation.state": torch.from_numpy(self._state[frames]),
            "action": torch.from_numpy(self._action[np.minimum(ahead, last)]),
            "action_is_pad": torch.from_numpy(pad),
            TOKENS: self._tokens[self._owner[frames]],
            "sample_weight": torch.from_numpy(weights.astype(np.float32)),
            "index": torch.from_numpy(frames),
        }
        for camera in self._episodes.cameras:
            images = shift_frames(self._episodes.gather(camera, frames), self._shift, rng)
            batch[f"observation.images.{camera}"] = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255.0
        return batch

    def _draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        total = sum(share for share, _ in self._sources)
        counts = [round(self._size * share / total) for share, _ in self._sources]
        counts[-1] = self._size - sum(counts[:-1])
        picks = [
            (source.frames[drawn], source.weights[drawn])
            for (_, source), count in zip(self._sources, counts, strict=True)
            for drawn in [rng.integers(len(source.frames), size=count)]
        ]
        return np.concatenate([frames for frames, _ in picks]), np.concatenate([weights for _, weights in picks])


def shift_frames(frames: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Each frame moved by up to `most` pixels, edges repeated: uint8 (B, H, W, 3) -> the same (DrQ)."""
    if most == 0:
        return frames
    _, height, width, _ = frames.shape
    out = np.empty_like(frames)
    padded = np.pad(frames, ((0, 0), (most, most), (most, most), (0, 0)), mode="edge")
    for row, (down, right) in enumerate(rng.integers(0, 2 * most + 1, (len(frames), 2))):
        out[row] = padded[row, down : down + height, right : right + width]
    return out
