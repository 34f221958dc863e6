"""Boundaries of sub-tasks: tables, and `annotated_keyframes.json` as the Robo-Dopamine project's recordings have it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robo_rl.data.dataset import EpisodeSet
from robo_rl.data.label_rows import bad_row, integer, read_rows
from robo_rl.errors import DataError

KEYFRAMES = "annotated_keyframes.json"
LABELS = "labels/subtasks.csv"  # where `robo-rl import` puts them, inside the dataset's folder


@dataclass(frozen=True, kw_only=True)
class Subtasks:
    """K sub-tasks of one episode that follow one another."""

    frames: np.ndarray  # int64 (K+1,), rising: sub-task i runs from frame i to frame i + 1 of these
    names: tuple[str, ...]  # K


def read_subtasks(path: Path | str, episodes: EpisodeSet) -> dict[int, Subtasks]:
    """Sub-tasks by the episode's place in the set.

    `path` is a csv or parquet file with rows `episode_index` (or `episode_id`), `from_frame`, `to_frame` and perhaps
    `name`; or an `annotated_keyframes.json`; or a folder of `<episode id>/annotated_keyframes.json`. The sub-tasks of
    an episode are in order, and each begins where the one before ends. Raises DataError naming file and row.
    """
    path = Path(path)
    if path.is_dir() or path.suffix.lower() == ".json":
        return _keyframes(path, episodes)
    parts: dict[int, list[tuple[int, int, int, str]]] = {}
    shown = {}
    for row in read_rows(path, episodes, needed=("from_frame", "to_frame")):
        parts.setdefault(row.episode, []).append(
            (integer(row, "from_frame"), integer(row, "to_frame"), row.number, str(row.values.get("name") or ""))
        )
        shown[row.number] = row
    found = {}
    for episode, spans in parts.items():
        try:
            found[episode] = in_order(spans, int(episodes.lengths[episode]) - 1, f"episode {_id(episodes, episode)!r}")
        except Misplaced as error:
            raise bad_row(shown[error.row], error.what) from None
    return found


class Misplaced(Exception):
    """A sub-task that is not where it can be."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row, self.what = row, what


def in_order(spans: Sequence[tuple[int, int, int, str]], last: int, where: str) -> Subtasks:
    """(from, to, row, name) of an episode with frames 0 to `last`, checked. Raises Misplaced."""
    before = None
    for start, end, row, _ in spans:
        if start < 0 or end > last:
            beyond = start if start < 0 else end
            raise Misplaced(row, f"frame {beyond} is beyond {where}, whose frames are 0 to {last}")
        if end <= start:
            raise Misplaced(row, f"a sub-task of {where} ends at frame {end}, but begins at {start}")
        if before is not None and start < before:
            raise Misplaced(row, f"sub-tasks of {where} overlap: one begins at frame {start}, before {before}")
        if before is not None and start > before:
            raise Misplaced(row, f"there is a gap in {where} from frame {before} to {start}; name what happens there")
        before = end
    frames = [spans[0][0], *(end for _, end, _, _ in spans)]
    return Subtasks(frames=np.array(frames, dtype=np.int64), names=tuple(name for *_, name in spans))


def read_keyframes(path: Path, last: int | None = None) -> Subtasks:
    """One `annotated_keyframes.json`: a list of {"anotation" or "annotation", "start_frame_id", "end_frame_id"}.

    `last` is the episode's last frame, where it is known. Raises DataError naming file and row.
    """
    try:
        entries: Any = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path}: must be a list of sub-tasks with start_frame_id and end_frame_id")
    spans = []
    for row, entry in enumerate(entries, start=1):
        facts = entry if isinstance(entry, dict) else {}
        start, end = facts.get("start_frame_id"), facts.get("end_frame_id")
        if type(start) is not int or type(end) is not int:  # True is an int, too
            raise DataError(f"{path}: row {row}: start_frame_id and end_frame_id must be whole numbers, got {entry}")
        spans.append((start, end, row, str(facts.get("annotation", facts.get("anotation", "")))))
    try:
        return in_order(spans, np.iinfo(np.int64).max if last is None else last, f"episode {path.parent.name!r}")
    except Misplaced as error:
        raise DataError(f"{path}: row {error.row}: {error.what}") from None


def _keyframes(path: Path, episodes: EpisodeSet) -> dict[int, Subtasks]:
    files = sorted(path.glob(f"*/{KEYFRAMES}")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: there is no */{KEYFRAMES} in this folder")
    places = {name: place for place, name in enumerate(episodes.episode_ids)}
    found = {}
    for file in files:
        name = file.resolve().parent.name
        if name not in places:
            raise DataError(f"{file}: no episode is called {name!r}; {episodes.root} has {', '.join(list(places)[:3])}")
        place = places[name]
        try:
            found[place] = read_keyframes(file, int(episodes.lengths[place]) - 1)
        except DataError as error:
            hint = "if frames were left out, take the labels/subtasks.csv that `robo-rl import` wrote"
            raise DataError(f"{error}; {hint}") from None
    return found


def _id(episodes: EpisodeSet, place: int) -> str:
    return episodes.episode_ids[place]
