"""One pass over the numbers of a dataset: totals, what each episode comes to, and a bounded sample of whole rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from robo_rl.data import layout, tables
from robo_rl.data.doctor_read import Reader, Recording, Rows
from robo_rl.data.tables import EpisodeFacts
from robo_rl.data.windows import segments
from robo_rl.errors import DataError
from robo_rl.types import Controller

KEPT_ROWS = 50_000  # rows that quantiles are taken of
SAMPLE_NUMBERS = 1_000_000  # numbers of the episodes that are kept for what needs whole episodes: 4 MB
SAMPLE_EPISODES = 256
LATE = 0.2  # of a frame: timestamps off by more are wrong


class Moments:
    """Count, mean, spread, least, greatest and a thinned copy of rows that come in pieces (Chan et al. 1979)."""

    def __init__(self, width: int) -> None:
        self.count, self.rows = 0, 0
        self.mean, self._squares = np.zeros(width), np.zeros(width)
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)
        self._kept: list[np.ndarray] = []
        self._stride, self._held = 1, 0

    def add(self, rows: np.ndarray) -> None:
        """float (N, D); rows that are not finite are left out."""
        rows = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)
        if not len(rows):
            return
        total = self.count + len(rows)
        mean = rows.mean(0)
        shift = mean - self.mean
        self._squares += ((rows - mean) ** 2).sum(0) + shift**2 * self.count * len(rows) / total
        self.mean += shift * len(rows) / total
        self.low, self.high = np.minimum(self.low, rows.min(0)), np.maximum(self.high, rows.max(0))
        self._keep(rows)
        self.count = total

    def _keep(self, rows: np.ndarray) -> None:
        kept = rows[(-self.count) % self._stride :: self._stride].astype(np.float32)
        self._kept.append(kept)
        self._held += len(kept)
        if self._held > KEPT_ROWS:
            self._kept, self._stride = [self.sample[::2]], 2 * self._stride
            self._held = len(self._kept[0])

    @property
    def sample(self) -> np.ndarray:
        """float32 (at most KEPT_ROWS, D): every n-th row."""
        return np.concatenate(self._kept) if self._kept else np.zeros((0, len(self.mean)), np.float32)

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self._squares / max(self.count, 1))

    @property
    def span(self) -> np.ndarray:
        return self.high - self.low if self.count else np.zeros(len(self.mean))


@dataclass(kw_only=True)
class EpisodeNumbers:
    """What one episode's rows come to."""

    digest: bytes  # of actions and states
    action_low: np.ndarray  # float32 (A,)
    action_high: np.ndarray
    state_low: np.ndarray  # float32 (S,)
    state_high: np.ndarray
    late: float  # frames by which a timestamp is off at most; NaN where there are none
    step: float  # median seconds between timestamps
    reward: float | None  # greatest, NaN when one is not finite, None without rewards
    sparse: bool  # rewards are 0 and 1 only
    success: int | None  # first row with success; -1 for none, None without the column
    done: int | None
    by_policy: bool
    mixed: bool
    flicker: int  # shortest stretch of one controller between two others, in steps; 0 for none
    task: int | None  # task_index; -1 when it changes
    frame_index: bool  # counts 0, 1, 2, ...
    beyond: int  # steps with an action outside [-1, 1]


@dataclass(kw_only=True)
class Scan:
    """The whole dataset in numbers."""

    recording: Recording
    facts: list[EpisodeFacts]
    episodes: Mapping[int, EpisodeNumbers]  # of those that could be read
    action: Moments  # without final rows
    state: Moments
    rows: Mapping[str, Moments]  # "action", "observation.state": all rows, as meta/stats.json counts them
    sample: list[Rows]  # whole episodes, evenly spread
    windows: Mapping[int, np.ndarray]  # episode -> states of the frames that will be decoded
    is_ours: bool
    columns: frozenset[str]

    @property
    def good(self) -> list[int]:
        """Numbers of the episodes that can be used."""
        return [number for number in self.episodes if number not in self.recording.damage.why]

    def name(self, number: int) -> str:
        return self.facts[number].episode_id

    @property
    def is_unactuated(self) -> bool:
        """Videos alone, as `robo-rl import` makes them of recordings without actions: one action that is always 0."""
        return len(self.action.mean) == 1 and not self.action.low.any() and not self.action.high.any()


@dataclass(kw_only=True)
class _Totals:
    action: Moments
    state: Moments
    rows: dict[str, Moments]
    episodes: dict[int, EpisodeNumbers] = field(default_factory=dict)
    sample: list[Rows] = field(default_factory=list)
    windows: dict[int, np.ndarray] = field(default_factory=dict)
    columns: set[str] = field(default_factory=set)


def scan(recording: Recording, windows: Mapping[int, slice]) -> Scan:
    """Read all numbers once. `windows`: which rows of which episodes to keep the states of.

    Raises DataError where data/ and meta/ do not belong together.
    """
    totals: _Totals | None = None
    width = recording.width("action") + recording.width("observation.state")
    numbers = int(recording.lengths.sum()) * width
    every, room = max(1, -(-len(recording) // SAMPLE_EPISODES), -(-numbers // SAMPLE_NUMBERS)), SAMPLE_NUMBERS
    for rows in Reader(recording):
        widths = {"action": rows.action.shape[1], "observation.state": rows.state.shape[1]}
        if totals is None:
            made = {key: Moments(width) for key, width in widths.items()}
            totals = _Totals(action=Moments(widths["action"]), state=Moments(widths["observation.state"]), rows=made)
        _count(totals, rows, recording)
        if rows.number in windows:
            totals.windows[rows.number] = rows.state[windows[rows.number]].copy()
        size = len(rows) * sum(widths.values())
        if rows.number % every == 0 and size <= room and rows.number not in recording.damage.why:
            totals.sample.append(replace(rows, columns={}))
            room -= size
    if totals is None:
        raise DataError(f"{recording.root}: data/ holds no whole episode; copy the dataset again")
    is_ours = layout.FINAL in totals.columns
    return Scan(
        recording=recording,
        facts=_facts(recording, totals, is_ours),
        episodes=totals.episodes,
        action=totals.action,
        state=totals.state,
        rows=totals.rows,
        sample=totals.sample,
        windows=totals.windows,
        is_ours=is_ours,
        columns=frozenset(totals.columns),
    )


def _count(totals: _Totals, rows: Rows, recording: Recording) -> None:
    for name, values in (("action", rows.action), ("observation.state", rows.state)):
        bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(bad):
            recording.damage.found(rows.number, f"{name} is not finite at frame {bad[0]}")
    totals.action.add(rows.action[:-1])
    totals.state.add(rows.state)
    totals.rows["action"].add(rows.action)
    totals.rows["observation.state"].add(rows.state)
    totals.columns |= set(rows.columns)
    totals.episodes[rows.number] = _numbers(rows, recording.fps)


def _numbers(rows: Rows, fps: float) -> EpisodeNumbers:
    columns, steps = rows.columns, len(rows) - 1
    actions = rows.action[:-1] if steps else rows.action
    controller = _controller(columns, steps)
    stretches = np.diff(np.flatnonzero(np.diff(segments(controller)))) if steps else np.zeros(0)
    late, step = _clock(columns.get("timestamp"), fps)
    reward = columns.get("next.reward")
    task = columns.get("task_index")
    frame = columns.get("frame_index")
    has_state = bool(rows.state.shape[1])
    return EpisodeNumbers(
        digest=hashlib.blake2b(actions.tobytes() + rows.state.tobytes(), digest_size=16).digest(),
        action_low=actions.min(0),
        action_high=actions.max(0),
        state_low=rows.state.min(0) if has_state else np.zeros(0, np.float32),
        state_high=rows.state.max(0) if has_state else np.zeros(0, np.float32),
        late=late,
        step=step,
        reward=None if reward is None else float(np.max(reward)) if np.isfinite(reward).all() else np.nan,
        sparse=reward is not None and bool(np.isin(reward, (0, 1)).all()),
        success=_first(columns.get("next.success")),
        done=_first(columns.get("next.done")),
        by_policy=bool((controller == Controller.POLICY).any()),
        mixed=bool(steps and np.ptp(controller) > 0),
        flicker=int(stretches.min()) if len(stretches) else 0,
        task=None if task is None else int(task[0]) if (task == task[0]).all() else -1,
        frame_index=frame is None or np.array_equal(frame, np.arange(len(rows))),
        beyond=int((np.abs(actions) > 1.0 + 1e-6).any(axis=1).sum()),
    )


def _controller(columns: dict[str, np.ndarray], steps: int) -> np.ndarray:
    ours, intervention = columns.get(layout.CONTROLLER), columns.get("intervention")
    return tables._controllers(ours, intervention, steps + 1)[:steps]


def _first(flags: np.ndarray | None) -> int | None:
    if flags is None:
        return None
    rows = np.flatnonzero(flags.astype(bool))
    return int(rows[0]) if len(rows) else -1


def _clock(times: np.ndarray | None, fps: float) -> tuple[float, float]:
    """(frames by which a timestamp is off at most, median seconds between two)."""
    if times is None:
        return np.nan, np.nan
    times = times.astype(np.float64)
    off = np.abs(times - np.arange(len(times)) / fps) * fps
    worst = float(off.max()) if np.isfinite(off).all() else np.inf
    return worst, float(np.median(np.diff(times))) if len(times) > 1 else np.nan


def _facts(recording: Recording, totals: _Totals, is_ours: bool) -> list[EpisodeFacts]:
    """As `read_episodes` finds them, from one row an episode."""
    ours = tables._our_facts(recording.root, len(recording))
    if ours:
        pairs = zip(recording.rows, ours, strict=True)
        return [tables._known(recording.root, row, known) for row, known in pairs]
    read = [totals.episodes.get(number) for number in range(len(recording))]
    columns = tables.Columns(
        state=np.zeros((len(read), 0), np.float32),
        action=np.zeros((len(read), 1), np.float32),
        controller=np.zeros(len(read), np.int8),
        reward=_column(read, "reward", "next.reward", totals),
        progress=None,
        success=_flags(read, "success", "next.success", totals),
        done=_flags(read, "done", "next.done", totals),
        episode=np.arange(len(read)),
        is_ours=is_ours,
    )
    sparse = columns.reward is not None and bool(columns.reward.any()) and all(one.sparse for one in read if one)
    return [
        tables._guessed(recording.root, row, columns, slice(number, number + 1), sparse=sparse)
        for number, row in enumerate(recording.rows)
    ]


def _column(read: list[EpisodeNumbers | None], name: str, key: str, totals: _Totals) -> np.ndarray | None:
    if key not in totals.columns:
        return None
    return np.array([(getattr(one, name) or 0.0) if one else 0.0 for one in read], np.float32)


def _flags(read: list[EpisodeNumbers | None], name: str, key: str, totals: _Totals) -> np.ndarray | None:
    """Does an episode have a row with this flag?"""
    if key not in totals.columns:
        return None
    values = [getattr(one, name) if one else None for one in read]
    return np.array([value is not None and value >= 0 for value in values])
