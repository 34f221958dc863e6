"""Reward tables in pieces: written as scoring goes on, put together when it is done.

A piece is a parquet file with the rows of some episodes. Its metadata say which episodes it holds, what was shown to
the judge (a hash of every episode's frames and instruction), and which episodes were skipped and why.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data.damage import BadEpisode
from robo_rl.data.reward_table import (
    KEYS,
    PROGRESS,
    TableWriter,
    check_heads,
    in_order,
    read_table_facts,
    skipped_episodes,
)
from robo_rl.errors import DataError
from robo_rl.types import Trajectory

CHUNK = 64  # frames hashed together
AT_ONCE = 8192  # rows read together
DATASET = ("dataset", "dataset_fingerprint", "num_frames", "lengths")  # what a part says of its dataset


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A file with the scores of some episodes, without the scores."""

    path: Path
    facts: Mapping[str, str]
    columns: tuple[str, ...]
    seen: Mapping[int, str]  # scored episode -> hash of what was shown
    skipped: tuple[BadEpisode, ...]


def frames_hash(episode: Trajectory) -> str:
    """Hash of what a judge is shown of an episode: its instruction and every pixel of every camera."""
    digest = hashlib.sha256(f"{episode.episode_id}\0{episode.instruction}\0{episode.fps}\0".encode())
    for camera, frames in episode.images.items():
        digest.update(f"{camera}\0{frames.shape}\0".encode())
        for first in range(0, len(frames), CHUNK):
            digest.update(np.ascontiguousarray(frames[first : first + CHUNK]).data)
    return digest.hexdigest()[:32]


def write_piece(
    path: Path,
    rows: Mapping[int, Mapping[str, np.ndarray]],
    facts: Mapping[str, str],
    *,
    seen: Mapping[int, str],
    skipped: Sequence[BadEpisode],
) -> None:
    """Write the rows of some episodes atomically, in rising order of the episodes."""
    check_heads(path, [(str(episode), part) for episode, part in rows.items()])
    columns = in_order({*KEYS, PROGRESS}.union(*rows.values()))
    writer = TableWriter(path, columns, {**facts, **_contents(seen, skipped)})
    try:
        for episode in sorted(rows):
            writer.add(rows[episode])
        writer.close()
    finally:
        writer.abandon()


def _contents(seen: Mapping[int, str], skipped: Sequence[BadEpisode]) -> dict[str, str]:
    found = {"seen": json.dumps({str(episode): seen[episode] for episode in sorted(seen)})}
    return found | {"skipped": json.dumps([asdict(one) for one in skipped])}


def read_piece(path: Path) -> Piece:
    """What a piece holds. Raises DataError for a file that is missing, damaged or no piece."""
    try:
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise DataError(f"{path}: the file is missing") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as parquet ({str(error).splitlines()[0]})") from None
    facts = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    if "seen" not in facts:
        raise DataError(f"{path}: not a part of a reward table")
    seen = {int(episode): mark for episode, mark in json.loads(facts["seen"]).items()}
    if seen:
        read_table_facts(path, schema)
    return Piece(path=path, facts=facts, columns=tuple(schema.names), seen=seen, skipped=tuple(skipped_episodes(facts)))


def assemble(
    out: Path,
    pieces: Sequence[Piece],
    facts: Mapping[str, str],
    *,
    lengths: np.ndarray,
    temporary: Path | None = None,
    as_piece: bool = False,
) -> tuple[BadEpisode, ...]:
    """Write one table of all pieces, in the order of the episodes; memory does not grow with them.

    `lengths` int64 (E,) are the rows that each episode of the dataset must have. The table says which episodes were
    skipped (returned, too) and carries a hash of all that was shown; with `as_piece` it keeps the hashes one by one.
    Raises DataError when pieces overlap, are damaged, or only some have a head.
    """
    scored = [piece for piece in pieces if piece.seen]
    check_heads(out, [(f"{piece.path.name}: {min(piece.seen)}", set(piece.columns)) for piece in scored])
    columns = in_order({*KEYS, PROGRESS}.union(*(piece.columns for piece in scored)))
    seen, skipped = _together(out, pieces)
    if not seen and not as_piece:
        raise DataError(f"{out}: no episode could be scored; {skipped[0] if skipped else 'there is none'}")
    contents = _contents(seen, skipped) if as_piece else _summary(seen, skipped)
    writer = TableWriter(out, columns, {**facts, **contents}, temporary=temporary)
    found = []
    try:
        for episode, rows in _in_order(scored):
            if len(rows["index"]) != lengths[episode]:
                raise DataError(f"{out}: episode {episode} has {len(rows['index'])} of {lengths[episode]} rows")
            found.append(episode)
            writer.add(rows)
        if found != sorted(seen):
            lost = min(set(seen) - set(found))
            raise DataError(f"{out}: the rows of episode {lost} are missing; score again")
        writer.close()
    finally:
        writer.abandon()
    return tuple(skipped)


def _together(out: Path, pieces: Sequence[Piece]) -> tuple[dict[int, str], list[BadEpisode]]:
    seen: dict[int, str] = {}
    owner: dict[int, Path] = {}
    skipped: list[BadEpisode] = []
    for piece in pieces:
        for episode in [*piece.seen, *(one.number for one in piece.skipped)]:
            if episode in owner:
                raise DataError(f"{out}: episode {episode} is in {owner[episode].name} and in {piece.path.name}")
            owner[episode] = piece.path
        seen |= piece.seen
        skipped += piece.skipped
    return seen, sorted(skipped, key=lambda one: one.number)


def _summary(seen: Mapping[int, str], skipped: Sequence[BadEpisode]) -> dict[str, str]:
    text = "\n".join(f"{episode} {seen[episode]}" for episode in sorted(seen))
    found = {"frames_fingerprint": hashlib.sha256(text.encode()).hexdigest()[:32]}
    return found | ({"skipped": json.dumps([asdict(one) for one in skipped])} if skipped else {})


def _in_order(pieces: Sequence[Piece]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Rows of every episode, over all pieces; a piece is opened when its first episode is due."""
    waiting = sorted(pieces, key=lambda piece: min(piece.seen), reverse=True)
    active: list[tuple[int, int, dict[str, np.ndarray], Iterator[Any]]] = []
    while waiting or active:
        while waiting and (not active or min(waiting[-1].seen) < active[0][0]):
            rows = _episodes(waiting.pop())
            _advance(active, len(waiting), rows)
        if active:
            episode, number, columns, rows = heapq.heappop(active)
            yield episode, columns
            _advance(active, number, rows)


def _advance(active: list[Any], number: int, rows: Iterator[tuple[int, dict[str, np.ndarray]]]) -> None:
    found = next(rows, None)
    if found is not None:
        heapq.heappush(active, (found[0], number, found[1], rows))


def _episodes(piece: Piece) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Rows of one piece, episode by episode."""
    held: list[pa.Table] = []
    try:
        with pq.ParquetFile(piece.path) as file:
            for batch in file.iter_batches(batch_size=AT_ONCE):
                table = pa.Table.from_batches([batch])
                numbers = table["episode_index"].to_numpy()
                edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
                for start, stop in itertools.pairwise(edges):
                    part = table.slice(start, stop - start)
                    if held and held[0]["episode_index"][0] != part["episode_index"][0]:
                        yield _columns(held)
                        held = []
                    held.append(part)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{piece.path}: not readable as parquet ({str(error).splitlines()[0]})") from None
    if held:
        yield _columns(held)


def _columns(parts: list[pa.Table]) -> tuple[int, dict[str, np.ndarray]]:
    table = pa.concat_tables(parts)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return int(columns["episode_index"][0]), columns


# --- parts of several machines --------------------------------------------------------------------------------


def part_path(out: Path, shard: int, shards: int) -> Path:
    """Where part `shard` (1 to `shards`) of a table goes."""
    return out.with_name(f"{out.name}.shard-{shard}-of-{shards}")


def merge_reward_tables(parts: Sequence[Path | str], out: Path | str) -> tuple[BadEpisode, ...]:
    """Put the parts that `reward score --shard` wrote together, atomically; gives the episodes that were skipped.

    Raises DataError when parts are missing, given twice, of different judges, datasets or divisions, or damaged.
    """
    out = Path(out)
    pieces = [read_piece(Path(part)) for part in parts]
    if not pieces:
        raise DataError(f"{out}: there are no parts to put together")
    first = pieces[0]
    for piece in pieces:
        if "shard" not in piece.facts:
            raise DataError(f"{piece.path}: not a part of a divided table")
        _require_alike(first, piece)
    _require_complete(out, pieces)
    dropped = ("seen", "skipped", "shard", "lengths", "division")
    facts = {key: value for key, value in first.facts.items() if key not in dropped}
    lengths = np.array(json.loads(first.facts["lengths"]), dtype=np.int64)
    return assemble(out, pieces, facts, lengths=lengths)


def _require_alike(one: Piece, other: Piece) -> None:
    if one.facts["shard"].split("/")[1] != other.facts["shard"].split("/")[1]:
        raise DataError(f"{other.path}: part {other.facts['shard']}, but {one.path} is part {one.facts['shard']}")
    for key in sorted(one.facts.keys() | other.facts.keys()):
        if key in ("seen", "skipped", "shard") or one.facts.get(key) == other.facts.get(key):
            continue
        kinds = {"division": "division"} | dict.fromkeys(DATASET, "dataset")
        what = kinds.get(key, "judge")
        raise DataError(
            f"{other.path}: made with another {what} than {one.path}: {key} is {_short(other, key)}, not "
            f"{_short(one, key)}"
        )


def _short(piece: Piece, key: str) -> str:
    value = piece.facts.get(key, "missing")
    return value if len(value) <= 60 else f"{value[:57]}..."


def _require_complete(out: Path, pieces: Sequence[Piece]) -> None:
    held: dict[int, Path] = {}
    count = int(pieces[0].facts["shard"].split("/")[1])
    for piece in pieces:
        number = int(piece.facts["shard"].split("/")[0])
        if number in held:
            raise DataError(f"{piece.path}: part {number} of {count} is given already, as {held[number]}")
        held[number] = piece.path
    missing = [str(number) for number in range(1, count + 1) if number not in held]
    if missing:
        raise DataError(
            f"{out}: part {', '.join(missing)} of {count} is missing; score it with --shard={missing[0]}/{count}"
        )
    seen, skipped = _together(out, pieces)
    episodes = {*seen, *(one.number for one in skipped)}
    lost = set(range(len(json.loads(pieces[0].facts["lengths"])))) - episodes
    if lost:
        raise DataError(f"{out}: episode {min(lost)} is in none of the parts ({len(lost)} such episodes)")
