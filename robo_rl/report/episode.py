"""One episode to look at, and the .npz file that keeps its frames and curves."""

from __future__ import annotations

import hashlib
import io
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from robo_rl.errors import DataError
from robo_rl.report.decode import decode, encode
from robo_rl.types import Outcome

EpisodeGroup = Literal["before", "after", "demonstration", "judged"]

_ARRAYS = ("progress", "success_prob", "tri_state", "weight", "true_progress")
_LAYERS = ("others", "others_success")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DataError(message)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpisodeView:
    """One episode to look at, with what judges thought of it. T actions, T + 1 frames.

    Curves have one value a frame, or `samples` values over the same time where only the frames were thinned; read
    T + 1 as `samples` and T as `samples` - 1 then.
    """

    key: str  # unique in the report
    title: str
    group: EpisodeGroup
    instruction: str
    task: str
    outcome: Outcome
    index: int  # initial state: the same index before and after is the same start
    policy: str
    fps: float
    frames: Mapping[str, np.ndarray]  # camera -> uint8 (T+1, H, W, 3)
    progress: np.ndarray | None = None  # float32 (T+1,)
    success_prob: np.ndarray | None = None  # float32 (T+1,)
    tri_state: np.ndarray | None = None  # float32 (T, 3): progressive, stagnant, regressive
    weight: np.ndarray | None = None  # float32 (T,), sample weight of each step
    true_progress: np.ndarray | None = None  # float32 (T+1,)
    samples: int | None = None  # values of a curve; None: as many as frames
    others: Mapping[str, np.ndarray] = field(default_factory=dict)  # judge -> progress, float32 (T+1,), NaN: no answer
    others_success: Mapping[str, np.ndarray] = field(default_factory=dict)  # judge -> float32 (T+1,), NaN: no answer
    marks: Sequence[tuple[float, str]] = ()  # (value of a curve where a part of the task begins, name of the part)
    note: str = ""

    def __post_init__(self) -> None:
        where = f"episode {self.key!r}"
        _require(self.group in get_args(EpisodeGroup), f"{where}: group {self.group!r} is not {get_args(EpisodeGroup)}")
        _require(math.isfinite(self.fps) and self.fps > 0, f"{where}: fps must be positive, got {self.fps}")
        _require(len(self.frames) > 0, f"{where}: no camera; a view has at least one")
        lengths = {camera: len(frames) for camera, frames in self.frames.items()}
        _require(len(set(lengths.values())) == 1, f"{where}: cameras differ in length: {lengths}")
        for camera, frames in self.frames.items():
            _require(
                frames.dtype == np.uint8 and frames.ndim == 4 and frames.shape[3] == 3,
                f"{where}: camera {camera!r} must be uint8 (T+1, H, W, 3), got {frames.dtype} {frames.shape}",
            )
        _require(self.num_frames >= 2, f"{where}: {self.num_frames} frame; a view has at least two")
        steps = self.num_samples - 1
        _require(steps >= 1, f"{where}: samples must be at least two, got {steps + 1}")
        for layer in _LAYERS:
            for name, values in getattr(self, layer).items():
                of = f"{where}: {layer}[{name!r}]"
                _require(values.shape == (steps + 1,), f"{of} must be {(steps + 1,)}, got {values.shape}")
                _require(not np.isinf(values).any(), f"{of} is infinite somewhere; NaN says that there was no answer")
        for frame, name in self.marks:
            _require(0 <= frame <= steps, f"{where}: mark {name!r} at {frame} is outside 0 to {steps}")
        shapes = ((steps + 1,), (steps + 1,), (steps, 3), (steps,), (steps + 1,))
        for name, shape in zip(_ARRAYS, shapes, strict=True):
            array = getattr(self, name)
            if array is not None:
                _require(array.shape == shape, f"{where}: {name} must be {shape}, got {array.shape}")
                _require(bool(np.isfinite(array).all()), f"{where}: {name} is not finite; leave it out (None) instead")

    @property
    def num_frames(self) -> int:
        """T + 1."""
        return len(next(iter(self.frames.values())))

    @property
    def num_samples(self) -> int:
        """Values of a curve."""
        return self.num_frames if self.samples is None else self.samples


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeHeader:
    """The part of an `EpisodeView` that is text: what report.json keeps of it."""

    key: str
    title: str
    group: EpisodeGroup
    instruction: str
    task: str
    outcome: Outcome
    index: int
    policy: str
    fps: float
    samples: int | None = None
    note: str = ""


def write_episode(folder: Path, episode: EpisodeView, where: str) -> dict[str, Any]:
    """Write the arrays as an .npz file named by its content; return what report.json keeps of the episode."""
    skip = {"frames", "marks", *_LAYERS, *_ARRAYS, *(() if episode.samples else ("samples",))}
    text = {
        f.name: encode(getattr(episode, f.name), f"{where}.{f.name}") for f in fields(episode) if f.name not in skip
    }
    arrays = {f"frames/{i}": frames for i, frames in enumerate(episode.frames.values())}
    arrays |= {name: value for name in _ARRAYS if (value := getattr(episode, name)) is not None}
    for layer in _LAYERS:
        if named := getattr(episode, layer):
            text[layer] = list(named)
            arrays |= {f"{layer}/{i}": values for i, values in enumerate(named.values())}
    if episode.marks:
        text["marks"] = encode([[float(frame), name] for frame, name in episode.marks], f"{where}.marks")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    text["cameras"] = list(episode.frames)
    text["file"], text["sha256"] = f"episode-{digest[:16]}.npz", digest
    replace_file(folder / text["file"], content)
    return text


def read_episode(folder: Path, text: Any, where: str) -> EpisodeView:
    """Undo `write_episode`. Raises DataError for a missing or damaged file and for arrays of the wrong shape."""
    _require(isinstance(text, dict), f"{where}: expected a mapping")
    cameras, name, digest = (text.pop(key, None) for key in ("cameras", "file", "sha256"))
    _require(
        isinstance(cameras, list) and isinstance(name, str) and Path(name).name == name,
        f"{where}: needs 'cameras' (a list) and 'file' (a plain file name)",
    )
    layers = {layer: decode(Sequence[str], text.pop(layer, []), f"{where}.{layer}") for layer in _LAYERS}
    marks = _read_marks(text.pop("marks", []), f"{where}.marks")
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    _require(
        hashlib.sha256(content).hexdigest() == digest,
        f"{path}: its content differs from the hash in report.json; damaged",
    )
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        frames = {camera: arrays.pop(f"frames/{i}") for i, camera in enumerate(cameras)}
        curves = {
            layer: {name: arrays.pop(f"{layer}/{i}") for i, name in enumerate(names)} for layer, names in layers.items()
        }
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not an archive of this episode: {error}") from None
    values = {"frames": frames, "marks": marks, **curves, **arrays}
    return _build_episode(text, values, where)


def _read_marks(value: Any, where: str) -> list[tuple[float, str]]:
    rows = decode(Sequence[list], value, where)
    for i, row in enumerate(rows):
        _require(len(row) == 2, f"{where}[{i}]: must be a frame and a name, got {row}")
    return [(decode(float, a, f"{where}[{i}][0]"), decode(str, b, f"{where}[{i}][1]")) for i, (a, b) in enumerate(rows)]


def _build_episode(text: dict[str, Any], arrays: dict[str, Any], where: str) -> EpisodeView:
    header: EpisodeHeader = decode(EpisodeHeader, text, where)
    try:
        return EpisodeView(**{f.name: getattr(header, f.name) for f in fields(header)}, **arrays)
    except (DataError, TypeError) as error:
        raise DataError(f"{where}: {error}") from None


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` under a temporary name, then rename: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
