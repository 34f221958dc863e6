"""Pairs of frames and which one is nearer to the goal: drawn, answered, kept in a file.

Columns of the file (csv or parquet), a row a pair:
- `episode_a`, `episode_b`: number of an episode in the dataset, or its id; both of one instruction.
- `frame_a`, `frame_b`: frame numbers. Without them `to_a`, `to_b` of `robo_rl.data.labels` count, or else last frames:
  people's preferences between episodes are read as pairs of their ends.
- `preferred`: a, b, tie (equally near), unsure (no verdict), abstained (no answer that could be read).
- `confidence` in (0, 1]: probability of the answer; 1 where it is not given. Weights the pair in a fit.
Pairs that are unsure or abstained are kept, so that nobody is asked twice, and teach nothing.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data import EpisodeSet
from robo_rl.data.label_rows import Row, bad_row, integer, read_rows, word
from robo_rl.errors import DataError
from robo_rl.types import Trajectory

ANSWERS = ("a", "b", "tie", "unsure", "abstained")


@dataclass(frozen=True, kw_only=True, slots=True)
class FramePair:
    """Two frames, by place of the episode in the set and frame number; and the answer, "" before it is given."""

    a: int
    frame_a: int
    b: int
    frame_b: int
    preferred: str = ""
    confidence: float = 1.0

    @property
    def shown(self) -> tuple[int, int, int, int]:
        return self.a, self.frame_a, self.b, self.frame_b

    def answered(self, preferred: str, confidence: float) -> FramePair:
        """The same pair with an answer."""
        return dataclasses.replace(self, preferred=preferred, confidence=confidence)


def sample_pairs(episodes: Sequence[Trajectory], count: int, *, seed: int) -> list[FramePair]:
    """`count` pairs of different frames of one instruction, of any two of its episodes or of one; each pair once.

    Raises DataError when there are not so many.
    """
    rng = np.random.default_rng(seed)
    groups: dict[str, list[int]] = {}
    for number, episode in enumerate(episodes):
        groups.setdefault(episode.instruction, []).append(number)
    of_episode = [groups[episode.instruction] for episode in episodes]
    drawn: dict[tuple[int, int, int, int], None] = {}
    for _ in range(20 * count):
        if len(drawn) == count:
            break
        a = int(rng.integers(len(episodes)))
        b = int(rng.choice(of_episode[a]))
        shown = (a, int(rng.integers(len(episodes[a]) + 1)), b, int(rng.integers(len(episodes[b]) + 1)))
        if shown[:2] != shown[2:] and (*shown[2:], *shown[:2]) not in drawn:
            drawn[shown] = None
    if len(drawn) < count:
        raise DataError(f"{len(episodes)} episodes do not give {count} different pairs of frames; ask for fewer")
    return [FramePair(a=a, frame_a=i, b=b, frame_b=j) for a, i, b, j in drawn]


def write_pairs(path: Path | str, episodes: Sequence[Trajectory], pairs: Sequence[FramePair], *, labeller: str) -> None:
    """Write answered pairs as parquet, atomically; `labeller` says who answered."""
    path = Path(path)
    ids = [[episodes[getattr(pair, side)].episode_id for pair in pairs] for side in ("a", "b")]
    columns = {
        "episode_a": pa.array(ids[0], pa.string()),
        "frame_a": pa.array([pair.frame_a for pair in pairs], pa.int64()),
        "episode_b": pa.array(ids[1], pa.string()),
        "frame_b": pa.array([pair.frame_b for pair in pairs], pa.int64()),
        "preferred": pa.array([pair.preferred for pair in pairs], pa.string()),
        "confidence": pa.array([pair.confidence for pair in pairs], pa.float32()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        pq.write_table(pa.table(columns).replace_schema_metadata({"labeller": labeller}), temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def labeller_of(path: Path | str) -> str:
    """Who answered the pairs of a parquet file; "" where it does not say."""
    try:
        return (pq.read_schema(path).metadata or {}).get(b"labeller", b"").decode()
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path}: not readable as parquet ({reason})") from None


def read_pairs(path: Path | str, episodes: EpisodeSet) -> list[FramePair]:
    """Answered pairs of a csv or parquet file.

    Raises DataError with file and row for an unknown episode, a frame beyond it, an unknown answer, a confidence
    outside (0, 1], a frame beside itself, and episodes of different instructions.
    """
    return list(_pairs(Path(path), episodes))


def _pairs(path: Path, episodes: EpisodeSet) -> Iterator[FramePair]:
    texts: dict[int, str] = {}
    for row in read_rows(path, episodes, needed=("episode_a", "episode_b", "preferred"), episode=None):
        preferred = word(row, "preferred")
        if preferred not in ANSWERS:
            raise bad_row(row, f"preferred {row.values['preferred']!r} is none of {', '.join(ANSWERS)}")
        a, b = row.find("episode_a"), row.find("episode_b")
        frame_a, frame_b = (_frame(row.of(e), side, episodes) for e, side in ((a, "a"), (b, "b")))
        if (a, frame_a) == (b, frame_b):
            raise bad_row(row, f"frame {frame_a} of {row.of(a).name} stands beside itself; compare two different ones")
        one, other = (texts.setdefault(e, episodes[e].instruction) for e in (a, b))
        if one != other:
            raise bad_row(row, f"the instructions differ ({one!r}, {other!r}); compare frames of one instruction")
        yield FramePair(
            a=a, frame_a=frame_a, b=b, frame_b=frame_b, preferred=preferred, confidence=_confidence(row, preferred)
        )


def _frame(row: Row, side: str, episodes: EpisodeSet) -> int:
    last = int(episodes.lengths[row.episode]) - 1
    key = next((key for key in (f"frame_{side}", f"to_{side}") if row.has(key)), None)
    frame = last if key is None else integer(row, key)
    if not 0 <= frame <= last:
        raise bad_row(row, f"frame {frame} is beyond {row.name}, whose frames are 0 to {last}")
    return frame


def _confidence(row: Row, preferred: str) -> float:
    if not row.has("confidence"):
        return 1.0
    try:
        value = float(row.values["confidence"])
    except ValueError:
        value = np.nan
    if not 0.0 <= value <= 1.0 or (value == 0.0 and preferred in ("a", "b", "tie")):
        raise bad_row(row, f"confidence must lie in (0, 1], got {row.values['confidence']!r}")
    return value
