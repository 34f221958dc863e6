"""Frames as an H.264 video and a thumbnail, both small enough to travel inside the page."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from fractions import Fraction

import av
import numpy as np

MIN_HEIGHT = 128  # smaller frames are enlarged: yuv420p halves the colour resolution
GAP = 4  # pixels between cameras, after enlarging
THUMBNAIL = 96


def side_by_side(frames: Mapping[str, np.ndarray]) -> np.ndarray:
    """Cameras next to each other: uint8 (H_i, W_i, 3) videos -> one uint8 (T+1, H, W, 3) with even H and W."""
    tallest = max(video.shape[1] for video in frames.values())
    factor = max(1, -(-MIN_HEIGHT // tallest))
    columns: list[np.ndarray] = []
    for video in frames.values():
        large = video.repeat(factor, axis=1).repeat(factor, axis=2)
        low = tallest * factor - large.shape[1]
        right = GAP if len(columns) < len(frames) - 1 else 0
        columns.append(np.pad(large, ((0, 0), (low // 2, low - low // 2), (0, right), (0, 0))))
    joined = np.concatenate(columns, axis=2)
    return np.pad(joined, ((0, 0), (0, joined.shape[1] % 2), (0, joined.shape[2] % 2), (0, 0)), mode="edge")


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 (H, W, 3) -> (height, width, 3); each new pixel is the mean of those it covers."""
    if image.shape[:2] == (height, width):
        return image
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    small: np.ndarray = frame.reformat(width=width, height=height, interpolation="AREA").to_ndarray(format="rgb24")
    return small


def encode_mp4(frames: Iterable[np.ndarray], fps: float, *, crf: int = 23) -> bytes:
    """uint8 (H, W, 3) images with even H and W -> an mp4 file. H.264 without B frames: frame i shows at i / fps."""
    rate = Fraction(fps).limit_denominator(1000)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": str(crf), "preset": "veryfast", "bf": "0", "threads": "1", "g": "30"}
        for place, image in enumerate(frames):
            if place == 0:
                stream.height, stream.width = image.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def thumbnail_png(image: np.ndarray) -> bytes:
    """uint8 (H, W, 3) -> a PNG file, at most THUMBNAIL pixels a side."""
    stride = -(-max(image.shape[:2]) // THUMBNAIL)
    small = np.ascontiguousarray(image[::stride, ::stride])
    encoder = av.CodecContext.create("png", "w")
    encoder.height, encoder.width = small.shape[:2]
    encoder.pix_fmt = "rgb24"
    encoder.time_base = Fraction(1, 1)
    packets = [*encoder.encode(av.VideoFrame.from_ndarray(small, format="rgb24")), *encoder.encode(None)]
    return b"".join(bytes(packet) for packet in packets)
