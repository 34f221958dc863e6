"""The parquet side of a dataset: numbers of every frame, facts of every episode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data import layout
from robo_rl.errors import DataError
from robo_rl.types import Controller, Outcome

Spans = dict[str, list[tuple[int, int, int]]]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """One row a frame, in the order of `index`."""

    state: np.ndarray  # float32 (N, S)
    action: np.ndarray  # float32 (N, A)
    controller: np.ndarray  # int8 (N,)
    reward: np.ndarray | None  # float32 (N,)
    progress: np.ndarray | None  # float32 (N,)
    success: np.ndarray | None  # bool (N,)
    done: np.ndarray | None  # bool (N,)
    episode: np.ndarray  # int64 (N,)
    ours: bool


@dataclass(frozen=True, kw_only=True)
class EpisodeFacts:
    """What is known of one episode besides its frames."""

    episode_id: str
    instruction: str
    outcome: Outcome
    task: str = ""
    policy_id: str = ""
    seed: int = 0
    index: int = 0
    note: str = ""


def read_table(path: Path) -> pa.Table:
    """A parquet file, or DataError naming it."""
    if not path.exists():
        raise DataError(f"{path}: the file is missing; copy the dataset again")
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path}: not readable as parquet ({first}); the recording was cut off or the copy is damaged"
        ) from None


def read_columns(root: Path, info: dict[str, Any]) -> Columns:
    """All data files, stacked."""
    paths = sorted(root.glob("data/*/*.parquet"))
    if not paths:
        raise DataError(f"{root}: there is no data/*/*.parquet; copy the dataset again")
    wanted = [key for key, f in info["features"].items() if f["dtype"] not in ("image", "video")]
    tables = [read_table(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        missing = [key for key in ("action", "episode_index", "index") if key not in table.column_names]
        if missing:
            raise DataError(f"{path}: column {missing[0]!r} is missing; it has {', '.join(table.column_names)}")
    table = pa.concat_tables([t.select([k for k in t.column_names if k in wanted]) for t in tables])
    table = table.sort_by("index")
    if table.num_rows != info["total_frames"]:
        raise DataError(f"{root}: {table.num_rows} frames in data/, but {layout.INFO} says {info['total_frames']}")

    def read(key: str) -> np.ndarray | None:
        return _dense(table[key]) if key in table.column_names else None

    episode = _needed(read("episode_index"))
    action = np.ascontiguousarray(_needed(read("action")).reshape(table.num_rows, -1), dtype=np.float32)
    state = read("observation.state")
    state = np.zeros((table.num_rows, 0), np.float32) if state is None else state.reshape(table.num_rows, -1)
    bad = np.flatnonzero(~np.isfinite(action).all(1))
    if len(bad):
        frame = int(bad[0] - np.flatnonzero(episode == episode[bad[0]])[0])
        raise DataError(f"{root}: action is not finite at episode {episode[bad[0]]}, frame {frame}")
    return Columns(
        state=np.ascontiguousarray(state, dtype=np.float32),
        action=action,
        controller=_controllers(read(layout.CONTROLLER), read("intervention"), len(action)),
        reward=_flat(read("next.reward")),
        progress=_flat(read(layout.PROGRESS)),
        success=_flat(read("next.success")),
        done=_flat(read("next.done")),
        episode=episode,
        ours=layout.FINAL in table.column_names,
    )


def _needed(values: np.ndarray | None) -> np.ndarray:
    if values is None:
        raise DataError("a column that was there is gone")
    return values


def _flat(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else values.reshape(len(values))


def _dense(column: pa.ChunkedArray) -> np.ndarray:
    array = column.combine_chunks()
    if pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type):
        return array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), -1)
    return array.to_numpy(zero_copy_only=False)


def _controllers(ours: np.ndarray | None, intervention: np.ndarray | None, count: int) -> np.ndarray:
    if ours is not None:
        return ours.reshape(count).astype(np.int8)
    if intervention is not None:
        return np.where(intervention.reshape(count), Controller.HUMAN, Controller.POLICY).astype(np.int8)
    return np.full(count, Controller.HUMAN, dtype=np.int8)


def read_facts(
    root: Path, info: dict[str, Any], columns: Columns
) -> tuple[list[EpisodeFacts], np.ndarray, np.ndarray, Spans]:
    """Facts, first row and number of rows of every episode, and where its frames are in the files."""
    paths = sorted(root.glob("meta/episodes/*/*.parquet"))
    if not paths:
        raise DataError(f"{root}: meta/episodes is missing; the recording was not finalised")
    keys = [key for key, f in info["features"].items() if f["dtype"] in ("image", "video")]
    rows: list[dict[str, Any]] = []
    for path in paths:
        table = read_table(path)
        table = table.select([name for name in table.column_names if not name.startswith("stats/")])
        rows += table.to_pylist()
    rows.sort(key=lambda row: row["episode_index"])
    first = np.array([row["dataset_from_index"] for row in rows], dtype=np.int64)
    lengths = np.array([row["length"] for row in rows], dtype=np.int64)
    short = np.flatnonzero(lengths < 2)
    if len(short):
        raise DataError(f"{root}: episode {short[0]} has {lengths[short[0]]} frames; an episode needs at least two")
    ours = _our_facts(root)
    facts = [
        _facts(root, row, ours.get(number), columns, int(first[number]), int(lengths[number]))
        for number, row in enumerate(rows)
    ]
    return facts, first, lengths, {key: _spans(key, info, rows, first, lengths) for key in keys}


def _our_facts(root: Path) -> dict[int, dict[str, Any]]:
    path = root / layout.FACTS
    return {row["episode_index"]: row for row in read_table(path).to_pylist()} if path.exists() else {}


def _facts(
    root: Path, row: dict[str, Any], ours: dict[str, Any] | None, columns: Columns, first: int, length: int
) -> EpisodeFacts:
    instruction = str(row["tasks"][0]) if row["tasks"] else ""
    if ours is None:
        return EpisodeFacts(
            episode_id=f"{root.name}-{row['episode_index']:06d}",
            instruction=instruction,
            outcome=_outcome(columns, slice(first, first + length)),
            task=instruction,
        )
    return EpisodeFacts(
        instruction=instruction,
        outcome=Outcome(ours["outcome"]),
        **{key: ours[key] for key in ("episode_id", "task", "policy_id", "seed", "index", "note")},
    )


def _outcome(columns: Columns, rows: slice) -> Outcome:
    """Success when a success flag or a positive reward at the end says so; else failure or unknown."""
    if columns.success is not None:
        if columns.success[rows].any():
            return Outcome.SUCCESS
        done = columns.done is not None and bool(columns.done[rows].any())
        return Outcome.FAILURE if done else Outcome.TIMEOUT
    return Outcome.UNKNOWN


def _spans(
    key: str, info: dict[str, Any], rows: list[dict[str, Any]], first: np.ndarray, lengths: np.ndarray
) -> list[tuple[int, int, int]]:
    spans = []
    for number, row in enumerate(rows):
        if info["features"][key]["dtype"] == "video":
            file_index = int(row[f"videos/{key}/file_index"])
            start = round(float(row[f"videos/{key}/from_timestamp"]) * info["fps"])
        else:
            file_index = int(row["data/file_index"])
            start = int(first[number]) - min(
                int(first[other]) for other, r in enumerate(rows) if r["data/file_index"] == file_index
            )
        spans.append((file_index, start, int(lengths[number])))
    return spans
