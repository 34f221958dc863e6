"""A judge's opinion on disk: one parquet row a frame, beside the dataset and never inside it.

`progress_sparse` is lerobot's name for progress, so its RA-BC weighting reads the table as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data.damage import BadEpisode
from robo_rl.data.dataset import EpisodeSet, Whole
from robo_rl.data.tables import read_table
from robo_rl.errors import DataError
from robo_rl.types import RewardSignal

FORMAT = "1"
PROGRESS = "progress_sparse"
TRI_STATE = ("p_progressive", "p_stagnant", "p_regressive")
OPTIONAL = ("success_prob", "uncertainty")
ABSTAINED = "abstained"
RAW = "raw."  # before the name of what a judge says besides
KEYS = ("index", "episode_index", "frame_index")
ROWS = 65_536  # of a row group: the same file, however the rows come


class TableWriter:
    """A reward table that grows episode by episode; complete and in its place after `close`, or absent.

    `columns` are written in their order; an episode that lacks `abstained` or a raw column gets no and NaN.
    `types` are those of further columns. `temporary` is the name until it is complete, in the same file system.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[str],
        facts: Mapping[str, str],
        *,
        types: Mapping[str, pa.DataType] | None = None,
        temporary: Path | None = None,
    ) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.temporary = temporary or path.with_name(f"{path.name}.partial-{os.getpid()}")
        known = {name: pa.int64() for name in KEYS} | {ABSTAINED: pa.bool_()} | dict(types or {})
        fields = [pa.field(name, known.get(name, pa.float32())) for name in columns]
        self.schema = pa.schema(fields, metadata=dict(facts))
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Columns of the same length."""
        count = len(rows["index"])
        arrays = []
        for field in self.schema:
            missing = np.zeros(count, bool) if field.name == ABSTAINED else np.full(count, np.nan, np.float32)
            arrays.append(pa.array(rows.get(field.name, missing), field.type))
        self._waiting.append(pa.Table.from_arrays(arrays, schema=self.schema))
        while sum(table.num_rows for table in self._waiting) >= ROWS:
            table = pa.concat_tables(self._waiting)
            self._write(table.slice(0, ROWS))
            self._waiting = [table.slice(ROWS)]

    def _write(self, table: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.temporary, self.schema)
        self._writer.write_table(table.combine_chunks(), row_group_size=ROWS)

    def close(self) -> None:
        """Write what is left, then put the file in its place."""
        rest = pa.concat_tables([self.schema.empty_table(), *self._waiting])
        if rest.num_rows or self._writer is None:
            self._write(rest)
        if self._writer is not None:
            self._writer.close()
        with self.temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        os.replace(self.temporary, self.path)

    def abandon(self) -> None:
        """Leave nothing behind; does nothing after `close`."""
        if self._writer is not None and self._writer.is_open:
            self._writer.close()
        self.temporary.unlink(missing_ok=True)


def episode_rows(signal: RewardSignal, *, episode: int, first: int) -> dict[str, np.ndarray]:
    """Rows of one episode: number `episode` of the dataset, whose first frame has the global index `first`.

    A step has a tri-state, a final observation has none: NaN.
    """
    count = len(signal.progress)
    rows = {
        "index": first + np.arange(count),
        "episode_index": np.full(count, episode),
        "frame_index": np.arange(count),
        PROGRESS: signal.progress.astype(np.float32),
    }
    rows |= {name: getattr(signal, name).astype(np.float32) for name in OPTIONAL if getattr(signal, name) is not None}
    if signal.tri_state is not None:
        stacked = np.concatenate([signal.tri_state, np.full((1, 3), np.nan)]).astype(np.float32)
        rows |= {name: stacked[:, place] for place, name in enumerate(TRI_STATE)}
    if signal.abstained is not None:
        rows[ABSTAINED] = signal.abstained.astype(bool)
    return rows | {RAW + name: signal.extra[name].astype(np.float32) for name in sorted(signal.extra)}


def in_order(names: Sequence[str] | set[str]) -> list[str]:
    """Columns as a table has them."""
    known = [*KEYS, PROGRESS, *OPTIONAL, *TRI_STATE, ABSTAINED]
    return [name for name in known if name in names] + sorted(name for name in names if name.startswith(RAW))


def table_facts(whole: Whole, judge: Mapping[str, str]) -> dict[str, str]:
    """What a table's metadata say of the dataset and of the judge."""
    return {
        "robo_rl_format": FORMAT,
        "dataset": whole.root.resolve().name,
        "dataset_fingerprint": whole.fingerprint,
        "num_frames": str(whole.num_frames),
        "reward_model_path": judge["id"],
        **{f"judge_{key}": str(value) for key, value in judge.items()},
    }


def write_reward_table(
    path: Path | str,
    episodes: EpisodeSet,
    signals: Sequence[RewardSignal],
    *,
    judge: Mapping[str, str],
    extra: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the signals of all episodes, atomically; one row a frame, in the order of the global index.

    `judge` names the judge (`id` is needed; revision, prompt, sampling are kept too). `extra` are further
    columns, (N,). Raises DataError when an episode is missing, a length does not fit, or only some of the signals
    have a head.
    """
    path, extra = Path(path), extra or {}
    _check(path, episodes, signals, judge)
    parts = [
        episode_rows(signal, episode=number, first=int(episodes.first_frame[number]))
        for number, signal in enumerate(signals)
    ]
    names = in_order({name for part in parts for name in part})
    check_heads(path, [(signal.episode_id, part) for signal, part in zip(signals, parts, strict=True)])
    for name, values in extra.items():
        if name in names or values.shape != (episodes.num_frames,):
            raise DataError(
                f"{path}: extra column {name!r} must be ({episodes.num_frames},) and have a name of its own, "
                f"got {values.shape}"
            )
    whole = Whole(
        root=episodes.root,
        fingerprint=episodes.fingerprint,
        first=episodes.first_frame,
        lengths=episodes.lengths,
        episode_ids=episodes.episode_ids,
    )
    types = {name: pa.from_numpy_dtype(values.dtype) for name, values in extra.items()}
    writer = TableWriter(path, [*names, *extra], table_facts(whole, judge), types=types)
    try:
        for start, part in zip(episodes.first_frame, parts, strict=True):
            rows = slice(int(start), int(start) + len(part["index"]))
            writer.add(part | {name: values[rows] for name, values in extra.items()})
        writer.close()
    finally:
        writer.abandon()


def check_heads(path: Path, parts: Sequence[tuple[str, Mapping[str, object] | set[str]]]) -> None:
    """(what it is called, its columns): DataError where only some have a head."""
    for name in (*OPTIONAL, TRI_STATE[0]):
        lacking = [called for called, part in parts if name not in part]
        if lacking and len(lacking) < len(parts):
            head = "tri_state" if name in TRI_STATE else name
            raise DataError(f"{path}: episode {lacking[0]!r} has no {head}, but others do; score all with one judge")


def _check(path: Path, episodes: EpisodeSet, signals: Sequence[RewardSignal], judge: Mapping[str, str]) -> None:
    if not judge.get("id"):
        raise DataError(f"{path}: judge needs an 'id', got {sorted(judge)}")
    if len(signals) != len(episodes):
        raise DataError(f"{path}: {len(episodes)} episodes but {len(signals)} signals; score every episode")
    for name, length, signal in zip(episodes.episode_ids, episodes.lengths, signals, strict=True):
        if name != signal.episode_id:
            raise DataError(f"{path}: episode {name!r} got the signal of {signal.episode_id!r}; keep the order")
        if len(signal.progress) != length:
            raise DataError(f"{path}: episode {name!r} has {length} frames but {len(signal.progress)} were scored")


# --- reading ------------------------------------------------------------------------------------------------


def read_table_facts(path: Path, schema: pa.Schema) -> dict[str, str]:
    """A table's metadata. Raises DataError for a file that is no reward table."""
    facts = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items() if key != b"pandas"}
    written = facts.get("robo_rl_format")
    if written != FORMAT:
        what = "not a reward table of robo_rl" if written is None else f"a reward table of format {written}"
        raise DataError(f"{path}: {what}; this needs format {FORMAT}, write one with `robo-rl reward score`")
    missing = [key for key in ("dataset_fingerprint", "judge_id") if key not in facts]
    missing += [name for name in ("index", PROGRESS) if name not in schema.names]
    if missing:
        raise DataError(f"{path}: {missing[0]!r} is missing from the table; score the dataset again")
    return facts


def skipped_episodes(facts: Mapping[str, str]) -> list[BadEpisode]:
    """The episodes that were left out when a table was made."""
    return [BadEpisode(**one) for one in json.loads(facts.get("skipped", "[]"))]


@overload
def read_reward_table(path: Path | str, episodes: EpisodeSet) -> list[RewardSignal]: ...
@overload
def read_reward_table(
    path: Path | str, episodes: EpisodeSet, *, allow_missing: Literal[True]
) -> list[RewardSignal | None]: ...
def read_reward_table(
    path: Path | str, episodes: EpisodeSet, *, allow_missing: bool = False
) -> list[RewardSignal] | list[RewardSignal | None]:
    """The signals of all episodes, in order. Raises DataError for a damaged, partial or foreign table.

    A table of a whole dataset also serves a selection of its episodes. An episode that was skipped when the table was
    made is an error that names it, or with `allow_missing` None: nobody can take a missing score for a number.
    """
    path = Path(path)
    table = read_table(path)
    facts = read_table_facts(path, table.schema)
    if "shard" in facts:
        raise DataError(f"{path}: part {facts['shard']} of a table; put the parts together with `robo-rl reward merge`")
    first, total = _places(path, facts, episodes)
    skipped = {one.number: one for one in skipped_episodes(facts)}
    numbers = np.arange(len(episodes)) if facts["dataset_fingerprint"] == episodes.fingerprint else episodes.numbers
    missing = [skipped[int(number)] for number in numbers if int(number) in skipped]
    if missing and not allow_missing:
        raise DataError(
            f"{path}: {missing[0]} ({len(missing)} such episodes): it was skipped when the dataset was scored; mend "
            "the dataset and score it again, or leave these episodes out"
        )
    present = np.array([int(number) not in skipped for number in numbers], dtype=bool)
    rows = _rows(path, table, episodes, first, present, total)
    try:
        signals = _signals(table, episodes, facts["judge_id"], rows, present)
    except (DataError, ValueError) as error:
        raise DataError(f"{path}: {error}; score the dataset again") from None
    return signals


def _places(path: Path, facts: Mapping[str, str], episodes: EpisodeSet) -> tuple[np.ndarray, int]:
    """Global index of the first frame of every episode in the table's dataset, and how many frames that has."""
    mark = facts["dataset_fingerprint"]
    if mark == episodes.fingerprint:
        return episodes.first_frame, episodes.num_frames
    if len(episodes._stores) == 1 and episodes.whole().fingerprint == mark:
        whole = episodes.whole()
        return whole.first[episodes.numbers], whole.num_frames
    raise DataError(
        f"{path}: made for dataset {facts.get('dataset', '?')!r} ({mark[:12]}), this is "
        f"{episodes.root.resolve().name!r} ({episodes.fingerprint[:12]}); score this one"
    )


def _rows(
    path: Path, table: pa.Table, episodes: EpisodeSet, first: np.ndarray, present: np.ndarray, total: int
) -> np.ndarray:
    """Row of the table where each present episode begins, int64 (E,); every frame of theirs is there once."""
    index = table["index"].to_numpy()
    beyond = index[(index < 0) | (index >= total)]
    if len(beyond):
        raise DataError(f"{path}: frame {beyond[0]} is scored, but the dataset has {total}; score it again")
    times = np.bincount(index.astype(np.int64), minlength=total)
    for number in np.flatnonzero(present):
        seen = times[first[number] : first[number] + episodes.lengths[number]]
        wrong = np.flatnonzero(seen != 1)
        if len(wrong):
            where = f"frame {wrong[0]} of episode {episodes.episode_ids[number]!r}"
            how = "is not scored" if seen[wrong[0]] == 0 else f"is scored {seen[wrong[0]]} times"
            count = int((times != 1).sum()) if present.all() else len(wrong)
            raise DataError(f"{path}: {where} {how} ({count} such frames); score the dataset again")
    if (np.diff(index) <= 0).any():
        raise DataError(f"{path}: frames are out of order; sort the table by 'index'")
    return np.searchsorted(index, first)


def _signals(
    table: pa.Table, episodes: EpisodeSet, judge: str, rows: np.ndarray, present: np.ndarray
) -> list[RewardSignal | None]:
    raw = [name for name in table.column_names if name.startswith(RAW)]
    columns = {
        name: table[name].to_numpy().astype(np.float32)
        for name in (PROGRESS, *OPTIONAL, *TRI_STATE, *raw)
        if name in table.column_names
    }
    abstained = table[ABSTAINED].to_numpy() if ABSTAINED in table.column_names else None
    states = [columns[name] for name in TRI_STATE if name in columns]
    if len(states) not in (0, 3):
        raise DataError(f"only {len(states)} of the columns {', '.join(TRI_STATE)} are there")
    tri_state = np.stack(states, axis=1) if states else None
    signals: list[RewardSignal | None] = []
    for number, name in enumerate(episodes.episode_ids):
        if not present[number]:
            signals.append(None)
            continue
        span = slice(int(rows[number]), int(rows[number] + episodes.lengths[number]))
        signals.append(
            RewardSignal(
                episode_id=name,
                model_id=judge,
                progress=columns[PROGRESS][span],
                success_prob=columns["success_prob"][span] if "success_prob" in columns else None,
                tri_state=None if tri_state is None else tri_state[span][:-1],
                uncertainty=columns["uncertainty"][span] if "uncertainty" in columns else None,
                abstained=None if abstained is None else abstained[span],
                extra={key.removeprefix(RAW): columns[key][span] for key in raw},
            )
        )
    return signals
