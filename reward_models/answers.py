"""Answers of a language model: as tokens whose probabilities are read, and as text that is parsed.

What cannot be parsed is None, an abstention; it is never turned into a number.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robo_rl.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """Given answers as tokens: `shared` ones that all begin with, then the `branches` where they part."""

    shared: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]

    @property
    def part_at_once(self) -> bool:
        """Whether the first token of each branch is its own, so that one look at the logits tells all options apart."""
        return len({branch[0] for branch in self.branches}) == len(self.branches)


def tokenised(tokenizer: Any, start: str, options: Sequence[str]) -> Options:
    """The options as they continue `start`, tokenised together with it, because a space may belong to either.

    Raises ConfigError where two options are the same tokens or one continues another ("1" and "10"): then the
    probability of the shorter would contain that of the longer. A closing sign ("1%" and "10%") parts them.
    """
    if len(options) < 2:
        raise ConfigError(f"at least two answers are needed to choose from, got {list(options)}")
    rows = [list(tokenizer(start + option, add_special_tokens=False)["input_ids"]) for option in options]
    common = 0
    while all(len(row) > common and row[common] == rows[0][common] for row in rows):
        common += 1
    branches = tuple(tuple(row[common:]) for row in rows)
    for (n, first), (m, second) in itertools.permutations(enumerate(branches), 2):
        if second[: len(first)] == first:
            raise ConfigError(
                f"the answers {options[n]!r} and {options[m]!r} cannot be told apart: with this tokenizer one begins "
                "with the other; end them with a sign of their own, such as '%'"
            )
    return Options(tuple(rows[0][:common]), branches)


def distribution(log_p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(..., options) log-probabilities -> shares of the options (..., options), and what they hold together (...).

    The second is small where the model would rather say something else. Where the options were told apart by their
    first token, it counts everything that begins with these tokens.
    """
    log_p = np.asarray(log_p, dtype=np.float64)
    top = log_p.max(-1, keepdims=True)
    weight = np.exp(log_p - top)
    total = weight.sum(-1, keepdims=True)
    return weight / total, np.minimum(np.exp(top + np.log(total)), 1.0)[..., 0]


def mean_and_spread(share: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Expectation and standard deviation of `values` (options,) under `share` (..., options)."""
    mean = share @ values
    variance = (share * (values - mean[..., None]) ** 2).sum(-1)
    return mean, np.sqrt(variance)


# --- text --------------------------------------------------------------------------------------------------------

_LINE = re.compile(r"\bframe\s*#?\s*(\d+)\b[^\d\n]*?(-?\d+(?:\.\d+)?)\s*(?:%|percent|/\s*100\b)?", re.IGNORECASE)
_FRAME_KEYS, _PERCENT_KEYS = ("frame", "index", "id"), ("percent", "percentage", "progress", "completion")


def parse_percentages(text: str, count: int) -> list[float | None]:
    """Shares in [0, 1] of frames 1, ..., `count`; None where the text gives none between 0 % and 100 %.

    Understood are lines "Frame 3: 40%" and JSON, a list of {"frame": 3, "percent": 40} or {"3": 40}. The last word
    about a frame counts.
    """
    found: list[float | None] = [None] * count
    pairs = _from_json(text)
    if not pairs:
        pairs = [(int(frame), float(percent)) for frame, percent in _LINE.findall(text)]
    for frame, percent in pairs:
        if 1 <= frame <= count and 0.0 <= percent <= 100.0:
            found[frame - 1] = percent / 100.0
    return found


def _from_json(text: str) -> list[tuple[int, float]]:
    for opening, closing in (("[", "]"), ("{", "}")):
        first, last = text.find(opening), text.rfind(closing)
        if not 0 <= first < last:
            continue
        try:
            read = json.loads(text[first : last + 1])
        except ValueError:
            continue
        entries = read if isinstance(read, list) else _entries(read)
        pairs = [pair for entry in entries for pair in [_pair(entry)] if pair is not None]
        if pairs:
            return pairs
    return []


def _entries(read: dict[str, Any]) -> Iterable[Any]:
    for value in read.values():
        if isinstance(value, list):
            return value
    numbers = ((re.search(r"\d+", key), value) for key, value in read.items())
    return [{"frame": found.group(), "percent": value} for found, value in numbers if found]


def _pair(entry: Any) -> tuple[int, float] | None:
    if not isinstance(entry, dict):
        return None
    small = {str(key).lower(): value for key, value in entry.items()}
    frame = next((small[key] for key in _FRAME_KEYS if key in small), None)
    percent = next((small[key] for key in _PERCENT_KEYS if key in small), None)
    read_frame, read_percent = (re.search(r"-?\d+(?:\.\d+)?", str(value)) for value in (frame, percent))
    if read_frame is None or read_percent is None:
        return None
    return int(float(read_frame.group())), float(read_percent.group())


def parse_rating(text: str, levels: int) -> int | None:
    """The last "ANSWER: k", 1 <= k <= `levels`, or a text that is nothing but k."""
    found = re.findall(r"answer\s*[:=]\s*\**\s*(\d+)(?![\d.]*\d)", text, re.IGNORECASE)
    alone = re.fullmatch(r"\W*(\d+)\W*", text)
    last = found[-1] if found else alone.group(1) if alone else None
    return int(last) if last is not None and 1 <= int(last) <= levels else None


def parse_choice(text: str, options: Sequence[str]) -> int | None:
    """Which option a text names: the last "ANSWER: option", or else the only one that stands in it as a word."""
    words = "|".join(re.escape(option) for option in options)
    named = re.findall(rf"answer\s*(?:is|[:=])\s*\W*({words})\b", text, re.IGNORECASE)
    found = [named[-1]] if named else sorted(set(re.findall(rf"(?<![\w'])({words})(?![\w'])", text)))
    if len(found) != 1:
        return None
    return [option.lower() for option in options].index(found[0].lower())
