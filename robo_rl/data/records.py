"""A trajectory as rows: the columns of its frames, the facts of its episode, and what info.json says of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from robo_rl.data import layout
from robo_rl.data.video import CODEC, KEYFRAME_EVERY, pixel_format
from robo_rl.types import Trajectory


def frame_columns(trajectory: Trajectory, *, episode: int, first_index: int, task: int) -> dict[str, np.ndarray]:
    """T + 1 rows: key -> (T+1,) or (T+1, D). The last row repeats the last action and is marked `robo.final`."""
    steps = len(trajectory)
    frame = np.arange(steps + 1)

    def extended(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, values[-1:]])

    reward = np.zeros(steps, np.float32) if trajectory.reward is None else trajectory.reward
    progress = trajectory.true_progress
    last = frame == steps - 1
    columns = {
        "observation.state": trajectory.state,
        "action": extended(trajectory.actions),
        "next.reward": np.append(reward, 0.0).astype(np.float32),
        "next.done": last & trajectory.terminated,
        "next.success": last & trajectory.success,
        layout.CONTROLLER: extended(trajectory.controller).astype(np.int64),
        layout.FINAL: frame == steps,
        layout.PROGRESS: (np.full(steps + 1, np.nan) if progress is None else progress).astype(np.float32),
        "timestamp": (frame / trajectory.fps).astype(np.float32),
        "frame_index": frame.astype(np.int64),
        "episode_index": np.full(steps + 1, episode, np.int64),
        "index": (first_index + frame).astype(np.int64),
        "task_index": np.full(steps + 1, task, np.int64),
    }
    if trajectory.state.shape[1] == 0:
        del columns["observation.state"]
    return columns


def episode_facts(trajectory: Trajectory, number: int) -> dict[str, Any]:
    """One row of meta/robo_episodes.parquet: what lerobot has no place for."""
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


def arrow_table(columns: dict[str, np.ndarray]) -> pa.Table:
    """Columns as lerobot stores them: one number a row is plain, several are a list of fixed length."""
    return pa.table({key: _arrow(rows) for key, rows in columns.items()})


def _arrow(rows: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return flat if rows.size == len(rows) else pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def task_table(tasks: dict[str, int]) -> pa.Table:
    """meta/tasks.parquet. lerobot reads it with pandas and needs `task` to be the index, which is this metadata."""

    def described(name: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
        return {
            "name": name,
            "field_name": name,
            "pandas_type": pandas_type,
            "numpy_type": numpy_type,
            "metadata": None,
        }

    columns = [described("task_index", "int64", "int64"), described("task", "unicode", "object")]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns, "pandas_version": "2.2.0"}
    table = pa.table({"task_index": pa.array(list(tasks.values()), pa.int64()), "task": list(tasks)})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def features(columns: dict[str, np.ndarray], cameras: dict[str, tuple[int, ...]], fps: float) -> dict[str, Any]:
    """The `features` of info.json: cameras first, as lerobot writes them."""
    described: dict[str, Any] = {layout.IMAGES + name: _camera(size, fps) for name, size in cameras.items()}
    for key, rows in columns.items():
        described[key] = {"dtype": str(rows.dtype), "shape": [int(np.prod(rows.shape[1:]))], "names": None}
    return described


def _camera(size: tuple[int, ...], fps: float) -> dict[str, Any]:
    height, width, channels = size
    return {
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
