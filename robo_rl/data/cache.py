"""Frames decoded once, kept as memory-mapped uint8 beside the dataset."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from robo_rl.data import layout
from robo_rl.data.tables import Span
from robo_rl.data.video import read_frames
from robo_rl.errors import DataError

STALE_SECONDS = 24 * 3600.0  # an unfinished file this old was left behind by a process that was killed


def decoded(root: Path, mark: str, key: str, feature: dict[str, Any], spans: Sequence[Span]) -> np.memmap:
    """All frames of a camera in dataset order, uint8 (N, H, W, 3), as a read-only memory map.

    The cache is made anew when the dataset's fingerprint `mark` changes. Raises DataError naming the file that
    cannot be decoded, or when the frames do not fit on the disk.
    """
    folder = root / layout.CACHE / mark
    path = folder / f"{key}.npy"
    if not path.exists():
        try:
            _sweep(root / layout.CACHE, mark)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{root / layout.CACHE}: decoded frames are kept here, but it cannot be written "
                f"({error.strerror}); copy the dataset to a folder of your own"
            ) from None
        _decode(path, key, _size(feature), feature["dtype"] == "video", spans)
    frames: np.memmap = np.load(path, mmap_mode="r")
    return frames


def _sweep(cache: Path, mark: str) -> None:
    """Remove frames of an earlier state of the dataset, and what a killed process left."""
    for old in cache.glob("*"):
        if old.name != mark:
            shutil.rmtree(old, ignore_errors=True)
    for left in cache.glob("*/*.partial-*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            left.unlink(missing_ok=True)


def _decode(path: Path, key: str, size: tuple[int, int], is_video: bool, spans: Sequence[Span]) -> None:
    shape = (sum(span.length for span in spans), *size, 3)
    needed, free = int(np.prod(shape, dtype=np.int64)), shutil.disk_usage(path.parent).free
    if needed > free:
        raise DataError(f"{path.parent}: camera {key!r} needs {needed / 1e9:.1f} GB decoded, {free / 1e9:.1f} are free")
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        out = np.lib.format.open_memmap(temporary, "w+", np.uint8, shape)
        ends = np.cumsum([span.length for span in spans])
        for source in dict.fromkeys(span.path for span in spans):
            wanted = [
                (span.first, int(end) - span.length, span.length)
                for span, end in zip(spans, ends, strict=True)
                if span.path == source
            ]
            _fill(out, source, key, read_frames(source) if is_video else _stored_images(source, key), wanted)
        out.flush()
        del out
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _fill(
    out: np.ndarray, source: Path, key: str, frames: Iterator[np.ndarray], wanted: list[tuple[int, int, int]]
) -> None:
    """Copy the `wanted` (first frame in the file, row of `out`, number of frames) of one file, in one pass."""
    position = 0
    for first, row, length in sorted(wanted):
        if first < position:
            raise DataError(f"{source}: camera {key!r}: two episodes share frame {first}; copy the dataset again")
        for number in range(position, first + length):
            image = next(frames, None)
            if image is None:
                raise DataError(
                    f"{source}: camera {key!r}: there are only {number} frames, "
                    f"but {first + length} are needed; copy the dataset again"
                )
            if image.shape != out.shape[1:]:
                raise DataError(f"{source}: frames are {image.shape}, but {layout.INFO} says {out.shape[1:]}")
            if number >= first:
                out[row + number - first] = image
        position = first + length


def _size(feature: dict[str, Any]) -> tuple[int, int]:
    shape = [int(number) for number in feature["shape"]]
    channels_first = shape[0] == 3 and shape[2] != 3
    return (shape[1], shape[2]) if channels_first else (shape[0], shape[1])


def _stored_images(path: Path, key: str) -> Iterator[np.ndarray]:
    from PIL import Image, UnidentifiedImageError

    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=64, columns=[key]):
            for cell in batch.column(0).to_pylist():
                with Image.open(io.BytesIO(cell["bytes"])) as image:
                    yield np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, TypeError, OSError) as error:
        raise DataError(f"{path}: an image of {key!r} cannot be decoded ({error}); copy the dataset again") from None
