"""What has been scored so far: a folder beside the table that is being made, one small file a group of episodes.

A process may be killed at any moment. Each file appears complete or not at all, so whoever goes on finds out what is
left to do. `head.json` says which judge, which dataset and which division into groups the files belong to.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robo_rl.data.damage import BadEpisode
from robo_rl.data.reward_parts import Piece, read_piece, write_piece
from robo_rl.errors import DataError

HEAD, LOCK = "head.json", "lock"
FORMAT = 1
Say = Callable[[str], None]


class Journal:
    """The unfinished scores of one table. Use it as a context manager: one process at a time may write."""

    def __init__(self, folder: Path, head: Mapping[str, Any], say: Say) -> None:
        """`head` has `judge` (id and what else decides its scores), `dataset` and `division`; JSON values."""
        self.folder, self.say = folder, say
        self.head = {"format": FORMAT, **head}
        self._lock: int | None = None
        self._ours = False
        self._made: list[Path] = []

    def __enter__(self) -> Journal:
        self._make()
        lock = self.folder / LOCK
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise DataError(f"{self.folder}: another process is writing this table; wait for it") from None
        except OSError:  # a file system without locks
            pass
        if not lock.exists():
            os.close(self._lock)
            raise DataError(f"{self.folder}: another process has just finished this table; run the command again")
        return self

    def __exit__(self, *_: object) -> None:
        """Scores stay for the next try; a journal without any is removed, a folder of something else is not."""
        if self._lock is not None:
            os.close(self._lock)
        if not self._ours:
            (self.folder / LOCK).unlink(missing_ok=True)
        elif not any(self._files()):
            self.remove()
            for folder in self._made:
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _make(self) -> None:
        try:
            for parent in [self.folder.parent, *self.folder.parent.parents]:
                if not parent.exists():
                    self._made.append(parent)
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.folder}: cannot be written ({error.strerror}); choose another --out") from None

    # --- what it belongs to ---------------------------------------------------------------------------------

    def known_head(self) -> dict[str, Any] | None:
        """What an earlier process wrote down, None for a new journal. Raises DataError for something else."""
        path = self.folder / HEAD
        try:
            head = json.loads(path.read_text())
        except FileNotFoundError:
            others = [
                entry.name for entry in self.folder.iterdir() if entry.name != LOCK and ".partial-" not in entry.name
            ]
            if others:
                raise DataError(f"{self.folder}: holds {others[0]}, not unfinished scores; remove it") from None
            self._ours = True
            return None
        except ValueError as error:
            raise DataError(f"{path}: cannot be read ({error}); remove the folder") from None
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise DataError(f"{path}: unfinished scores of another version of robo_rl; remove the folder")
        self._ours = True
        return head

    def require_same_judge(self, head: Mapping[str, Any]) -> None:
        """DataError when the scores are of another judge or divided otherwise: they may have taken days."""
        for key, what in (("judge", "another judge"), ("division", "another division into groups")):
            for name in sorted(head[key].keys() | self.head[key].keys()):
                there, here = head[key].get(name), self.head[key].get(name)
                if there != here:
                    raise DataError(
                        f"{self.folder}: unfinished scores of {what}: {name} is {there!r} there, {here!r} here; finish "
                        "them with the same command, remove the folder, or choose another --out"
                    )

    def begin(self) -> None:
        """Write down what the scores belong to."""
        temporary = self.folder / f"{HEAD}.partial-{os.getpid()}"
        temporary.write_text(json.dumps(self.head, indent=1))
        os.replace(temporary, self.folder / HEAD)

    # --- groups -----------------------------------------------------------------------------------------------

    def path(self, group: int) -> Path:
        return self.folder / f"group-{group:06d}.parquet"

    def _files(self) -> Iterator[Path]:
        return self.folder.glob("group-*.parquet")

    def put(
        self,
        group: int,
        rows: Mapping[int, Mapping[str, np.ndarray]],
        facts: Mapping[str, str],
        *,
        seen: Mapping[int, str],
        skipped: Sequence[BadEpisode],
    ) -> None:
        """Keep the scores of a group."""
        if not self.folder.is_dir():  # another process has finished the table
            raise DataError(f"{self.folder}: is gone; somebody removed it while scores were written")
        try:
            write_piece(self.path(group), rows, facts, seen=seen, skipped=skipped)
        except OSError as error:
            raise DataError(f"{self.folder}: scores cannot be written ({error.strerror})") from None

    def get(self, group: int, episodes: Sequence[int]) -> Piece | None:
        """What was kept of a group, None when it must be scored: nothing, a damaged file, or other episodes."""
        path = self.path(group)
        if not path.exists():
            return None
        try:
            piece = read_piece(path)
        except DataError as error:
            self.say(f"{error}; these episodes are scored again")
            return None
        held = sorted([*piece.seen, *(one.number for one in piece.skipped)])
        return piece if held == sorted(episodes) else None

    def drop(self, group: int) -> None:
        self.path(group).unlink(missing_ok=True)

    def remove(self) -> None:
        """The table is complete, or there is nothing to keep. Only what a journal writes is removed."""
        remove_journal(self.folder)


def remove_journal(folder: Path) -> None:
    """Remove what a journal writes, and the folder if nothing else is in it."""
    for pattern in ("group-*.parquet", "*.partial-*", HEAD, LOCK):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
