"""Progress in lerobot's own form: one parquet row a frame, as its reward models write and its RA-BC weighting reads.

Columns `index` (row of the dataset), `episode_index`, `frame_index`, `progress_sparse` and perhaps `progress_dense`;
the schema's metadata name the reward model. lerobot finds `sarm_progress.parquet` in a dataset's folder by itself.
The final observation of an episode, which our datasets mark `robo.final`, is a row to lerobot like any other, so rows
agree one to one.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data.dataset import EpisodeSet
from robo_rl.data.reward_table import PROGRESS, read_reward_table
from robo_rl.data.tables import read_table
from robo_rl.errors import DataError
from robo_rl.types import RewardSignal

KEYS = ("index", "episode_index", "frame_index")
HEADS = ("sparse", "dense")


def export_progress(
    table: Path | str, episodes: EpisodeSet, out: Path | str, *, column: str = PROGRESS, overwrite: bool = False
) -> None:
    """Write a reward table as a progress file of lerobot, atomically; further columns come along.

    `column` of the table becomes `progress_sparse` ("success_prob" gives weights by the chance of success). A frame
    on which the judge abstained becomes NaN, lerobot's sign of no answer: RA-BC gives it the weight 1. The
    dataset's fingerprint is kept, so that `import_progress` knows a stale file.

    Raises DataError when the table is not of this dataset, the column is missing or not finite, `episodes` are only
    a part of a dataset, whose rows have other numbers, or `out` exists.
    """
    table, out = Path(table), Path(out)
    _require_whole(out, episodes)
    if out.exists() and not overwrite:
        raise DataError(f"{out}: already exists; choose another file, or overwrite it (--overwrite)")
    signals = read_reward_table(table, episodes)
    found = read_table(table)
    if column not in found.column_names:
        raise DataError(f"{table}: there is no column {column!r}; the table has {', '.join(found.column_names)}")
    progress = found[column].to_numpy().astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(progress))
    if len(bad):
        raise DataError(f"{table}: {column} is not finite at {_place(episodes, int(bad[0]))}; score the dataset again")
    silent = [np.zeros(len(s.progress), bool) if s.abstained is None else s.abstained for s in signals]
    progress[np.concatenate(silent)] = np.nan
    columns = {name: found[name] for name in KEYS} | {PROGRESS: pa.array(progress)}
    columns |= {name: found[name] for name in found.column_names if name not in columns}
    facts = {key.decode(): value.decode() for key, value in (found.schema.metadata or {}).items()}
    kept = {key: value for key, value in facts.items() if key != "robo_rl_format"}  # it is no reward table any more
    _write(out, pa.table(columns).replace_schema_metadata(kept | {"progress_column": column}))


def import_progress(
    path: Path | str, episodes: EpisodeSet, *, head: str = "sparse", abstain: bool = False
) -> list[RewardSignal]:
    """What a progress file of lerobot (SARM, Robometer, TOPReward, or `export_progress`) says of every episode.

    Rows may be in any order. lerobot's scripts write NaN for frames at which the model failed; with `abstain` such a
    frame repeats the progress of the nearest answered one and is marked as abstained. The other progress column, if
    there is one, is kept in `extra`. The judge's id is the reward model's path and a hash of what it said: the file
    does not tell the model's revision.

    lerobot stores nothing of the dataset besides numbers of episodes and frames. A file made before a
    change that kept all lengths cannot be told from a fresh one, unless it carries our fingerprint.

    Raises DataError naming the file, the episode and the frame when frames are missing, scored twice, or not those of
    the dataset; when progress is not a number in [0, 1]; or when an episode has no answer at all.
    """
    path = Path(path)
    if head not in HEADS:
        raise DataError(f"{path}: head must be sparse or dense, got {head!r}")
    column, other = f"progress_{head}", f"progress_{HEADS[1 - HEADS.index(head)]}"
    _require_whole(path, episodes)
    table = _rows(path, episodes, column)
    progress = _numbers(path, table, column, episodes)
    silent = np.isnan(progress)
    if silent.any() and not abstain:
        first = int(np.flatnonzero(silent)[0])
        raise DataError(
            f"{path}: {column} is NaN at {_place(episodes, first)} ({int(silent.sum())} such frames: the model failed "
            "there); score them again, or import with --abstain"
        )
    judge = _judge(path, table, progress)
    more = _numbers(path, table, other, episodes) if other in table.column_names else None
    return [_signal(path, episodes, number, judge, progress, more, other) for number in range(len(episodes))]


def _signal(
    path: Path,
    episodes: EpisodeSet,
    number: int,
    judge: str,
    progress: np.ndarray,
    more: np.ndarray | None,
    other: str,
) -> RewardSignal:
    start = int(episodes.first_frame[number])
    rows = slice(start, start + int(episodes.lengths[number]))
    answered = np.flatnonzero(~np.isnan(progress[rows]))
    name, frames = episodes[number].episode_id, np.arange(episodes.lengths[number])
    if not len(answered):
        raise DataError(f"{path}: episode {name!r} has no answer at all; score it again")
    place = np.searchsorted((answered[1:] + answered[:-1]) / 2, frames)  # the nearest answered frame
    silent = np.isnan(progress[rows])
    return RewardSignal(
        episode_id=name,
        model_id=judge,
        progress=progress[rows][answered[place]],
        abstained=silent if np.isnan(progress).any() else None,
        extra={} if more is None else {other: more[rows]},
    )


def _rows(path: Path, episodes: EpisodeSet, column: str) -> pa.Table:
    """The file's rows sorted by index: exactly the dataset's."""
    table = read_table(path)
    missing = [name for name in (*KEYS, column) if name not in table.column_names]
    if missing:
        raise DataError(
            f"{path}: column {missing[0]!r} is missing; a progress file has {', '.join((*KEYS, column))}, this one "
            f"{', '.join(table.column_names)}"
        )
    facts = table.schema.metadata or {}
    mark = facts.get(b"dataset_fingerprint", episodes.fingerprint.encode()).decode()
    if mark != episodes.fingerprint:
        raise DataError(
            f"{path}: made for another state of the dataset ({mark[:12]}, this is {episodes.fingerprint[:12]}); "
            "score this one"
        )
    for name in KEYS:
        if not pa.types.is_integer(table.schema.field(name).type) or table[name].null_count:
            raise DataError(f"{path}: column {name!r} must hold whole numbers without gaps, not {table[name].type}")
    table = table.sort_by("index")
    index, count = table["index"].to_numpy(), episodes.num_frames
    beyond = index[(index < 0) | (index >= count)]
    if len(beyond):
        raise DataError(f"{path}: frame {beyond[0]} is scored, but the dataset has {count} frames; score it again")
    times = np.bincount(index, minlength=count)
    wrong = np.flatnonzero(times != 1)
    if len(wrong):
        how = "is not scored" if times[wrong[0]] == 0 else f"is scored {times[wrong[0]]} times"
        raise DataError(f"{path}: {_place(episodes, int(wrong[0]))} {how} ({len(wrong)} such frames); score all frames")
    number, frame = table["episode_index"].to_numpy(), table["frame_index"].to_numpy()
    expected = np.arange(count) - np.repeat(episodes.first_frame, episodes.lengths)
    moved = np.flatnonzero((number != episodes.episode_of_frame) | (frame != expected))
    if len(moved):
        at = int(moved[0])
        raise DataError(
            f"{path}: row {at} is frame {frame[at]} of episode {number[at]} there, but {_place(episodes, at)} in the "
            "dataset: episodes changed since it was scored; score it again"
        )
    return table


def _numbers(path: Path, table: pa.Table, column: str, episodes: EpisodeSet) -> np.ndarray:
    """float32 (N,) in [0, 1] or NaN."""
    try:
        values = table[column].to_numpy().astype(np.float32)
    except (TypeError, ValueError):
        raise DataError(f"{path}: column {column!r} holds {table[column].type}, not numbers") from None
    slack = 1e-4  # rounding
    bad = np.flatnonzero((values < -slack) | (values > 1 + slack))
    if len(bad):
        raise DataError(
            f"{path}: {column} is {values[bad[0]]:g} at {_place(episodes, int(bad[0]))}; progress lies in [0, 1]"
        )
    return np.clip(values, 0.0, 1.0)


def _judge(path: Path, table: pa.Table, progress: np.ndarray) -> str:
    facts = table.schema.metadata or {}
    named = facts.get(b"reward_model_path") or facts.get(b"vlm_name")
    name = named.decode() if named else path.stem
    if b"judge_id" in facts and facts.get(b"progress_column") == PROGRESS.encode():
        return facts[b"judge_id"].decode()
    return f"{name.split('@')[0]}@{hashlib.blake2b(progress.tobytes(), digest_size=5).hexdigest()}"


def _require_whole(path: Path, episodes: EpisodeSet) -> None:
    if not episodes._is_whole:
        raise DataError(f"{path}: a progress file is of one whole dataset, not of a selection; use read_episodes")


def _place(episodes: EpisodeSet, row: int) -> str:
    number = int(episodes.episode_of_frame[row])
    return f"frame {row - episodes.first_frame[number]} of episode {number} ({episodes[number].episode_id!r})"


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        pq.write_table(table, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
