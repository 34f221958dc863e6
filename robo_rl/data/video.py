"""Frames to H.264 and back. Small frames keep full colour resolution, so that little is lost."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from robo_rl.errors import DataError

CODEC = "libx264"
KEYFRAME_EVERY = 4  # any frame is at most three decodes away


def pixel_format(height: int, width: int) -> str:
    """Halving the colour resolution of a 64 pixel frame smears objects of a few pixels; of a large one it does not."""
    if height % 2 or width % 2 or max(height, width) <= 160:
        return "yuv444p"
    return "yuv420p"


class VideoWriter:
    """One mp4 file, frame by frame; `close` makes it readable."""

    def __init__(self, path: Path, *, fps: float, height: int, width: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.count = path, 0
        self._container = av.open(str(path), "w", options={"movflags": "faststart"})
        stream: Any = self._container.add_stream(CODEC, rate=Fraction(fps).limit_denominator(10_000))
        stream.height, stream.width, stream.pix_fmt = height, width, pixel_format(height, width)
        stream.codec_context.thread_count = 1  # the same bytes on every machine with this encoder
        stream.options = {
            "crf": "14",
            "preset": "superfast",
            "g": str(KEYFRAME_EVERY),
            "bf": "0",
            "x264-params": "log-level=error:threads=1",
        }
        self._stream = stream

    def add(self, frames: np.ndarray) -> None:
        """uint8 (N, H, W, 3), RGB."""
        for image in frames:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            self._container.mux(self._stream.encode(frame))
            self.count += 1

    def close(self) -> None:
        self._container.mux(self._stream.encode())
        self._container.close()


def read_frames(path: Path) -> Iterator[np.ndarray]:
    """All frames of a video in order, uint8 (H, W, 3). Raises DataError naming the file."""
    if not path.exists():
        raise DataError(f"{path}: the video is missing; copy the dataset again")
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "NONE"
            for frame in container.decode(stream):
                yield frame.to_ndarray(format="rgb24")
    except (av.error.FFmpegError, IndexError) as error:
        raise DataError(f"{path}: the video cannot be decoded ({error}); copy the dataset again") from None
