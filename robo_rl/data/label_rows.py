"""Rows of a label file, csv or parquet, and the episodes that they name."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robo_rl.data.dataset import EpisodeSet
from robo_rl.data.tables import read_table
from robo_rl.errors import DataError


class _Names:
    """Episodes of a set by their number in the dataset and by their id."""

    def __init__(self, episodes: EpisodeSet) -> None:
        self.root, self.ids = episodes.root, episodes.episode_ids
        self.by_id = {name: place for place, name in enumerate(self.ids)}
        one_dataset = len(set(episodes.numbers.tolist())) == len(episodes)
        self.by_number = {int(number): place for place, number in enumerate(episodes.numbers)} if one_dataset else {}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a label file. `episode` is the place in the set of the episode that it is about, -1 for none."""

    path: Path
    number: int  # counted from 1, without the header
    values: Mapping[str, Any]
    names: _Names
    episode: int = -1

    @property
    def name(self) -> str:
        """How a message calls the episode."""
        return f"episode {self.names.ids[self.episode]!r}"

    def has(self, key: str) -> bool:
        value = self.values.get(key)
        return value is not None and str(value).strip() != ""

    def of(self, episode: int) -> Row:
        """The same row, about another episode."""
        return replace(self, episode=episode)

    def find(self, key: str) -> int:
        """Place in the set of the episode that `key` names: by number, or by id; `episode_id` by id alone."""
        value = self.values[key]
        if not self.has(key):
            raise bad_row(self, f"{key} is empty; name an episode by its number or id")
        text, number = str(value).strip(), _whole(value)
        if key != "episode_id" and number is not None and number in self.names.by_number:
            return self.names.by_number[number]
        if text in self.names.by_id:
            return self.names.by_id[text]
        count = len(self.names.ids)
        raise bad_row(self, f"{key} {text}: no such episode; {self.names.root} has {count} ({_some(self.names)})")


def _some(names: _Names) -> str:
    first, last = names.ids[0], names.ids[-1]
    numbers = f"numbers {min(names.by_number)} to {max(names.by_number)}, " if names.by_number else ""
    return f"{numbers}ids {first!r} to {last!r}"


def bad_row(row: Row, what: str) -> DataError:
    """The error to raise about a row."""
    return DataError(f"{row.path}: row {row.number}: {what}")


def word(row: Row, key: str) -> str:
    """A cell as a lower-case word; whole numbers without a fraction, True and False as true and false."""
    value = row.values[key]
    number = None if isinstance(value, bool) else _whole(value)
    return str(value if number is None else number).strip().lower()


def integer(row: Row, key: str) -> int:
    """A cell as a whole number."""
    number = _whole(row.values[key])
    if number is None:
        raise bad_row(row, f"{key} must be a whole number, got {row.values[key]!r}")
    return number


def _whole(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None


def read_rows(
    path: Path, episodes: EpisodeSet, *, needed: Sequence[str], episode: str | None = "episode_index"
) -> Iterator[Row]:
    """Rows of a csv or parquet file. With `episode`, each is about the episode of that column, or of `episode_id`.

    Raises DataError when the file is missing, empty or of another kind, when a column is missing, or when a cell
    that is needed is empty.
    """
    columns, rows = _load(path)
    missing = [key for key in needed if key not in columns]
    if episode is not None and episode not in columns and "episode_id" not in columns:
        missing.append(f"{episode}' or 'episode_id")
    if missing:
        raise DataError(f"{path}: column '{missing[0]}' is missing; the file has {', '.join(columns) or 'none'}")
    if not rows:
        raise DataError(f"{path}: there are no rows")
    names = _Names(episodes)
    for number, values in enumerate(rows, start=1):
        row = Row(path=path, number=number, values=values, names=names)
        for key in needed:
            if not row.has(key):
                raise bad_row(row, f"{key} is empty")
        if episode is not None:
            row = row.of(row.find("episode_id" if row.has("episode_id") else episode))
        yield row


def _load(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    match path.suffix.lower():
        case ".parquet":
            table = read_table(path)
            return table.column_names, table.to_pylist()
        case ".csv":
            return _csv(path)
    raise DataError(f"{path}: labels are a .csv or a .parquet file")


def _csv(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle, skipinitialspace=True, strict=True)
            columns, rows = list(reader.fieldnames or ()), list(reader)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not readable as csv ({error})") from None
    for number, row in enumerate(rows, start=1):
        if None in row:
            raise DataError(f"{path}: row {number}: it has more cells than the header has names")
    return columns, rows
