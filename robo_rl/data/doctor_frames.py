"""Pictures: what the headers of all videos say, and a sample of frames, decoded one at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data import cache, layout, tables
from robo_rl.data.doctor_finding import Finding, found
from robo_rl.data.doctor_read import Recording
from robo_rl.data.tables import Span
from robo_rl.data.video import read_frames
from robo_rl.errors import DataError

FRAMES = 3000  # of each camera that are decoded; smaller datasets are decoded whole
FROZEN_SECONDS = 1.0  # a camera that shows the same for longer while the robot moves has stopped
SAME_PICTURE = 40  # grey levels: where no pixel differs by more it is the codec (up to 36), not the scene (150)
ONE_COLOUR = 16  # grey levels
MOVED = 0.05  # of the range that the proprioception has in the dataset
REPEATED = 0.05  # of the usual change from frame to frame: less is the same picture again
REPEATS = 0.25  # share of repeated pictures, while the robot moves, from which the camera is too slow
ALIKE = 1.0  # grey levels: two cameras that differ by less on average show the same
GRID = 8  # two cameras are compared on a grid of so many points a side


@dataclass(frozen=True)
class Plan:
    """Which rows of which episodes are decoded."""

    windows: Mapping[int, slice]
    total: int  # frames of the dataset

    @property
    def frames(self) -> int:
        return sum(window.stop - window.start for window in self.windows.values())


def plan(recording: Recording, frames: int, seed: int = 0) -> Plan:
    """All frames where they are few; otherwise a stretch of each of evenly spread episodes, `frames` in total."""
    lengths = recording.lengths
    total = int(lengths.sum())
    if not recording.cameras or frames < 1:
        return Plan({}, total)
    if total <= frames:
        return Plan({number: slice(0, int(n)) for number, n in enumerate(lengths)}, total)
    stretch = max(3 * round(FROZEN_SECONDS * recording.fps) + 1, 32)
    count = min(len(lengths), max(1, frames // stretch))
    chosen = np.unique(np.linspace(0, len(lengths) - 1, count).round().astype(int))
    windows = {}
    for number in chosen.tolist():
        room = max(0, int(lengths[number]) - stretch)
        start = int(np.random.default_rng([seed, number]).integers(room + 1))
        windows[number] = slice(start, min(int(lengths[number]), start + stretch))
    return Plan(windows, total)


@dataclass
class _Watch:
    """One stretch of frames of one camera, seen one at a time."""

    most: int  # steps of one picture that are too many
    states: np.ndarray  # float32 (N, S) / span
    changes: list[float] = field(default_factory=list)  # mean change of every step, grey levels
    marks: list[np.ndarray] = field(default_factory=list)  # uint8 (GRID, GRID, 3) of some frames
    is_blank: bool = True
    frozen: tuple[int, int] | None = None  # first and last frame of a stretch that stands still
    _last: np.ndarray | None = None
    _start: np.ndarray | None = None
    _begin: int = 0
    _frame: int = 0

    def see(self, image: np.ndarray) -> None:
        step = max(1, max(image.shape[:2]) // 64)
        frame = image[::step, ::step].astype(np.int16)
        self.is_blank &= bool((np.ptp(frame.reshape(-1, 3), axis=0) <= ONE_COLOUR).all())
        if self._frame % max(1, self.most) == 0:
            rows, columns = (np.linspace(0, side - 1, GRID).astype(int) for side in frame.shape[:2])
            self.marks.append(frame[np.ix_(rows, columns)])
        if self._last is None or self._start is None:
            self._start = frame
        else:
            change = np.abs(frame - self._last)
            self.changes.append(float(change.mean()))
            if change.max() > SAME_PICTURE:
                self._stop()
                self._begin, self._start = self._frame, frame
        self._last, self._frame = frame, self._frame + 1

    def _stop(self) -> None:
        """The same picture was seen from `_begin` to the last frame: is that too long?"""
        last = self._frame - 1
        if self.frozen or last - self._begin <= self.most or self._last is None or self._start is None:
            return
        moved = np.ptp(self.states[self._begin : last + 1], axis=0)
        drift = np.abs(self._last - self._start).max()  # slow motion is motion
        if drift <= SAME_PICTURE and moved.size and moved.max() > MOVED:
            self.frozen = (self._begin, last)

    def finish(self) -> None:
        self._stop()


@dataclass
class Seen:
    """What was seen of one camera."""

    watches: dict[int, _Watch] = field(default_factory=dict)

    def repeated(self) -> tuple[float, int]:
        """(share of pictures that repeat the one before while the robot moves, number of such steps)."""
        changes, moves = [], []
        for watch in self.watches.values():
            steps = np.abs(np.diff(watch.states, axis=0)).max(axis=1, initial=0.0)[: len(watch.changes)]
            changes.append(np.array(watch.changes)[: len(steps)])
            moves.append(steps)
        change, move = (np.concatenate(parts) if parts else np.zeros(0) for parts in (changes, moves))
        if not move.any():
            return 0.0, 0
        moving = move > 0.2 * np.median(move[move > 0])
        usual = np.quantile(change[moving], 0.75)
        if usual < 0.3:  # hardly anything changes in the whole camera: nothing can be told
            return 0.0, int(moving.sum())
        return float((change[moving] < REPEATED * usual).mean()), int(moving.sum())


def watch_cameras(
    recording: Recording, made: Plan, states: Mapping[int, np.ndarray], span: np.ndarray, names: Sequence[str]
) -> tuple[dict[str, Seen], list[Finding]]:
    """Decode what is planned. Episodes that cannot be decoded are noted in the recording's damage.

    `states`: of the planned rows; `span` (S,): range of the proprioception in the dataset; `names` of the episodes.
    """
    span = np.where(span > 0, span, np.inf)
    most = max(1, round(FROZEN_SECONDS * recording.fps))
    seen: dict[str, Seen] = {}
    findings: list[Finding] = []
    for key, feature in recording.cameras.items():
        spans = tables._spans(recording.root, recording.info, key, recording.rows, recording.first, recording.damage)
        is_video = feature["dtype"] == "video"
        if is_video:
            wrong = _headers(recording, key, spans, names)
            findings += wrong
            if any(finding.name == "video-fps" for finding in wrong):
                continue  # frames are found by time
        size, camera = cache._size(feature), Seen()
        seen[layout.camera_name(key)] = camera
        for number, window in made.windows.items():
            if number not in states:
                continue
            watch = _Watch(most, states[number] / span)
            try:
                for image in _frames(recording, key, spans[number], window, is_video=is_video):
                    if image.shape[:2] != size:
                        what = f"frames are {image.shape}, but {layout.INFO} says {(*size, 3)}"
                        raise DataError(f"{spans[number].path}: {what}")
                    watch.see(image)
            except DataError as error:
                recording.damage.found(number, str(error))
                continue
            watch.finish()
            camera.watches[number] = watch
    return seen, findings


def _frames(recording: Recording, key: str, span: Span, window: slice, *, is_video: bool) -> Iterator[np.ndarray]:
    """uint8 (H, W, 3) of the rows `window` of one episode. DataError when one is missing."""
    start, count = span.first + window.start, window.stop - window.start
    frames = read_frames(span.path, start, recording.fps) if is_video else _stored(span.path, key, start, count)
    for number in range(count):
        image = next(frames, None)
        if image is None:
            raise DataError(
                f"{span.path}: camera {key!r}: there are only {start + number} frames, "
                f"but {span.first + window.stop} are needed; copy the dataset again"
            )
        yield image


def _stored(path: Path, key: str, start: int, count: int) -> Iterator[np.ndarray]:
    """Pictures kept in the data file, from row `start` on; only their groups of rows are read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            ends = np.cumsum(sizes)
            groups = [g for g in range(len(sizes)) if ends[g] > start and ends[g] - sizes[g] < start + count]
            row = int(ends[groups[0]] - sizes[groups[0]]) if groups else 0
            for batch in file.iter_batches(batch_size=64, row_groups=groups, columns=[key], use_threads=False):
                for cell in batch.column(0).to_pylist():
                    if start <= row < start + count:
                        with Image.open(io.BytesIO(cell["bytes"])) as image:
                            yield np.asarray(image.convert("RGB"))
                    row += 1
    except (UnidentifiedImageError, TypeError) as error:
        what = f"{path}: image {row} of {key!r} cannot be decoded ({type(error).__name__})"
        raise DataError(f"{what}; copy the dataset again") from None
    except (pa.ArrowException, KeyError, OSError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: not readable as parquet ({said}); copy the dataset again") from None


# --- headers ------------------------------------------------------------------------------------------------


def _headers(recording: Recording, key: str, spans: list[Span], names: Sequence[str]) -> list[Finding]:
    """Rate, size and number of frames as every video file states them; nothing is decoded."""
    camera, fps = layout.camera_name(key), recording.fps
    size = cache._size(recording.cameras[key])
    findings: list[Finding] = []
    needed: dict[Path, int] = {}
    for span in spans:
        needed[span.path] = max(needed.get(span.path, 0), span.first + span.length)
    for path, frames in needed.items():
        header = _header(path)
        if header is None:
            why = "the video cannot be opened" if path.exists() else "the video is missing"
            for number in (number for number, span in enumerate(spans) if span.path == path):
                recording.damage.found(number, f"{path}: {why}; copy the dataset again")
            continue
        where = path.relative_to(recording.root).as_posix()
        if abs(header["fps"] - fps) > 0.01 * fps:
            what = f"camera {camera!r} was filmed at {header['fps']:.4g} fps, the dataset says {fps:g}"
            advice = "frames and actions drift apart; film it again at the right rate, or correct `fps`"
            findings += found("video-fps", "error", where, what, advice, video_fps=header["fps"], dataset_fps=fps)
        if (header["height"], header["width"]) != size:
            what = f"camera {camera!r} is {header['height']}x{header['width']}, {layout.INFO} says {size[0]}x{size[1]}"
            findings += found("frame-size", "error", where, what, "correct the shape in meta/info.json")
        if header["frames"] and header["frames"] < frames:
            what = f"camera {camera!r} has {header['frames']} frames, {frames} are needed"
            advice = "the recording was cut off; leave out the last episodes or copy the file again"
            missing = [
                names[n] for n, s in enumerate(spans) if s.path == path and s.first + s.length > header["frames"]
            ]
            evidence = {"frames": header["frames"], "needed": frames, "short_episodes": missing[:50]}
            findings += found("short-video", "error", where, what, advice, **evidence)
        elif header["frames"] > frames:
            what = f"camera {camera!r} has {header['frames'] - frames} frames that belong to no episode"
            evidence = {"frames": header["frames"], "needed": frames}
            findings += found("long-video", "warning", where, what, "check that nothing has shifted", **evidence)
    return findings + list(_stretches(recording, key, names))


def _header(path: Path) -> dict[str, Any] | None:
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            rate = stream.average_rate
            facts = {"frames": stream.frames, "height": stream.height, "width": stream.width}
    except (av.error.FFmpegError, OSError, IndexError):
        return None
    return facts | {"fps": float(rate)} if rate else None


def _stretches(recording: Recording, key: str, names: Sequence[str]) -> Iterator[Finding]:
    """Do the times at which an episode begins and ends in its video span as many frames as it has?"""
    begin, end = f"videos/{key}/from_timestamp", f"videos/{key}/to_timestamp"
    wrong = []
    for number, row in enumerate(recording.rows):
        if row.get(begin) is None or row.get(end) is None or number in recording.damage.why:
            continue
        frames = (row[end] - row[begin]) * recording.fps
        if abs(frames - row["length"]) > 0.5:
            wrong.append(number)
    what = f"camera {layout.camera_name(key)!r}: the stretch of video is not as long as the episode"
    advice = "correct from_timestamp and to_timestamp in meta/episodes, or record again"
    yield from found("video-span", "error", [names[number] for number in wrong], what, advice)


# --- what was seen --------------------------------------------------------------------------------------------


def examine_pictures(seen: Mapping[str, Seen], names: Sequence[str], recording: Recording) -> Iterator[Finding]:
    """Cameras that show nothing, stand still, repeat their pictures, or show what another one shows."""
    most = max(1, round(FROZEN_SECONDS * recording.fps))
    for camera, one in seen.items():
        blank = [names[number] for number, watch in one.watches.items() if watch.is_blank]
        frozen = [n for n, watch in one.watches.items() if watch.frozen and not watch.is_blank]
        advice = "check the cable and the recorder"
        yield from found("blank-camera", "error", blank, f"camera {camera!r} shows one colour only", advice)
        advice += ", or whether the robot had left the picture"
        what = f"camera {camera!r} shows the same picture for over {most} steps while the robot moves"
        stills = {names[number]: one.watches[number].frozen for number in frozen[:50]}
        yield from found("frozen-camera", "error", [names[n] for n in frozen], what, advice, stills=stills)
        share, steps = one.repeated()
        if share >= REPEATS and steps >= 20 and not frozen:
            what = f"camera {camera!r}: {share:.0%} of the pictures repeat the one before while the robot moves"
            advice = "the camera is slower than the dataset's fps; record at the camera's rate"
            evidence = {"share": share, "steps": steps, "camera_fps": recording.fps * (1 - share)}
            yield from found("repeated-frames", "warning", "dataset", what, advice, **evidence)
    yield from _same_cameras(seen)


def _same_cameras(seen: Mapping[str, Seen]) -> Iterator[Finding]:
    cameras = list(seen.items())
    for place, (camera, one) in enumerate(cameras):
        for other_camera, other in cameras[place + 1 :]:
            differ = []
            for number in one.watches.keys() & other.watches.keys():
                pairs = zip(one.watches[number].marks, other.watches[number].marks, strict=False)
                differ += [float(np.abs(a - b).mean()) for a, b in pairs]
            if differ and max(differ) < ALIKE:
                what = f"cameras {camera!r} and {other_camera!r} show the same pictures"
                advice = "one of them was recorded twice; check the camera indices"
                evidence = {"pictures": len(differ), "grey_levels": float(np.mean(differ))}
                yield from found("same-camera", "error", "dataset", what, advice, **evidence)
