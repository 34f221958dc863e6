"""What scoring a dataset came to, and what lies beside its table."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from reward_models.journal import remove_journal
from robo_rl.data.damage import BadEpisode
from robo_rl.data.dataset import Whole
from robo_rl.data.reward_parts import merge_reward_tables, part_path
from robo_rl.data.reward_table import ABSTAINED, skipped_episodes, table_facts
from robo_rl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What scoring did. Times are of this run; counts are of the whole table."""

    table: Path  # what was written: the table, or a part of it
    model_id: str
    frames: int  # in the table
    scored_now: int  # frames that this run scored
    seconds: float  # of this run, without reading the dataset
    ms_per_frame: tuple[float, float]  # median and 95th percentile over the groups of this run; NaN without any
    peak_memory: int  # bytes resident, the largest process
    processes: int
    abstained: int  # frames
    skipped: tuple[BadEpisode, ...]
    missing_parts: tuple[int, ...] = ()  # of a divided table

    def lines(self) -> list[str]:
        """What a person wants to know, then one line for each skipped episode."""
        out = [f"{self.table}: {self.frames} frames, judged by {self.model_id}"]
        if self.scored_now:
            rate, (middle, high) = self.scored_now / max(self.seconds, 1e-9), self.ms_per_frame
            out.append(f"{rate:.1f} frames/s; {middle:.2f} ms a frame (95 % of groups below {high:.2f})")
        else:
            out.append("nothing was left to score")
        each = "" if self.processes == 1 else f" in each of {self.processes} processes"
        out.append(f"peak memory {self.peak_memory / 1e6:.0f} MB{each}")
        out.append(f"{self.abstained} frames without an answer; {len(self.skipped)} episodes skipped")
        if self.missing_parts:
            out.append(f"still to be scored: part {', '.join(map(str, self.missing_parts))}")
        return out + [f"skipped: {one}" for one in self.skipped]


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """What came of one group."""

    group: int
    frames: int
    seconds: float
    abstained: int
    peak_memory: int


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    try:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if os.uname().sysname == "Darwin" else 1024)


def skipped_path(out: Path) -> Path:
    """Where the list of skipped episodes lies."""
    return out.with_name(f"{out.name}.skipped.json")


def write_skipped(out: Path, skipped: Sequence[BadEpisode]) -> None:
    """The list of skipped episodes beside a table, or none."""
    path = skipped_path(out)
    if not skipped:
        path.unlink(missing_ok=True)
        return
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    temporary.write_text(json.dumps([asdict(one) for one in skipped], indent=1, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


def counts(table: Path) -> tuple[int, int]:
    """Frames in a table, and how many of them the judge did not answer."""
    with pq.ParquetFile(table) as file:
        abstained = 0
        if ABSTAINED in file.schema_arrow.names:
            for batch in file.iter_batches(columns=[ABSTAINED]):
                abstained += int(np.asarray(batch.column(0)).sum())
        return file.metadata.num_rows, abstained


def skipped_of(table: Path) -> tuple[BadEpisode, ...]:
    """The episodes that were left out of a table."""
    return tuple(skipped_episodes(_facts(table)))


def _facts(table: Path) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (pq.read_schema(table).metadata or {}).items()}


def is_done(table: Path, whole: Whole, judge: Mapping[str, str], *, skip_bad: bool) -> bool:
    """Whether this very table is there. Raises DataError for another one: it is not written over."""
    if not table.exists():
        return False
    try:
        there = _facts(table)
    except (OSError, ValueError):
        raise DataError(f"{table}: exists already and is no table; remove it, or choose another --out") from None
    wanted = table_facts(whole, judge)
    for key in ("dataset_fingerprint", *sorted(name for name in {*wanted, *there} if name.startswith("judge_"))):
        if there.get(key) != wanted.get(key):
            raise DataError(
                f"{table}: exists already, with {key} {there.get(key)!r} where this has {wanted.get(key)!r}; "
                "remove it, or choose another --out"
            )
    if skipped_episodes(there) and not skip_bad:
        one = skipped_episodes(there)[0]
        raise DataError(f"{table}: exists already, but lacks {one}; remove it to score again, or allow --skip-bad")
    return True


def sweep(table: Path) -> None:
    """Remove what killed processes left beside a table that is complete."""
    for name in (table.name, skipped_path(table).name):
        for path in table.parent.glob(f"{glob.escape(name)}.partial-*"):
            path.unlink(missing_ok=True)


def tidy(table: Path, journal: Path) -> None:
    """What a process killed right after it wrote the table did not get to."""
    if "shard" not in _facts(table):
        write_skipped(table, skipped_of(table))
    sweep(table)
    remove_journal(journal)


def merge_when_complete(
    out: Path, shards: int, whole: Whole, judge: Mapping[str, str], *, skip_bad: bool
) -> tuple[int, ...]:
    """Put the parts together when all are there; gives the numbers of those that are missing."""
    parts = [part_path(out, number, shards) for number in range(1, shards + 1)]
    missing = tuple(number for number, part in enumerate(parts, start=1) if not part.exists())
    if missing:
        return missing
    try:
        write_skipped(out, merge_reward_tables(parts, out))
    except (DataError, OSError):
        # two machines may finish at once: the other one has put them together
        if not is_done(out, whole, judge, skip_bad=skip_bad):
            raise
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    sweep(out)
    return ()
