"""Feature maps of every frame of a dataset, computed once and gathered by row."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reward_models.network import JudgeNetwork, mixed_precision
from robo_rl.errors import DataError
from robo_rl.nets import tokenize
from robo_rl.types import Trajectory

CHUNK = 128  # frames that go through the trunk together


def require_cameras(episode: Trajectory, cameras: Sequence[str]) -> None:
    """Raises DataError naming the episode and the camera that it lacks."""
    missing = [camera for camera in cameras if camera not in episode.images]
    if missing:
        has = ", ".join(episode.images) or "none"
        raise DataError(f"episode {episode.episode_id!r}: the judge needs camera {missing[0]!r}; there are: {has}")


def frame_batches(
    episodes: Sequence[Trajectory], cameras: Sequence[str], chunk: int = CHUNK
) -> Iterator[tuple[int, slice, dict[str, Tensor]]]:
    """(episode number, frames, camera -> uint8 (n, H, W, 3)) over all episodes, at most `chunk` frames at a time."""
    for number, episode in enumerate(episodes):
        require_cameras(episode, cameras)
        for first in range(0, len(episode) + 1, chunk):
            rows = slice(first, min(first + chunk, len(episode) + 1))
            yield number, rows, {c: torch.from_numpy(np.array(episode.images[c][rows])) for c in cameras}


class MapCache:
    """bfloat16 (frames, cameras, channels, s, s): in memory up to `memory_gb`, in a temporary file beyond.

    Numpy has no bfloat16, so the bits are kept as int16.
    `first[e]` is the row of frame 0 of episode e.
    """

    def __init__(
        self,
        network: JudgeNetwork,
        episodes: Sequence[Trajectory],
        *,
        memory_gb: float = 2.0,
        on_frames: Callable[[int, int], None] | None = None,
    ) -> None:
        lengths = np.array([len(episode) + 1 for episode in episodes])
        self.first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        config = network.config
        frames = int(lengths.sum())
        shape = (frames, len(network.cameras), config.channels, config.map_size, config.map_size)
        if 2 * np.prod(shape, dtype=np.float64) <= memory_gb * 1e9:
            self.rows = np.empty(shape, np.int16)
        else:
            folder = tempfile.mkdtemp(prefix="judge-maps-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self.rows = np.memmap(Path(folder) / "maps.bf16", np.int16, "w+", shape=shape)
        network.eval()
        with torch.inference_mode(), mixed_precision(config.precision):
            for number, span, images in frame_batches(episodes, network.cameras):
                start = self.first[number]
                bits = network.maps(images).bfloat16().view(torch.int16)
                self.rows[start + span.start : start + span.stop] = bits.numpy()
                if on_frames is not None:
                    on_frames(int(start + span.stop), frames)

    def gather(self, rows: np.ndarray) -> Tensor:
        """Rows of any shape (...,) -> bfloat16 (..., cameras, channels, s, s)."""
        return torch.from_numpy(self.rows[rows]).view(torch.bfloat16)


def measure(network: JudgeNetwork, episodes: Sequence[Trajectory], sample: int = 256) -> None:
    """Bring the network's inputs to scale on frames spread over the episodes, before its first step.

    Every camera's maps get a root mean square of 1; texts and what the pools find are standardised.
    """
    places = np.linspace(0, 1, sample)
    chosen = [(episodes[round(p * (len(episodes) - 1))], n) for n, p in enumerate(places)]
    frames = {
        # golden-ratio steps through the episodes: early and late frames alike
        camera: torch.from_numpy(np.stack([e.images[camera][int((0.618 * n % 1) * (len(e) + 1))] for e, n in chosen]))
        for camera in network.cameras
    }
    instructions = tokenize([episode.instruction for episode, _ in chosen])
    network.eval()
    with torch.no_grad():
        network.map_scale.fill_(1.0)
        maps = network.maps(frames)
        scale = maps.square().mean((0, 2, 3, 4)).clamp(min=1e-12).rsqrt()
        network.map_scale.copy_(scale)
        network.set_reference(tokenize([episode.instruction for episode in episodes]))
        network.measure_look(maps * scale[:, None, None, None], instructions)
