"""Frames decoded once, kept as memory-mapped uint8 beside the dataset."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from robo_rl.data import layout
from robo_rl.data.video import read_frames
from robo_rl.errors import DataError


def decoded(
    root: Path, mark: str, key: str, feature: dict[str, Any], spans: Sequence[tuple[int, int, int]]
) -> np.ndarray:
    """All frames of a camera in dataset order, uint8 (N, H, W, 3), as a read-only memory map.

    `spans` are (file index, first frame within that file, number of frames) of every episode. The cache is
    made anew when the dataset's fingerprint `mark` changes.
    """
    folder = root / layout.CACHE / mark
    path = folder / f"{key}.npy"
    if not path.exists():
        for old in (root / layout.CACHE).glob("*"):
            if old.name != mark:
                shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        _decode(root, path, key, feature, spans)
    return np.load(path, mmap_mode="r")


def _decode(root: Path, path: Path, key: str, feature: dict[str, Any], spans: Sequence[tuple[int, int, int]]) -> None:
    height, width = _size(feature)
    total = sum(length for _, _, length in spans)
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    out = np.lib.format.open_memmap(temporary, "w+", np.uint8, (total, height, width, 3))
    row = 0
    try:
        for file_index in sorted({span[0] for span in spans}):
            wanted = [span for span in spans if span[0] == file_index]
            frames = _file_frames(root, key, feature, file_index)
            position = 0
            for _, first, length in wanted:
                for number in range(position, first + length):
                    image = next(frames, None)
                    if image is None:
                        raise DataError(
                            f"{root}: camera {key!r}: the video of file {file_index} ends after {number} frames, "
                            f"but {first + length} are needed; copy the dataset again"
                        )
                    if number >= first:
                        out[row] = image
                        row += 1
                position = first + length
        out.flush()
        del out
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _size(feature: dict[str, Any]) -> tuple[int, int]:
    names, shape = feature.get("names") or [], feature["shape"]
    if names and names[0] in ("channel", "channels"):
        return int(shape[1]), int(shape[2])
    return int(shape[0]), int(shape[1])


def _file_frames(root: Path, key: str, feature: dict[str, Any], file_index: int) -> Iterator[np.ndarray]:
    if feature["dtype"] == "video":
        return read_frames(root / layout.VIDEO.format(video_key=key, chunk_index=0, file_index=file_index))
    return _stored_images(root / layout.DATA.format(chunk_index=0, file_index=file_index), key)


def _stored_images(path: Path, key: str) -> Iterator[np.ndarray]:
    from PIL import Image

    for batch in pq.ParquetFile(path).iter_batches(batch_size=64, columns=[key]):
        for cell in batch.column(0).to_pylist():
            with Image.open(io.BytesIO(cell["bytes"])) as image:
                yield np.asarray(image.convert("RGB"))
