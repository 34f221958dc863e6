"""The parquet side of a dataset: numbers of every frame, facts of every episode."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data import layout
from robo_rl.data.damage import Damage
from robo_rl.errors import DataError
from robo_rl.types import Controller, Outcome


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
    is_ours: bool  # rows are marked as `write_episodes` does


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
    has_reward: bool = True


@dataclass(frozen=True, kw_only=True)
class Span:
    """Where an episode's frames of one camera are."""

    path: Path
    first: int  # number of its first frame within the file
    length: int


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """All episodes, in order."""

    facts: list[EpisodeFacts]
    first: np.ndarray  # int64 (E,), first row
    lengths: np.ndarray  # int64 (E,), rows
    spans: dict[str, list[Span]]  # feature key -> one span an episode


def read_table(path: Path, columns: list[str] | None = None) -> pa.Table:
    """A parquet file, or DataError naming it."""
    if not path.exists():
        raise DataError(f"{path}: the file is missing; copy the dataset again")
    try:
        return pq.read_table(path, columns=columns, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path}: not readable as parquet ({first}); the recording was cut off or the copy is damaged"
        ) from None


def cameras(info: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Features that are colour images, by key. Depth maps are not."""

    def is_depth(feature: dict[str, Any]) -> bool:
        facts = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}
        return bool(facts.get("is_depth_map") or facts.get("video.is_depth_map"))

    return {key: f for key, f in info["features"].items() if f["dtype"] in ("image", "video") and not is_depth(f)}


def read_columns(root: Path, info: dict[str, Any], rows: list[dict[str, Any]], damage: Damage) -> Columns:
    """All data files, stacked. `damage` takes note of episodes with numbers that are not finite, or in lost files."""
    paths = sorted(root.glob("data/*/*.parquet"))
    if not paths:
        raise DataError(f"{root}: there is no data/*/*.parquet; copy the dataset again")
    wanted = [key for key, f in info["features"].items() if f["dtype"] not in ("image", "video")]
    tables = _tables(root, info, paths, wanted, rows, damage)
    table = pa.concat_tables([table.select(tables[0].column_names) for table in tables])
    count = table.num_rows
    if count != info["total_frames"]:
        raise DataError(f"{root}: {count} frames in data/, but {layout.INFO} says {info['total_frames']}")

    def read(key: str) -> np.ndarray | None:
        return _dense(table[key]) if key in table.column_names else None

    index, episode = (_dense(table[key]).reshape(count) for key in ("index", "episode_index"))
    action, state = _matrix(_dense(table["action"])), read("observation.state")
    wrong = np.flatnonzero(index != np.arange(count))
    if len(wrong):
        raise DataError(
            f"{root}: row {wrong[0]} of data/ has index {index[wrong[0]]}; rows are numbered 0, 1, 2, ... in file order"
        )
    columns = Columns(
        state=np.zeros((count, 0), np.float32) if state is None else _matrix(state),
        action=action,
        controller=_controllers(read(layout.CONTROLLER), read("intervention"), count),
        reward=_flat(read("next.reward"), np.float32),
        progress=_flat(read(layout.PROGRESS), np.float32),
        success=_flat(read("next.success"), bool),
        done=_flat(read("next.done"), bool),
        episode=episode,
        is_ours=layout.FINAL in table.column_names,
    )
    for name, values in (("action", columns.action), ("observation.state", columns.state)):
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        for row in bad[np.unique(episode[bad], return_index=True)[1]]:
            where = f"frame {int(row - np.searchsorted(episode, episode[row]))}"
            what = f"{root}: {name} is not finite at episode {episode[row]}, {where}"
            damage.found(int(episode[row]), f"{name} is not finite at {where}", what)
    return columns


def _tables(
    root: Path,
    info: dict[str, Any],
    paths: list[Path],
    wanted: list[str],
    rows: list[dict[str, Any]],
    damage: Damage,
) -> list[pa.Table]:
    """One table a file. Where damage is tolerated, a file that is lost gives rows of zeros for its episodes."""
    tables: dict[Path, pa.Table] = {}
    lost: dict[Path, str] = {}
    for path in paths:
        try:
            tables[path] = _numbers(path, wanted)
        except DataError as error:
            if not damage.tolerate:
                raise
            lost[path] = str(error)
    if not tables:
        raise DataError(next(iter(lost.values())))
    template, like = info.get("data_path", layout.DATA), next(iter(tables.values()))
    for path, why in lost.items():
        held = [row for row in rows if path == root / template.format(**_place(row, "data"))]
        if not held:
            raise DataError(why)
        lengths = [row["length"] for row in held]
        numbers = np.concatenate([np.arange(row["dataset_from_index"], row["dataset_to_index"]) for row in held])
        filled = {"index": numbers, "episode_index": np.repeat([row["episode_index"] for row in held], lengths)}
        zeros = like.take(np.zeros(len(numbers), dtype=np.int64))
        for key, values in filled.items():
            zeros = zeros.set_column(zeros.column_names.index(key), key, pa.array(values))
        tables[path] = zeros
        for row in held:
            damage.found(int(row["episode_index"]), why)
    return [tables[path] for path in paths]


def _place(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key: row[f"{prefix}/{key}"] for key in ("chunk_index", "file_index")}


def _numbers(path: Path, wanted: list[str]) -> pa.Table:
    try:
        present = pq.read_schema(path).names
    except (pa.ArrowException, OSError):
        present = wanted  # `read_table` says what is wrong with the file
    table = read_table(path, [key for key in wanted if key in present])
    for key in ("action", "episode_index", "index"):
        if key not in table.column_names:
            raise DataError(f"{path}: column {key!r} is missing; it has {', '.join(present)}")
    return table


def _flat(values: np.ndarray | None, dtype: type) -> np.ndarray | None:
    return None if values is None else values.reshape(len(values)).astype(dtype)


def _matrix(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.reshape(len(values), -1), dtype=np.float32)


def _dense(column: pa.ChunkedArray) -> np.ndarray:
    array = column.combine_chunks()
    while pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type):
        array = array.flatten()
    return array.to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _controllers(ours: np.ndarray | None, intervention: np.ndarray | None, count: int) -> np.ndarray:
    if ours is not None:
        return ours.reshape(count).astype(np.int8)
    if intervention is not None:
        return np.where(intervention.reshape(count), Controller.HUMAN, Controller.POLICY).astype(np.int8)
    return np.full(count, Controller.HUMAN, dtype=np.int8)


def read_rows(root: Path) -> list[dict[str, Any]]:
    """meta/episodes without its statistics, in order: one row an episode."""
    paths = sorted(root.glob("meta/episodes/*/*.parquet"))
    if not paths:
        raise DataError(f"{root}: meta/episodes is missing; the recording was not finalised")
    rows: list[dict[str, Any]] = []
    for path in paths:
        names = [name for name in read_table(path).column_names if not name.startswith("stats/")]
        rows += read_table(path, names).to_pylist()
    rows.sort(key=lambda row: row["episode_index"])
    return rows


def read_facts(
    root: Path, info: dict[str, Any], columns: Columns, rows: list[dict[str, Any]], damage: Damage
) -> Episodes:
    """Facts and places of all episodes, checked against the rows."""
    first = np.array([row["dataset_from_index"] for row in rows], dtype=np.int64)
    lengths = np.array([row["length"] for row in rows], dtype=np.int64)
    if len(first) != info["total_episodes"]:
        raise DataError(
            f"{root}: {len(first)} episodes in meta/episodes, but {layout.INFO} says {info['total_episodes']}"
        )
    for number in np.flatnonzero(lengths < 2):
        frames = "1 frame" if lengths[number] == 1 else f"{lengths[number]} frames"
        what = f"episode {number} has {frames}; an episode needs at least two"
        damage.found(int(number), f"it has {frames}; an episode needs at least two", f"{root}: {what}")
    _check_rows(root, columns, first, lengths)
    ours = _our_facts(root, len(rows))
    sparse = _has_sparse_reward(columns)
    facts = []
    for number, row in enumerate(rows):
        span = slice(int(first[number]), int(first[number] + lengths[number]))
        facts.append(_known(root, row, ours[number]) if ours else _guessed(root, row, columns, span, sparse=sparse))
    spans = {key: _spans(root, info, key, rows, first, damage) for key in cameras(info)}
    return Episodes(facts=facts, first=first, lengths=lengths, spans=spans)


def _check_rows(root: Path, columns: Columns, first: np.ndarray, lengths: np.ndarray) -> None:
    expected = np.repeat(np.arange(len(first)), lengths)
    if not np.array_equal(expected, columns.episode) or not np.array_equal(first, np.cumsum(lengths) - lengths):
        raise DataError(f"{root}: meta/episodes and data/ disagree about where episodes begin; copy the dataset again")


def _our_facts(root: Path, count: int) -> list[dict[str, Any]]:
    path = root / layout.FACTS
    if not path.exists():
        return []
    rows = sorted(read_table(path).to_pylist(), key=lambda row: row["episode_index"])
    if [row["episode_index"] for row in rows] != list(range(count)):
        raise DataError(f"{path}: does not have one row for each of the {count} episodes; it belongs to other data")
    return rows


def _known(root: Path, row: dict[str, Any], ours: dict[str, Any]) -> EpisodeFacts:
    if ours["outcome"] not in list(Outcome):
        names = ", ".join(Outcome)
        raise DataError(
            f"{root / layout.FACTS}: episode {row['episode_index']}: outcome {ours['outcome']!r} is none of {names}"
        )
    return EpisodeFacts(
        instruction=_instruction(row),
        outcome=Outcome(ours["outcome"]),
        **{key: ours[key] for key in ("episode_id", "task", "policy_id", "seed", "index", "note", "has_reward")},
    )


def _guessed(root: Path, row: dict[str, Any], columns: Columns, rows: slice, *, sparse: bool) -> EpisodeFacts:
    return EpisodeFacts(
        episode_id=f"{root.resolve().name}-{row['episode_index']:06d}",
        instruction=_instruction(row),
        outcome=_outcome(columns, rows, sparse=sparse),
        task=_instruction(row),
    )


def _instruction(row: dict[str, Any]) -> str:
    return str(row["tasks"][0]) if row["tasks"] and row["tasks"][0] is not None else ""


def _has_sparse_reward(columns: Columns) -> bool:
    """Rewards of 0 and 1 only, with a 1 somewhere: then they say who succeeded. All zeros say nothing."""
    return columns.reward is not None and bool(np.isin(columns.reward, (0, 1)).all() and columns.reward.any())


def _outcome(columns: Columns, rows: slice, *, sparse: bool) -> Outcome:
    """From `next.success`, or else from a sparse `next.reward`. `next.done` alone does not tell success."""
    if columns.success is not None:
        success = bool(columns.success[rows].any())
    elif sparse and columns.reward is not None:
        success = bool(columns.reward[rows].any())
    else:
        return Outcome.UNKNOWN
    if success:
        return Outcome.SUCCESS
    if columns.done is not None and bool(columns.done[rows].any()):
        return Outcome.FAILURE
    # ours, without its facts (lerobot's editing commands drop them): a timeout, an abort and an unknown end look alike
    return Outcome.UNKNOWN if columns.is_ours else Outcome.TIMEOUT


def _spans(
    root: Path, info: dict[str, Any], key: str, rows: list[dict[str, Any]], first: np.ndarray, damage: Damage
) -> list[Span]:
    is_video = info["features"][key]["dtype"] == "video"
    prefix = f"videos/{key}" if is_video else "data"
    template = (info.get("video_path") or layout.VIDEO) if is_video else info.get("data_path", layout.DATA)
    begin: dict[Path, int] = {}  # first row of every data file
    spans = []
    for number, row in enumerate(rows):
        needed = (f"{prefix}/chunk_index", f"{prefix}/file_index", *([f"{prefix}/from_timestamp"] * is_video))
        if any(row.get(name) is None for name in needed):
            what = f"meta/episodes does not say where the frames of camera {key!r} are"
            damage.found(number, what, f"{root}: episode {number}: {what}")
            spans.append(Span(path=root / f"videos/{key}/nowhere.mp4", first=0, length=int(row["length"])))
            continue
        path = root / template.format(video_key=key, **_place(row, prefix))
        start = int(first[number]) - begin.setdefault(path, int(first[number]))
        if is_video:
            start = round(float(row[f"{prefix}/from_timestamp"]) * info["fps"])
        spans.append(Span(path=path, first=start, length=int(row["length"])))
    return spans
