"""Episodes that cannot be used: an error at once, or a list of them while the rest is read."""

from __future__ import annotations

from dataclasses import dataclass

from robo_rl.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class BadEpisode:
    """An episode that was left out."""

    number: int  # in its dataset
    episode_id: str
    why: str

    def __str__(self) -> str:
        return f"episode {self.number} ({self.episode_id!r}): {self.why}"


class Damage:
    """What reading finds wrong with single episodes: raises DataError, or with `tolerate` remembers it."""

    def __init__(self, *, tolerate: bool = False) -> None:
        self.tolerate = tolerate
        self.why: dict[int, str] = {}  # number of the episode -> the first thing found

    def found(self, episode: int, why: str, error: str | None = None) -> None:
        """Episode number `episode` cannot be used. `error` is the message where it raises, `why` by default."""
        if not self.tolerate:
            raise DataError(error or why)
        self.why.setdefault(episode, why)


def instruction_fault(text: str) -> str | None:
    """Why a text instructs nobody, or None: it is empty, has no letter, or is a missing value turned into text."""
    words = text.strip()
    if not words:
        return "its instruction is empty"
    if words.lower() in ("nan", "none", "null") or not any(letter.isalpha() for letter in words):
        return f"its instruction is {words!r}"
    return None
