"""What people said of episodes, from csv or parquet files: directions of steps, sub-tasks, outcomes, preferences.

Labels are opinions, so they lie beside a dataset and never inside it. A row names its episode by `episode_index`, its
number in the dataset, or by `episode_id`. Rows are counted from 1, without the header. Every mistake raises DataError
with file and row. See docs/data_format.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robo_rl.data.dataset import EpisodeSet
from robo_rl.data.label_rows import Row, bad_row, integer, read_rows, word
from robo_rl.data.subtasks import Subtasks, read_subtasks
from robo_rl.errors import DataError
from robo_rl.types import Outcome

UNLABELLED = -2  # a step that nobody labelled
DIRECTIONS = {
    **{"1": 1, "+1": 1, "progressive": 1, "progress": 1, "forward": 1},
    **{"0": 0, "stagnant": 0, "stagnation": 0, "still": 0},
    **{"-1": -1, "regressive": -1, "regress": -1, "backward": -1},
}
SUCCESS = {
    **dict.fromkeys(("1", "true", "yes", "success"), True),
    **dict.fromkeys(("0", "false", "no", "failure"), False),
}
PREFERRED = ("a", "b", "tie")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preference:
    """Of two episodes of one instruction, or of two parts of episodes, the better one."""

    a: int  # episodes by their place in the set
    b: int
    preferred: str  # "a", "b" or "tie"
    frames_a: tuple[int, int] | None = None  # first and last frame that was shown; None: the whole episode
    frames_b: tuple[int, int] | None = None

    @property
    def pair(self) -> tuple[int, int] | None:
        """(better, worse), or None for a tie."""
        return {"a": (self.a, self.b), "b": (self.b, self.a)}.get(self.preferred)


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels of a set of episodes, by their place in the set."""

    direction: Mapping[int, np.ndarray] = field(default_factory=dict)  # int8 (T,): +1, 0, -1, UNLABELLED
    subtasks: Mapping[int, Subtasks] = field(default_factory=dict)
    success: Mapping[int, bool] = field(default_factory=dict)  # only of episodes whose outcome is unknown
    preferences: Sequence[Preference] = ()

    @property
    def boundaries(self) -> dict[int, np.ndarray]:
        """int64 (K+1,) rising frames of each episode with K sub-tasks."""
        return {episode: found.frames for episode, found in self.subtasks.items()}

    def moved(self, by: int) -> Labels:
        """The same labels where `by` episodes come before: for several datasets put together with `concat`."""
        shifted = [
            Preference(a=p.a + by, b=p.b + by, preferred=p.preferred, frames_a=p.frames_a, frames_b=p.frames_b)
            for p in self.preferences
        ]
        return Labels(
            direction={episode + by: values for episode, values in self.direction.items()},
            subtasks={episode + by: values for episode, values in self.subtasks.items()},
            success={episode + by: value for episode, value in self.success.items()},
            preferences=shifted,
        )


def join_labels(parts: Sequence[Labels]) -> Labels:
    """Labels of different episodes or kinds as one. Two parts must not label the same steps."""
    direction: dict[int, np.ndarray] = {}
    for part in parts:
        for episode, values in part.direction.items():
            known = direction.get(episode, np.full_like(values, UNLABELLED))
            both = np.flatnonzero((known != UNLABELLED) & (values != UNLABELLED))
            if len(both):
                raise DataError(f"labels: step {both[0]} of episode {episode} is labelled twice; keep one")
            direction[episode] = np.where(values == UNLABELLED, known, values)
    return Labels(
        direction=direction,
        subtasks={episode: found for part in parts for episode, found in part.subtasks.items()},
        success={episode: found for part in parts for episode, found in part.success.items()},
        preferences=[preference for part in parts for preference in part.preferences],
    )


def read_labels(
    episodes: EpisodeSet,
    *,
    direction: Path | str | None = None,
    subtasks: Path | str | None = None,
    success: Path | str | None = None,
    preferences: Path | str | None = None,
) -> Labels:
    """All label files of a set. Raises DataError naming file and row."""
    return Labels(
        direction={} if direction is None else read_directions(direction, episodes),
        subtasks={} if subtasks is None else read_subtasks(subtasks, episodes),
        success={} if success is None else read_outcomes(success, episodes),
        preferences=() if preferences is None else read_preferences(preferences, episodes),
    )


def read_paraphrases(root: Path | str) -> dict[str, list[str]]:
    """Other words for the instructions of a dataset, from its `labels/instructions.json`; {} where there are none."""
    path = Path(root) / "labels" / "instructions.json"
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if not isinstance(found, dict) or not all(isinstance(texts, list) for texts in found.values()):
        raise DataError(f"{path}: must be an object, from each instruction to the list of its paraphrases")
    return {str(text): [str(other) for other in others] for text, others in found.items()}


def read_directions(path: Path | str, episodes: EpisodeSet) -> dict[int, np.ndarray]:
    """Tri-state labels of steps (METHODS 3.2): place in the set -> int8 (T,).

    A row has `label` (-1, 0, 1, or regressive, stagnant, progressive) and either `frame_index`, the step from that
    frame to the next, or `from_frame` and `to_frame`, all steps between the two frames. Raises DataError for an
    unknown label or episode, a frame without a step, and steps that two rows label.
    """
    path = Path(path)
    found: dict[int, np.ndarray] = {}
    by: dict[int, np.ndarray] = {}  # the row that labelled a step
    for row in read_rows(path, episodes, needed=("label",)):
        last = int(episodes.lengths[row.episode]) - 1
        first, stop = _steps(row, last)
        label = DIRECTIONS.get(word(row, "label"))
        if label is None:
            given = row.values["label"]
            raise bad_row(row, f"label {given!r} is none of 1, 0, -1, progressive, stagnant, regressive")
        values = found.setdefault(row.episode, np.full(last, UNLABELLED, np.int8))
        rows = by.setdefault(row.episode, np.zeros(last, np.int64))
        taken = np.flatnonzero(rows[first:stop])
        if len(taken):
            step = first + int(taken[0])
            raise bad_row(row, f"step {step} of {row.name} is labelled already, by row {rows[step]}; ranges overlap")
        values[first:stop], rows[first:stop] = label, row.number
    return found


def _steps(row: Row, last: int) -> tuple[int, int]:
    """First and end of the labelled steps."""
    if row.has("frame_index"):
        frame = integer(row, "frame_index")
        if not 0 <= frame < last:
            raise bad_row(row, f"frame {frame} of {row.name} has no step after it; those are 0 to {last - 1}")
        return frame, frame + 1
    return frame_range(row, "from_frame", "to_frame", last)


def frame_range(row: Row, start: str, end: str, last: int) -> tuple[int, int]:
    """Two frames, the second after the first, both within the episode."""
    for key in (start, end):
        if not row.has(key):
            raise bad_row(row, f"{key} is missing; it has {', '.join(row.values)}")
    first, stop = integer(row, start), integer(row, end)
    if stop > last or first < 0:
        beyond = stop if stop > last else first
        raise bad_row(row, f"frame {beyond} is beyond {row.name}, whose frames are 0 to {last}")
    if stop <= first:
        raise bad_row(row, f"{end} {stop} must come after {start} {first}")
    return first, stop


def read_outcomes(path: Path | str, episodes: EpisodeSet) -> dict[int, bool]:
    """Whether episodes whose outcome is unknown succeeded: rows with `success` (true, false, yes, no, 1, 0).

    A label that agrees with a recorded outcome is dropped. Raises DataError for one that contradicts it, for an
    aborted episode, and for an episode named twice.
    """
    path = Path(path)
    found: dict[int, bool] = {}
    seen: dict[int, int] = {}
    for row in read_rows(path, episodes, needed=("success",)):
        success = SUCCESS.get(word(row, "success"))
        if success is None:
            raise bad_row(row, f"success {row.values['success']!r} is none of true, false, yes, no, 1, 0")
        if row.episode in seen:
            raise bad_row(row, f"{row.name} is labelled already, by row {seen[row.episode]}")
        seen[row.episode] = row.number
        outcome = episodes[row.episode].outcome
        if outcome is Outcome.UNKNOWN:
            found[row.episode] = success
        elif outcome.label is None or bool(outcome.label) != success:
            raise bad_row(row, f"{row.name} ended in {str(outcome)!r} as recorded; only an unknown outcome can be set")
    return found


def read_preferences(path: Path | str, episodes: EpisodeSet) -> list[Preference]:
    """Pairs: rows with `episode_a`, `episode_b` (numbers or ids) and `preferred` (a, b, tie).

    `from_a`, `to_a`, `from_b`, `to_b` narrow what was shown to parts. Raises DataError for an episode beside itself,
    or beside one of another instruction.
    """
    return list(_preferences(Path(path), episodes))


def _preferences(path: Path, episodes: EpisodeSet) -> Iterator[Preference]:
    for row in read_rows(path, episodes, needed=("episode_a", "episode_b", "preferred"), episode=None):
        preferred = word(row, "preferred")
        if preferred not in PREFERRED:
            raise bad_row(row, f"preferred {row.values['preferred']!r} is none of a, b, tie")
        sides: dict[str, Any] = {side: row.find(f"episode_{side}") for side in ("a", "b")}
        shown: dict[str, Any] = {}
        for side in ("a", "b"):
            if row.has(f"from_{side}") or row.has(f"to_{side}"):
                part = row.of(sides[side])
                last = int(episodes.lengths[part.episode]) - 1
                shown[f"frames_{side}"] = frame_range(part, f"from_{side}", f"to_{side}", last)
        a, b = sides["a"], sides["b"]
        if a == b and shown.get("frames_a") == shown.get("frames_b"):
            raise bad_row(row, "episode_a and episode_b are the same; compare two different ones")
        one, other = episodes[a].instruction, episodes[b].instruction
        if one != other:
            raise bad_row(row, f"the instructions differ ({one!r}, {other!r}); compare episodes of one instruction")
        yield Preference(a=a, b=b, preferred=preferred, **shown)
