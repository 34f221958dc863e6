"""Folders of videos, without actions or states, as a LeRobotDataset v3 that a judge can be fitted to.

    recordings/
      task_instruction.json             an instruction, or a list of paraphrases
      episode_001/
        cam_high.mp4, cam_wrist.mp4     one video a camera
        annotated_keyframes.json        sub-tasks, where somebody named them
        task_instruction.json           where this episode has an instruction of its own

Frames go one at a time from the decoder into a temporary file, and from there into the dataset.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np

from robo_rl.data import layout
from robo_rl.data.damage import instruction_fault
from robo_rl.data.subtasks import KEYFRAMES, LABELS, Subtasks, read_keyframes
from robo_rl.data.writer import write_episodes
from robo_rl.errors import ConfigError, DataError
from robo_rl.types import Controller, Outcome, Trajectory

VIDEOS = (".mp4", ".mkv", ".mov", ".avi", ".webm")
INSTRUCTION = "task_instruction.json"
PARAPHRASES = "labels/instructions.json"
APART_SECONDS = 0.5  # cameras of one episode may stop this much earlier or later than each other
NO_ACTION = "none"  # what the one column of actions is called


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """How videos are imported. Raises ConfigError."""

    size: int | None = None  # pixels of the longer side; frames are never enlarged
    fps: float | None = None  # frames a second that are kept; None: all
    instruction: int = 0  # which of the paraphrases, from 0

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 8:
            raise ConfigError(f"size must be at least 8 pixels, got {self.size}")
        if self.fps is not None and not self.fps > 0:
            raise ConfigError(f"fps must be positive, got {self.fps:g}")
        if self.instruction < 0:
            raise ConfigError(f"instruction counts from 0, got {self.instruction}")


@dataclass(kw_only=True)
class Imported:
    """What was imported."""

    episodes: int = 0
    frames: int = 0
    subtasks: dict[int, Subtasks] = field(default_factory=dict)  # by number of the episode, frames of the dataset
    paraphrases: dict[str, list[str]] = field(default_factory=dict)


def import_videos(
    folder: Path | str,
    out: Path | str,
    config: ImportConfig | None = None,
    *,
    progress_callback: Callable[[int, int], None] | None = None,
) -> Imported:
    """Write the episodes of `folder` as the dataset `out`, which appears complete or not at all.

    An episode with named sub-tasks is a success, of others the outcome is unknown. There is one action, always 0,
    called "none", and no state. The last frame of a video is always kept. Sub-tasks, with frames as the dataset counts
    them, and paraphrases go to `labels/`.

    Raises DataError naming the file that is missing, damaged or does not fit, or when `out` exists.
    """
    folder, out, config = Path(folder), Path(out), config or ImportConfig()
    if out.exists():
        raise DataError(f"{out}: already exists; choose another --out or remove it")
    videos = _find(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    found = Imported()

    def told(trajectories: Iterator[Trajectory]) -> Iterator[Trajectory]:
        for trajectory in trajectories:
            yield trajectory
            found.episodes, found.frames = found.episodes + 1, found.frames + len(trajectory) + 1
            if progress_callback is not None:
                progress_callback(found.episodes, len(videos))

    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
            write_episodes(partial, told(_episodes(folder, videos, config, Path(scratch), found)))
        _name_action(partial)
        _write_labels(partial, found)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return found


def _find(folder: Path) -> dict[Path, dict[str, Path]]:
    """Folder of each episode -> camera -> video."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    found = {}
    for entry in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        videos = {path.stem: path for path in sorted(entry.iterdir()) if path.suffix.lower() in VIDEOS}
        if videos:
            found[entry] = videos
    if not found:
        raise DataError(f"{folder}: no sub-folder has videos ({', '.join(VIDEOS)}); each episode is a folder of them")
    first, cameras = next(iter(found.items()))
    for entry, videos in found.items():
        if videos.keys() != cameras.keys():
            other = sorted(videos.keys() ^ cameras.keys())[0]
            lacking, having = (entry, first) if other in cameras else (first, entry)
            raise DataError(f"{lacking}: camera {other!r} is missing; {having.name} has it, all episodes need the same")
    return found


def _episodes(
    folder: Path, videos: dict[Path, dict[str, Path]], config: ImportConfig, scratch: Path, found: Imported
) -> Iterator[Trajectory]:
    for number, (entry, cameras) in enumerate(videos.items()):
        texts = _instructions(folder, entry)
        if config.instruction >= len(texts):
            raise DataError(f"{entry}: there are {len(texts)} instructions; --instruction={config.instruction} is none")
        text = texts[config.instruction]
        found.paraphrases[text] = texts
        images, chosen, fps = _decode(entry, cameras, config, scratch)
        keyframes = entry / KEYFRAMES
        if keyframes.exists():
            found.subtasks[number] = _moved(keyframes, chosen)
        steps = len(chosen) - 1
        yield Trajectory(
            episode_id=entry.name,
            instruction=text,
            images=images,
            state=np.zeros((steps + 1, 0), np.float32),
            actions=np.zeros((steps, 1), np.float32),
            controller=np.full(steps, Controller.HUMAN, np.int8),
            outcome=Outcome.SUCCESS if keyframes.exists() else Outcome.UNKNOWN,
            fps=fps,
            task=texts[0],
            index=number,
            note=f"imported from {folder.resolve().name}/{entry.name}",
        )
        for path in scratch.iterdir():
            path.unlink()


def _instructions(folder: Path, entry: Path) -> list[str]:
    path = entry / INSTRUCTION if (entry / INSTRUCTION).exists() else folder / INSTRUCTION
    try:
        given: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: missing; it holds the instruction, or a list of paraphrases") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{path}: must be an instruction, or a list of paraphrases")
    for place, text in enumerate(texts):
        if why := instruction_fault(text):
            raise DataError(f"{path}: row {place + 1}: {why}")
    return [text.strip() for text in texts]


# --- frames -------------------------------------------------------------------------------------------------


def _decode(
    entry: Path, cameras: dict[str, Path], config: ImportConfig, scratch: Path
) -> tuple[dict[str, np.ndarray], np.ndarray, float]:
    """Frames of every camera as maps of temporary files, their numbers in the videos int64 (n,), and the rate."""
    taken: dict[str, list[int]] = {}
    shapes: dict[str, tuple[int, int]] = {}
    rates: dict[str, float] = {}
    for camera, path in cameras.items():
        with (scratch / camera).open("wb") as handle:
            taken[camera], shapes[camera], rates[camera] = _write_frames(path, config, handle)
    first = next(iter(cameras))
    for camera, path in cameras.items():
        if rates[camera] != rates[first]:
            raise DataError(
                f"{path}: {rates[camera]:g} frames a second, but {cameras[first].name} has {rates[first]:g}"
            )
        apart = abs(taken[camera][-1] - taken[first][-1]) / rates[first]
        if apart > APART_SECONDS:
            other = f"{cameras[first].name} has {taken[first][-1] + 1}"
            raise DataError(
                f"{path}: {taken[camera][-1] + 1} frames, but {other}; cameras of an episode may differ by "
                f"{APART_SECONDS:g} s"
            )
    shortest = min(taken.values(), key=lambda numbers: (len(numbers), numbers[-1]))
    count = len(shortest)
    if count < 2:
        raise DataError(f"{entry}: {count} frame is left of a video; an episode needs at least two")
    images: dict[str, Any] = {camera: _FrameFile(scratch / camera, (count, *shapes[camera], 3)) for camera in cameras}
    return images, np.array(shortest, dtype=np.int64), config.fps or rates[first]


class _FrameFile:
    """Frames in a file, uint8 (n, H, W, 3), indexed like an array. Reading copies: a map would stay in memory."""

    dtype, ndim = np.dtype(np.uint8), 4

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path, self.shape = path, shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, where: Any) -> np.ndarray:
        return np.array(np.memmap(self.path, np.uint8, "r", shape=self.shape)[where])


def _write_frames(path: Path, config: ImportConfig, handle: BinaryIO) -> tuple[list[int], tuple[int, int], float]:
    """Numbers of the frames that were written, their (height, width), and the video's rate."""
    numbers: list[int] = []
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            rate = float(stream.average_rate or 0)
            if rate <= 0:
                raise DataError(f"{path}: does not say its frame rate")
            if config.fps is not None and config.fps > rate + 1e-6:
                raise DataError(f"{path}: has {rate:g} frames a second; --fps={config.fps:g} is more than there are")
            height, width = _fitted(stream.height, stream.width, config.size)
            for number, frame in _sampled(container.decode(stream), rate / (config.fps or rate), path):
                small = frame.reformat(width=width, height=height, format="rgb24", interpolation="AREA")
                handle.write(np.ascontiguousarray(small.to_ndarray()).data)
                numbers.append(number)
    except (av.error.FFmpegError, IndexError) as error:
        raise DataError(f"{path}: the video cannot be decoded ({error})") from None
    if not numbers:
        raise DataError(f"{path}: there is no frame in it")
    return numbers, (height, width), rate


def _fitted(height: int, width: int, size: int | None) -> tuple[int, int]:
    """Height and width with a longer side of `size`, rounded to even numbers."""
    longest = max(height, width)
    if size is None or size >= longest:
        return height, width
    return max(2, 2 * round(height * size / longest / 2)), max(2, 2 * round(width * size / longest / 2))


def _sampled(frames: Iterator[av.VideoFrame], every: float, path: Path) -> Iterator[tuple[int, av.VideoFrame]]:
    """(number, frame) nearest to 0, every, 2 every, ...; and the last one, which may come early."""
    taken, last = 0, None
    for number, frame in enumerate(frames):
        if frame.is_corrupt:
            raise DataError(f"{path}: the video is damaged at frame {number}")
        last = (number, frame)
        if number == round(taken * every):
            taken += 1
            yield last
            last = None
    if last is not None:
        yield last


# --- what is kept beside the frames -----------------------------------------------------------------------


def _moved(path: Path, chosen: np.ndarray) -> Subtasks:
    """Sub-tasks by the dataset's frames: each boundary goes to the kept frame nearest to it."""
    recorded = read_keyframes(path, int(chosen[-1]))
    frames = np.abs(chosen[None] - recorded.frames[:, None]).argmin(1)
    short = np.flatnonzero(np.diff(frames) <= 0)
    if len(short):
        raise DataError(f"{path}: row {short[0] + 1}: lasts less than a frame at this rate; choose a higher --fps")
    return Subtasks(frames=frames.astype(np.int64), names=recorded.names)


def _name_action(root: Path) -> None:
    path = root / layout.INFO
    info = json.loads(path.read_text())
    info["features"]["action"]["names"] = [NO_ACTION]
    path.write_text(json.dumps(info, indent=1))


def _write_labels(root: Path, found: Imported) -> None:
    (root / LABELS).parent.mkdir()
    (root / PARAPHRASES).write_text(
        json.dumps(found.paraphrases, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if not found.subtasks:
        return
    with (root / LABELS).open("w", newline="", encoding="utf-8") as handle:
        rows = csv.writer(handle, lineterminator="\n")
        rows.writerow(["episode_index", "from_frame", "to_frame", "name"])
        for episode, part in found.subtasks.items():
            rows.writerows(_spans(episode, part.frames.tolist(), part.names))


def _spans(episode: int, frames: Sequence[int], names: Sequence[str]) -> Iterator[tuple[int, int, int, str]]:
    for place, name in enumerate(names):
        yield episode, frames[place], frames[place + 1], name
