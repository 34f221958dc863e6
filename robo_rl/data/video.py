"""Frames to H.264 and back.

Measured on 64 x 64 frames of the tabletop (ms and bytes a frame, one core): yuv420p at crf 14 gives 29 dB whatever
the preset, because halving the colour resolution smears objects of a few pixels. yuv444p gives 45 dB with
`ultrafast` (0.07 ms, 1.2 kB) and 43 dB with `superfast` (0.17 ms, 0.9 kB). So small frames keep full colour
resolution; large ones take the format that every player shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.frame import PictureType

from robo_rl.errors import DataError

CODEC = "libx264"
KEYFRAME_EVERY = 4  # any frame is at most three decodes away
SMALL = 160  # pixels; frames up to this size keep full colour resolution


def pixel_format(height: int, width: int) -> str:
    """How colours of frames of this size are stored."""
    if height % 2 or width % 2 or max(height, width) <= SMALL:
        return "yuv444p"
    return "yuv420p"


class VideoWriter:
    """One mp4 file, frame by frame; `close` makes it readable. `count` frames and `size` bytes so far."""

    def __init__(self, path: Path, *, fps: float, height: int, width: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.count, self.size = path, 0, 0
        self._container = av.open(str(path), "w", options={"movflags": "faststart"})
        stream: Any = self._container.add_stream(CODEC, rate=Fraction(fps).limit_denominator(10_000))
        stream.height, stream.width, stream.pix_fmt = height, width, pixel_format(height, width)
        stream.codec_context.thread_count = 1  # the same bytes on every machine with this encoder
        small = stream.pix_fmt == "yuv444p"
        stream.options = {
            "crf": "14" if small else "18",
            "preset": "ultrafast" if small else "superfast",
            "g": str(KEYFRAME_EVERY),
            "bf": "0",
            "forced-idr": "1",
            "x264-params": "log-level=error:threads=1",
        }
        self._stream = stream

    def add(self, frames: np.ndarray) -> None:
        """One episode, uint8 (N, H, W, 3), RGB. It begins with a keyframe, so it owes nothing to the one before."""
        for number, image in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            if number == 0:
                frame.pict_type = PictureType.I
            self._mux(frame)
            self.count += 1

    def _mux(self, frame: av.VideoFrame | None) -> None:
        for packet in self._stream.encode(frame):
            self.size += packet.size
            self._container.mux(packet)

    def close(self) -> None:
        self._mux(None)
        self._container.close()

    def abandon(self) -> None:
        """Close the file handle of a video that nobody will read."""
        self._container.close()


def read_frames(path: Path, start: int = 0, fps: float = 0.0) -> Iterator[np.ndarray]:
    """Frames of a video in order, uint8 (H, W, 3), from number `start` on; that needs the rate `fps`.

    Raises DataError naming the file and the frame when it is missing or damaged; a decoder would show something all
    the same.
    """
    if not path.exists():
        raise DataError(f"{path}: the video is missing; copy the dataset again")
    number = start
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            # starting threads costs more than it gains on small frames
            stream.thread_type = "NONE" if max(stream.height, stream.width) <= SMALL else "AUTO"
            for frame in _from(container, stream, start, fps) if start else container.decode(stream):
                if frame.is_corrupt:
                    raise DataError(f"{path}: the video is damaged at frame {number}; copy the dataset again")
                yield frame.to_ndarray(format="rgb24")
                number += 1
    except (av.error.FFmpegError, IndexError) as error:
        raise DataError(
            f"{path}: the video cannot be decoded from frame {number} on ({error}); copy the dataset again"
        ) from None


def _from(container: Any, stream: Any, start: int, fps: float) -> Iterator[av.VideoFrame]:
    """Frames from number `start` on, after a jump to the last keyframe before."""
    begin = stream.start_time or 0
    container.seek(begin + round(start / fps / stream.time_base), stream=stream)
    expected, spoilt = start, False
    for frame in container.decode(stream):
        number = round(float((frame.pts - begin) * stream.time_base) * fps)
        if number < start:
            spoilt = frame.is_corrupt or (spoilt and not frame.key_frame)
            continue
        if number != expected or (spoilt and not frame.key_frame):
            raise av.error.InvalidDataError(0, f"frame {expected} is missing or damaged")
        yield frame
        expected, spoilt = expected + 1, False
