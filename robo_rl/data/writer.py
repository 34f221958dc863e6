"""Trajectories -> LeRobotDataset v3, written at once or not at all.

lerobot's own writer encodes every frame twice and loses all episodes when it is killed before `finalize`
(see benchmarks/bench_dataset.py), so the v3 layout is written here, straight from arrays. Plain
`LeRobotDataset(...)` opens the result.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data import layout, records, statistics
from robo_rl.data.video import VideoWriter
from robo_rl.errors import DataError
from robo_rl.types import Trajectory

FILE_BYTES = 200 << 20  # a new file begins at the next episode after so many bytes of one camera
FILE_FRAMES = 200_000  # or so many frames
ROWS_AT_ONCE = 10_000  # rows are written in groups: one group an episode makes files slow to read
EPISODES_AT_ONCE = 200


def write_episodes(
    root: Path | str, trajectories: Iterable[Trajectory], *, robot_type: str = "", overwrite: bool = False
) -> None:
    """Write episodes as they come, with bounded memory; `root` appears complete or not at all.

    An episode of T actions takes T + 1 rows: the last one holds the final observation, with the last action
    repeated and `robo.final` true. With `overwrite` the old folder stays until the new one is complete.
    Raises DataError when `root` exists, when there is no episode, when two have the same id, or when one does
    not have the cameras, frame sizes, widths and rate of the first, or has a reward that is not finite.
    """
    root = Path(root)
    if root.exists() and not overwrite:
        raise DataError(f"{root}: already exists; choose another folder or overwrite it")
    partial, old = (root.with_name(f"{root.name}.{word}-{os.getpid()}") for word in ("partial", "old"))
    shutil.rmtree(partial, ignore_errors=True)
    writer = _Writer(partial, root, robot_type)
    try:
        for trajectory in trajectories:
            writer.add(trajectory)
        writer.finish()
        if root.exists():
            root.rename(old)
        partial.rename(root)
    except BaseException:
        writer.abandon()
        shutil.rmtree(partial, ignore_errors=True)
        if old.exists() and not root.exists():
            old.rename(root)
        raise
    shutil.rmtree(old, ignore_errors=True)


class _Rows:
    """A parquet file that grows by groups of rows."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._pending, self._count = path, [], 0  # type: ignore[var-annotated]
        self._writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table, *, at_once: int) -> None:
        self._pending.append(table)
        self._count += table.num_rows
        if self._count >= at_once:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, self._pending[0].schema)
        self._writer.write_table(pa.concat_tables(self._pending).combine_chunks())
        self._pending, self._count = [], 0

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()


class _Writer:
    def __init__(self, partial: Path, root: Path, robot_type: str) -> None:
        self.partial, self.root, self.robot_type = partial, root, robot_type
        self.shape: dict[str, Any] = {}  # of the first episode; all others must have it
        self.tasks: dict[str, int] = {}
        self.facts: list[dict[str, Any]] = []
        self.ids: set[str] = set()
        self.first: dict[str, np.ndarray] = {}  # columns of the first episode, for their types
        self.histograms: dict[str, np.ndarray] = {}
        self.frames = self.file_number = 0
        self.frames_in_file = 0
        self.knows_progress = False
        self.videos: dict[str, VideoWriter] = {}
        self.rows: _Rows | None = None
        self.episodes = _Rows(partial / layout.EPISODES)

    def add(self, trajectory: Trajectory) -> None:
        self._check(trajectory)
        largest = max((video.size for video in self.videos.values()), default=0)
        if self.frames_in_file >= FILE_FRAMES or largest >= FILE_BYTES:
            self._close_files()
            self.file_number += 1
        number, length = len(self.facts), len(trajectory) + 1
        columns = records.frame_columns(
            trajectory,
            episode=number,
            first_index=self.frames,
            task=self.tasks.setdefault(trajectory.instruction, len(self.tasks)),
        )
        self.first = self.first or columns
        self.knows_progress |= trajectory.true_progress is not None
        # ground truth teaches nobody, and may be unknown in some episodes: no statistics of it
        stats = statistics.of_columns({key: rows for key, rows in columns.items() if key != layout.PROGRESS})
        row = self._row(trajectory, number, length)
        for camera, frames in trajectory.images.items():
            row |= self._film(layout.IMAGES + camera, frames, trajectory.fps, stats)
        row |= {f"stats/{key}/{name}": value.tolist() for key, kept in stats.items() for name, value in kept.items()}
        self.episodes.add(pa.Table.from_pylist([row]), at_once=EPISODES_AT_ONCE)
        if self.rows is None:
            self.rows = _Rows(self.partial / layout.DATA.format(**self._place()))
        self.rows.add(records.arrow_table(columns), at_once=ROWS_AT_ONCE)
        self.facts.append(records.episode_facts(trajectory, number))
        self.frames += length
        self.frames_in_file += length

    def _check(self, trajectory: Trajectory) -> None:
        where = f"{self.root}: episode {trajectory.episode_id!r}"
        if trajectory.episode_id in self.ids:
            raise DataError(f"{where}: two episodes have this id; ids are unique in a dataset")
        self.ids.add(trajectory.episode_id)
        if trajectory.reward is not None and not np.isfinite(trajectory.reward).all():
            raise DataError(
                f"{where}: reward is not finite at step {np.flatnonzero(~np.isfinite(trajectory.reward))[0]}"
            )
        shape = {
            "fps": trajectory.fps,
            "cameras": {camera: frames.shape[1:] for camera, frames in trajectory.images.items()},
            "state width": trajectory.state.shape[1],
            "action width": trajectory.actions.shape[1],
        }
        self.shape = self.shape or shape
        for key, value in shape.items():
            if value != self.shape[key]:
                raise DataError(f"{where}: {key} is {value}, but the dataset began with {self.shape[key]}")

    def _place(self) -> dict[str, int]:
        chunk, number = divmod(self.file_number, layout.FILES_PER_CHUNK)
        return {"chunk_index": chunk, "file_index": number}

    def _row(self, trajectory: Trajectory, number: int, length: int) -> dict[str, Any]:
        """One row of meta/episodes, but for its cameras and statistics."""
        return {
            "episode_index": number,
            "tasks": [trajectory.instruction],
            "length": length,
            **{f"data/{key}": value for key, value in self._place().items()},
            "dataset_from_index": self.frames,
            "dataset_to_index": self.frames + length,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }

    def _film(self, key: str, frames: np.ndarray, fps: float, stats: dict[str, statistics.Stats]) -> dict[str, Any]:
        """Encode an episode's frames of one camera; where they are."""
        if key not in self.videos:
            path = self.partial / layout.VIDEO.format(video_key=key, **self._place())
            height, width = frames.shape[1:3]
            self.videos[key] = VideoWriter(path, fps=fps, height=height, width=width)
        video = self.videos[key]
        start = video.count
        video.add(frames)
        counts = statistics.histogram(frames)
        self.histograms[key] = self.histograms.get(key, 0) + counts
        stats[key] = statistics.of_histogram(counts, len(frames))
        return {
            **{f"videos/{key}/{name}": value for name, value in self._place().items()},
            f"videos/{key}/from_timestamp": start / fps,
            f"videos/{key}/to_timestamp": video.count / fps,
        }

    def _close_files(self) -> None:
        for video in self.videos.values():
            video.close()
        if self.rows is not None:
            self.rows.close()
        self.videos, self.rows, self.frames_in_file = {}, None, 0

    def abandon(self) -> None:
        for video in self.videos.values():
            video.abandon()

    def finish(self) -> None:
        """Everything under meta/, last of all info.json, without which nobody takes the folder for a dataset."""
        if not self.facts:
            raise DataError(f"{self.root}: there is no episode to write")
        self._close_files()
        self.episodes.close()
        paths = sorted((self.partial / "data").glob("*/*.parquet"))
        if not self.knows_progress:
            del self.first[layout.PROGRESS]
            for path in paths:
                pq.write_table(pq.read_table(path).drop_columns([layout.PROGRESS]), path)
        pq.write_table(pa.Table.from_pylist(self.facts), self.partial / layout.FACTS)
        pq.write_table(records.task_table(self.tasks), self.partial / layout.TASKS)
        stats = {key: _whole_column(paths, key) for key in self.first if key != layout.PROGRESS}
        stats |= {key: statistics.of_histogram(counts, self.frames) for key, counts in self.histograms.items()}
        plain = {key: {name: value.tolist() for name, value in kept.items()} for key, kept in stats.items()}
        (self.partial / layout.STATS).write_text(json.dumps(plain, indent=1))
        (self.partial / layout.INFO).write_text(json.dumps(self._info(), indent=1))

    def _info(self) -> dict[str, Any]:
        fps, cameras = self.shape["fps"], self.shape["cameras"]
        return {
            "codebase_version": layout.VERSION,
            "fps": int(fps) if float(fps).is_integer() else fps,
            "features": records.features(self.first, cameras, fps),
            "total_episodes": len(self.facts),
            "total_frames": self.frames,
            "total_tasks": len(self.tasks),
            "chunks_size": layout.FILES_PER_CHUNK,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": FILE_BYTES >> 20,
            "data_path": layout.DATA,
            "video_path": layout.VIDEO if cameras else None,
            "robot_type": self.robot_type or None,
            "splits": {"train": f"0:{len(self.facts)}"},
        }


def _whole_column(paths: list[Path], key: str) -> statistics.Stats:
    """Statistics of one column of all data files; one column at a time bounds the memory."""
    parts = [pq.read_table(path, columns=[key])[key].combine_chunks() for path in paths]
    rows = [(part.flatten() if pa.types.is_fixed_size_list(part.type) else part) for part in parts]
    values = np.concatenate([part.to_numpy(zero_copy_only=False) for part in rows])
    return statistics.of_rows(values.reshape(sum(len(part) for part in parts), -1))
