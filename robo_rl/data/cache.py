"""Frames decoded once, kept as memory-mapped uint8 beside the dataset."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data import layout
from robo_rl.data.damage import Damage
from robo_rl.data.tables import Span
from robo_rl.data.video import read_frames
from robo_rl.errors import DataError

STALE_SECONDS = 24 * 3600.0  # an unfinished file this old was left behind by a process that was killed


def decoded(
    root: Path,
    mark: str,
    key: str,
    feature: dict[str, Any],
    spans: Sequence[Span],
    *,
    fps: float = 0.0,
    damage: Damage | None = None,
) -> np.memmap:
    """All frames of a camera in dataset order, uint8 (N, H, W, 3), as a read-only memory map.

    The cache is made anew when the dataset's fingerprint `mark` changes. Raises DataError naming the file and the
    episode that cannot be decoded, or when the frames do not fit on the disk. A `damage` that tolerates takes note of
    such episodes instead; their frames are then zeros.
    """
    folder, damage = root / layout.CACHE / mark, damage or Damage()
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
        path = _decoded(path, _Camera(key, _size(feature), feature["dtype"] == "video", fps), spans, damage)
    frames: np.memmap = np.load(path, mmap_mode="r")
    return frames


def _decoded(path: Path, camera: _Camera, spans: Sequence[Span], damage: Damage) -> Path:
    """Decode into `path`; with damage into a file beside it, which only those read who tolerate it."""
    holes, noted = path.with_suffix(".holes.npy"), path.with_suffix(".holes.json")
    if damage.tolerate and noted.exists() and holes.exists():
        bad = {int(episode): why for episode, why in json.loads(noted.read_text()).items()}
    else:
        found = Damage(tolerate=damage.tolerate)
        bad = found.why
        _decode(path, camera, spans, found, holes)
        if bad:
            temporary = noted.with_name(f"{noted.name}.partial-{os.getpid()}")
            temporary.write_text(json.dumps(bad))
            os.replace(temporary, noted)
    for episode, why in bad.items():
        damage.found(episode, why)
    return holes if bad else path


@dataclass(frozen=True)
class _Camera:
    key: str
    size: tuple[int, int]
    is_video: bool
    fps: float

    def read(self, source: Path, start: int) -> Iterator[np.ndarray]:
        return read_frames(source, start, self.fps) if self.is_video else _stored_images(source, self.key, start)


def _sweep(cache: Path, mark: str) -> None:
    """Remove frames of an earlier state of the dataset, and what a killed process left."""
    for old in cache.glob("*"):
        if old.name != mark:
            shutil.rmtree(old, ignore_errors=True)
    for left in cache.glob("*/*.partial-*"):
        if time.time() - left.stat().st_mtime > STALE_SECONDS:
            left.unlink(missing_ok=True)


def _decode(path: Path, camera: _Camera, spans: Sequence[Span], damage: Damage, holes: Path) -> None:
    """Decode into `path`, or into `holes` when an episode was damaged. Memory holds one frame at a time."""
    shape = (sum(span.length for span in spans), *camera.size, 3)
    needed, free = int(np.prod(shape, dtype=np.int64)), shutil.disk_usage(path.parent).free
    if needed > free:
        raise DataError(
            f"{path.parent}: camera {camera.key!r} needs {needed / 1e9:.1f} GB decoded, {free / 1e9:.1f} are free"
        )
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        with temporary.open("wb") as handle:
            out = _Rows(handle, shape)
            ends = np.cumsum([span.length for span in spans])
            for source in dict.fromkeys(span.path for span in spans):
                wanted = [
                    (span.first, int(end) - span.length, span.length, episode)
                    for episode, (span, end) in enumerate(zip(spans, ends, strict=True))
                    if span.path == source
                ]
                _fill(out, source, camera, sorted(wanted), damage)
        os.replace(temporary, holes if damage.why else path)
    except OSError as error:
        raise DataError(f"{path.parent}: decoded frames cannot be written ({error.strerror})") from None
    finally:
        temporary.unlink(missing_ok=True)


class _Rows:
    """An .npy file of uint8 frames whose rows are written in any order; unlike a memory map it takes no memory."""

    def __init__(self, handle: BinaryIO, shape: tuple[int, ...]) -> None:
        self.handle, self.frame = handle, shape[1:]
        np.lib.format.write_array_header_1_0(handle, {"descr": "|u1", "fortran_order": False, "shape": shape})
        self.begin, self.row = handle.tell(), 0
        handle.truncate(self.begin + int(np.prod(shape, dtype=np.int64)))

    def write(self, row: int, image: np.ndarray) -> None:
        if row != self.row:
            self.handle.seek(self.begin + row * int(np.prod(self.frame)))
        self.handle.write(np.ascontiguousarray(image).data)
        self.row = row + 1


def _fill(
    out: _Rows, source: Path, camera: _Camera, wanted: Sequence[tuple[int, int, int, int]], damage: Damage
) -> None:
    """Copy the `wanted` (first frame in the file, row of `out`, number of frames, episode) of one file, in one pass.

    After damage that is tolerated the file is opened again at the next episode.
    """
    frames, position = camera.read(source, 0), 0
    for first, row, length, episode in wanted:
        try:
            if first < position:
                raise DataError(
                    f"{source}: camera {camera.key!r}: two episodes share frame {first}; copy the dataset again"
                )
            for number in range(position, first + length):
                image = _next(frames, source, camera, number, first + length)
                if image.shape != out.frame:
                    raise DataError(f"{source}: frames are {image.shape}, but {layout.INFO} says {out.frame}")
                if number >= first:
                    out.write(row + number - first, image)
        except DataError as error:
            damage.found(episode, str(error), f"episode {episode}: {error}")
            frames = camera.read(source, max(position, first + length))
        position = max(position, first + length)


def _next(frames: Iterator[np.ndarray], source: Path, camera: _Camera, number: int, needed: int) -> np.ndarray:
    image = next(frames, None)
    if image is None:
        raise DataError(
            f"{source}: camera {camera.key!r}: there are only {number} frames, but {needed} are needed; "
            "copy the dataset again"
        )
    return image


def _size(feature: dict[str, Any]) -> tuple[int, int]:
    shape = [int(number) for number in feature["shape"]]
    channels_first = shape[0] == 3 and shape[2] != 3
    return (shape[1], shape[2]) if channels_first else (shape[0], shape[1])


def _stored_images(path: Path, key: str, start: int) -> Iterator[np.ndarray]:
    from PIL import Image, UnidentifiedImageError

    for row, cell in enumerate(_cells(path, key)):
        if row >= start:
            try:
                with Image.open(io.BytesIO(cell["bytes"])) as image:
                    yield np.asarray(image.convert("RGB"))
            except (UnidentifiedImageError, TypeError, OSError) as error:
                what = f"{path}: image {row} of {key!r} cannot be decoded ({type(error).__name__})"
                raise DataError(f"{what}; copy the dataset again") from None


def _cells(path: Path, key: str) -> Iterator[Any]:
    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=64, columns=[key]):
            yield from batch.column(0).to_pylist()
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise DataError(f"{path}: not readable as parquet ({first}); copy the dataset again") from None
