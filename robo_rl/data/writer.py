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
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data import layout, statistics
from robo_rl.data.video import CODEC, KEYFRAME_EVERY, VideoWriter, pixel_format
from robo_rl.errors import DataError
from robo_rl.types import Trajectory

FRAMES_PER_FILE = 200_000  # a new file begins at the next episode after so many frames


def write_episodes(
    root: Path | str, trajectories: Iterable[Trajectory], *, robot_type: str = "", overwrite: bool = False
) -> None:
    """Write episodes as they come, with bounded memory; `root` appears complete or not at all.

    An episode of T actions takes T + 1 rows: the last one holds the final observation, with the last action
    repeated and `robo.final` true. Raises DataError when `root` exists, when there is no episode, or
    when an episode does not have the cameras, frame sizes, widths and rate of the first.
    """
    root = Path(root)
    if root.exists() and not overwrite:
        raise DataError(f"{root}: already exists; choose another folder or overwrite it")
    partial = root.with_name(f"{root.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        writer = _Writer(partial, robot_type)
        for trajectory in trajectories:
            writer.add(trajectory)
        writer.finish()
        if root.exists():
            shutil.rmtree(root)
        partial.rename(root)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


class _Writer:
    def __init__(self, root: Path, robot_type: str) -> None:
        self.root, self.robot_type = root, robot_type
        self.shape: dict[str, Any] = {}
        self.tasks: dict[str, int] = {}
        self.episodes: list[dict[str, Any]] = []
        self.facts: list[dict[str, Any]] = []
        self.columns: list[dict[str, np.ndarray]] = []
        self.histograms: dict[str, np.ndarray] = {}
        self.frames = self.file_index = self.frames_in_file = 0
        self.videos: dict[str, VideoWriter] = {}
        self.table: pq.ParquetWriter | None = None

    def add(self, trajectory: Trajectory) -> None:
        self._check(trajectory)
        if self.frames_in_file >= FRAMES_PER_FILE:
            self._next_file()
        number, length = len(self.episodes), len(trajectory) + 1
        columns = _columns(
            trajectory, number, self.frames, self.tasks.setdefault(trajectory.instruction, len(self.tasks))
        )
        stats = {key: statistics.of_rows(rows) for key, rows in columns.items() if rows.dtype != bool}
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": [trajectory.instruction],
            "length": length,
            "data/chunk_index": 0,
            "data/file_index": self.file_index,
            "dataset_from_index": self.frames,
            "dataset_to_index": self.frames + length,
        }
        for camera, frames in trajectory.images.items():
            key = layout.IMAGES + camera
            video = self._video(key, trajectory, frames)
            start = video.count
            video.add(frames)
            row |= {
                f"videos/{key}/chunk_index": 0,
                f"videos/{key}/file_index": self.file_index,
                f"videos/{key}/from_timestamp": start / trajectory.fps,
                f"videos/{key}/to_timestamp": video.count / trajectory.fps,
            }
            counts = statistics.histogram(frames)
            self.histograms[key] = self.histograms.get(key, 0) + counts
            stats[key] = statistics.of_histogram(counts)
        row |= {f"stats/{key}/{name}": value.tolist() for key, kept in stats.items() for name, value in kept.items()}
        self._append(columns)
        self.episodes.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        self.facts.append(_facts(trajectory, number))
        self.columns.append({key: rows for key, rows in columns.items() if rows.dtype != bool})
        self.frames += length
        self.frames_in_file += length

    def _check(self, trajectory: Trajectory) -> None:
        shape = {
            "fps": trajectory.fps,
            "cameras": {camera: frames.shape[1:] for camera, frames in trajectory.images.items()},
            "state": trajectory.state.shape[1],
            "action": trajectory.actions.shape[1],
            "progress": trajectory.true_progress is not None,
        }
        self.shape = self.shape or shape
        for key, value in shape.items():
            if value != self.shape[key]:
                raise DataError(
                    f"episode {trajectory.episode_id!r}: {key} is {value}, but the dataset began with {self.shape[key]}"
                )

    def _video(self, key: str, trajectory: Trajectory, frames: np.ndarray) -> VideoWriter:
        if key not in self.videos:
            path = self.root / layout.VIDEO.format(video_key=key, chunk_index=0, file_index=self.file_index)
            height, width = frames.shape[1:3]
            self.videos[key] = VideoWriter(path, fps=trajectory.fps, height=height, width=width)
        return self.videos[key]

    def _append(self, columns: dict[str, np.ndarray]) -> None:
        table = pa.table({key: _arrow(rows) for key, rows in columns.items()})
        if self.table is None:
            path = self.root / layout.DATA.format(chunk_index=0, file_index=self.file_index)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.table = pq.ParquetWriter(path, table.schema)
        self.table.write_table(table)

    def _next_file(self) -> None:
        for video in self.videos.values():
            video.close()
        self.videos.clear()
        if self.table is not None:
            self.table.close()
        self.table, self.frames_in_file = None, 0
        self.file_index += 1

    def finish(self) -> None:
        if not self.episodes:
            raise DataError(f"{self.root.name.split('.partial')[0]}: there is no episode to write")
        self._next_file()
        for name, rows in ((layout.EPISODES, self.episodes), (layout.FACTS, self.facts)):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows), path)
        tasks = pd.DataFrame({"task_index": list(self.tasks.values())}, index=pd.Index(list(self.tasks), name="task"))
        tasks.to_parquet(self.root / layout.TASKS)
        stacked = {key: np.concatenate([rows[key] for rows in self.columns]) for key in self.columns[0]}
        stats = {key: statistics.of_rows(rows) for key, rows in stacked.items()}
        stats |= {key: statistics.of_histogram(counts) for key, counts in self.histograms.items()}
        plain = {key: {name: value.tolist() for name, value in kept.items()} for key, kept in stats.items()}
        (self.root / layout.STATS).write_text(json.dumps(plain, indent=1))
        (self.root / layout.INFO).write_text(json.dumps(self._info(), indent=1))

    def _info(self) -> dict[str, Any]:
        fps = self.shape["fps"]
        features: dict[str, Any] = {}
        for camera, (height, width, channels) in self.shape["cameras"].items():
            features[layout.IMAGES + camera] = {
                "dtype": "video",
                "shape": [height, width, channels],
                "names": ["height", "width", "channels"],
                "info": {
                    "video.height": height,
                    "video.width": width,
                    "video.channels": channels,
                    "video.codec": "h264",
                    "video.encoder": CODEC,
                    "video.pix_fmt": pixel_format(height, width),
                    "video.fps": fps,
                    "video.g": KEYFRAME_EVERY,
                    "has_audio": False,
                    "is_depth_map": False,
                },
            }
        for key, rows in self.columns[0].items():
            features[key] = {"dtype": str(rows.dtype), "shape": [int(np.prod(rows.shape[1:]))], "names": None}
        for key in ("next.done", "next.success", layout.FINAL):
            features[key] = {"dtype": "bool", "shape": [1], "names": None}
        return {
            "codebase_version": layout.VERSION,
            "fps": int(fps) if float(fps).is_integer() else fps,
            "features": features,
            "total_episodes": len(self.episodes),
            "total_frames": self.frames,
            "total_tasks": len(self.tasks),
            "chunks_size": 1000,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "data_path": layout.DATA,
            "video_path": layout.VIDEO if self.shape["cameras"] else None,
            "robot_type": self.robot_type or None,
            "splits": {"train": f"0:{len(self.episodes)}"},
        }


def _columns(trajectory: Trajectory, number: int, start: int, task: int) -> dict[str, np.ndarray]:
    steps = len(trajectory)
    frame = np.arange(steps + 1)

    def extended(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, values[-1:]])

    reward = np.zeros(steps, np.float32) if trajectory.reward is None else trajectory.reward
    last = frame == steps - 1
    columns = {
        "observation.state": trajectory.state,
        "action": extended(trajectory.actions),
        "next.reward": np.append(reward, np.float32(0.0)).astype(np.float32),
        "next.done": last & trajectory.terminated,
        "next.success": last & trajectory.success,
        layout.CONTROLLER: extended(trajectory.controller).astype(np.int64),
        layout.FINAL: frame == steps,
        "timestamp": (frame / trajectory.fps).astype(np.float32),
        "frame_index": frame.astype(np.int64),
        "episode_index": np.full(steps + 1, number, np.int64),
        "index": (start + frame).astype(np.int64),
        "task_index": np.full(steps + 1, task, np.int64),
    }
    if trajectory.true_progress is not None:
        columns[layout.PROGRESS] = trajectory.true_progress.astype(np.float32)
    return columns


def _facts(trajectory: Trajectory, number: int) -> dict[str, Any]:
    return {
        "episode_index": number,
        "episode_id": trajectory.episode_id,
        "outcome": str(trajectory.outcome),
        "task": trajectory.task,
        "policy_id": trajectory.policy_id,
        "seed": trajectory.seed,
        "index": trajectory.index,
        "note": trajectory.note,
        "has_reward": trajectory.reward is not None,
    }


def _arrow(rows: np.ndarray) -> pa.Array:
    if rows.ndim == 1:
        return pa.array(rows)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])
