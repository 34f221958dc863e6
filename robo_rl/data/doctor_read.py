"""A dataset read episode by episode, with the numbers of one group of rows in memory and no picture at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data import layout, tables
from robo_rl.data.damage import Damage
from robo_rl.data.dataset import _info
from robo_rl.errors import DataError

BATCH_ROWS = 4096
NEEDED = ("action", "episode_index", "index")
WANTED = (
    *NEEDED,
    "observation.state",
    "timestamp",
    "frame_index",
    "task_index",
    "next.reward",
    "next.success",
    "next.done",
    "intervention",
    layout.CONTROLLER,
    layout.FINAL,
)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What meta/ says."""

    root: Path
    info: dict[str, Any]
    fps: float
    rows: list[dict[str, Any]]  # one an episode
    first: np.ndarray  # int64 (E,), first row of every episode
    lengths: np.ndarray  # int64 (E,), rows
    tasks: dict[int, str]  # meta/tasks.parquet; empty when there is none
    damage: Damage  # episodes that cannot be used, found so far

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def cameras(self) -> dict[str, dict[str, Any]]:
        """Feature key -> feature of every colour camera."""
        return tables.cameras(self.info)

    def width(self, key: str) -> int:
        """Numbers of a feature as info.json declares it; 0 when it declares none."""
        feature = self.info["features"].get(key)
        return int(np.prod(feature["shape"])) if feature else 0

    def names(self, key: str) -> list[str]:
        """The declared names of a feature's numbers, lower case; empty when there are none or too few."""
        declared = (self.info["features"].get(key) or {}).get("names")
        if isinstance(declared, dict):
            parts = list(declared.values())
            declared = [name for part in parts for name in part] if all(isinstance(p, list) for p in parts) else None
        names = [str(name).lower() for name in declared or []]
        return names if len(names) == self.width(key) else []


def open_recording(root: Path) -> Recording:
    """Read meta/. Raises DataError for what concerns the whole dataset."""
    info, damage = _info(root), Damage(tolerate=True)
    rows = _rows(root)
    first = np.array([row["dataset_from_index"] for row in rows], dtype=np.int64)
    lengths = np.array([row["length"] for row in rows], dtype=np.int64)
    if len(rows) != info["total_episodes"]:
        raise DataError(
            f"{root}: {len(rows)} episodes in meta/episodes, but {layout.INFO} says {info['total_episodes']}"
        )
    if not np.array_equal(first, np.cumsum(lengths) - lengths):
        raise DataError(f"{root}: meta/episodes and data/ disagree about where episodes begin; copy the dataset again")
    for number in np.flatnonzero(lengths < 2):
        frames = "1 frame" if lengths[number] == 1 else f"{lengths[number]} frames"
        damage.found(int(number), f"it has {frames}; an episode needs at least two")
    return Recording(
        root=root,
        info=info,
        fps=float(info["fps"]),
        rows=rows,
        first=first,
        lengths=lengths,
        tasks=_tasks(root),
        damage=damage,
    )


def _rows(root: Path) -> list[dict[str, Any]]:
    """meta/episodes in order, without its statistics, which are most of it."""
    paths = sorted(root.glob("meta/episodes/*/*.parquet"))
    if not paths:
        raise DataError(f"{root}: meta/episodes is missing; the recording was not finalised")
    rows: list[dict[str, Any]] = []
    for path in paths:
        try:
            present = pq.read_schema(path).names
        except (pa.ArrowException, OSError):
            present = []  # `read_table` says what is wrong with the file
        rows += tables.read_table(path, [name for name in present if not name.startswith("stats/")]).to_pylist()
    rows.sort(key=lambda row: row["episode_index"])
    return rows


def _tasks(root: Path) -> dict[int, str]:
    path = root / layout.TASKS
    if not path.exists():
        return {}
    table = tables.read_table(path)
    texts = next((key for key in ("task", "__index_level_0__") if key in table.column_names), None)
    if texts is None or "task_index" not in table.column_names:
        return {}
    return {
        int(number): str(text)
        for number, text in zip(*(table[k].to_pylist() for k in ("task_index", texts)), strict=True)
    }


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The numbers of one episode, N rows."""

    number: int
    state: np.ndarray  # float32 (N, S)
    action: np.ndarray  # float32 (N, A)
    columns: dict[str, np.ndarray]  # the others, (N,)

    def __len__(self) -> int:
        return len(self.action)


@dataclass
class Reader:
    """Iterates over the episodes whose numbers can be read; the others are noted in the recording's damage.

    Raises DataError where data/ and meta/ do not belong together.
    """

    recording: Recording
    row: int = 0  # rows of data/ behind us
    number: int = 0  # episode whose rows are awaited
    pending: list[dict[str, np.ndarray]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Rows]:
        root, total = self.recording.root, self.recording.info["total_frames"]
        paths = sorted(root.glob("data/*/*.parquet"))
        if not paths:
            raise DataError(f"{root}: there is no data/*/*.parquet; copy the dataset again")
        lost, present = None, 0
        for path in paths:
            try:
                for batch in _batches(path):
                    yield from self._take(batch)
                present += 1
            except (pa.ArrowException, OSError) as error:
                said = str(error).splitlines()[0] if str(error) else type(error).__name__
                what = f"{path}: not readable as parquet ({said}); the recording was cut off or the copy is damaged"
                lost = lost or what
                self._lose(path, what)
        if lost and not present:
            raise DataError(lost)
        if self.row != total:
            raise DataError(f"{root}: {self.row} frames in data/, but {layout.INFO} says {total}")

    def _take(self, batch: dict[str, np.ndarray]) -> Iterator[Rows]:
        recording, count = self.recording, len(batch["index"])
        rows = np.arange(self.row, self.row + count)
        wrong = np.flatnonzero(batch["index"] != rows)
        if len(wrong):
            raise DataError(
                f"{recording.root}: row {rows[wrong[0]]} of data/ has index {batch['index'][wrong[0]]}; "
                "rows are numbered 0, 1, 2, ... in file order"
            )
        owner = np.searchsorted(recording.first, rows, side="right") - 1
        if not np.array_equal(batch["episode_index"], owner) or (count and rows[-1] >= recording.lengths.sum()):
            raise DataError(
                f"{recording.root}: meta/episodes and data/ disagree about where episodes begin; copy the dataset again"
            )
        self.row += count
        for number in np.unique(owner):
            chosen = owner == number
            self.pending.append({key: values[chosen] for key, values in batch.items()})
            if self.row >= recording.first[number] + recording.lengths[number]:
                self.number = int(number) + 1
                yield _joined(int(number), self.pending)
                self.pending = []

    def _lose(self, path: Path, why: str) -> None:
        """The rest of this file is lost, from the episode on that was being read."""
        recording = self.recording
        template = recording.info.get("data_path", layout.DATA)
        held = [
            number
            for number, row in enumerate(recording.rows)
            if path == recording.root / template.format(**tables._place(row, "data"))
        ]
        if not held:
            raise DataError(why)
        for number in held:
            if number >= self.number:
                recording.damage.found(number, why)
        self.pending, self.number = [], held[-1] + 1
        self.row = int(recording.first[held[-1]] + recording.lengths[held[-1]])


def _batches(path: Path) -> Iterator[dict[str, np.ndarray]]:
    # with `pre_buffer` all that was read stays in memory until the file is closed
    with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        present = file.schema_arrow.names
        for key in NEEDED:
            if key not in present:
                raise DataError(f"{path}: column {key!r} is missing; it has {', '.join(present)}")
        keys = [key for key in WANTED if key in present]
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=keys, use_threads=False):
            yield {key: _dense(batch.column(key), path, key) for key in keys}


def _dense(column: pa.Array, path: Path, key: str) -> np.ndarray:
    """(N,) or, for the action and the state, float32 (N, D)."""
    count = len(column)
    while pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type):
        column = column.flatten()
    if len(column) % max(count, 1):
        raise DataError(f"{path}: column {key!r} has rows of different lengths; copy the dataset again")
    values = column.to_numpy(zero_copy_only=False).reshape(count, -1)
    if key in ("action", "observation.state"):
        return values.astype(np.float32)
    return values[:, 0]


def _joined(number: int, parts: list[dict[str, np.ndarray]]) -> Rows:
    keys = set.intersection(*(set(part) for part in parts))
    columns = {key: np.concatenate([part[key] for part in parts]) for key in WANTED if key in keys}
    action = columns.pop("action")
    state = columns.pop("observation.state", np.zeros((len(action), 0), np.float32))
    return Rows(number=number, state=state, action=action, columns=columns)
