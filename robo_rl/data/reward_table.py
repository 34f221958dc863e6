"""A judge's opinion on disk: one parquet row a frame, beside the dataset and never inside it.

`progress_sparse` is lerobot's name for progress, so its RA-BC weighting reads the table as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.data.dataset import EpisodeSet
from robo_rl.data.tables import read_table
from robo_rl.errors import DataError
from robo_rl.types import RewardSignal

FORMAT = "1"
PROGRESS = "progress_sparse"
TRI_STATE = ("p_progressive", "p_stagnant", "p_regressive")
OPTIONAL = ("success_prob", "uncertainty")


def write_reward_table(
    path: Path | str,
    episodes: EpisodeSet,
    signals: Sequence[RewardSignal],
    *,
    judge: Mapping[str, str],
    extra: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the signals of all episodes, atomically; one row a frame, in the order of the global index.

    `judge` names the judge (`id` is needed; revision, prompt, sampling are kept too). `extra` are further
    columns, (N,). A step has a tri-state, a final observation has none: NaN. Raises DataError when an episode
    is missing, a length does not fit, or only some of the signals have a head.
    """
    path = Path(path)
    _check(path, episodes, signals, judge)
    offset = np.arange(episodes.num_frames) - np.repeat(episodes.first_frame, episodes.lengths)
    columns: dict[str, np.ndarray] = {
        "index": np.arange(episodes.num_frames),
        "episode_index": episodes.episode_of_frame,
        "frame_index": offset,
        PROGRESS: np.concatenate([signal.progress for signal in signals]).astype(np.float32),
    }
    for name in OPTIONAL:
        if parts := _head(path, signals, name):
            columns[name] = np.concatenate(parts).astype(np.float32)
    if parts := _head(path, signals, "tri_state"):
        nothing = np.full((1, 3), np.nan, np.float32)
        stacked = np.concatenate([rows for part in parts for rows in (part, nothing)])
        columns |= {name: stacked[:, place].astype(np.float32) for place, name in enumerate(TRI_STATE)}
    for name, values in (extra or {}).items():
        if name in columns or values.shape != (episodes.num_frames,):
            raise DataError(
                f"{path}: extra column {name!r} must be ({episodes.num_frames},) and have a name of its own, "
                f"got {values.shape}"
            )
        columns[name] = values
    metadata = {
        "robo_rl_format": FORMAT,
        "dataset": episodes.root.resolve().name,
        "dataset_fingerprint": episodes.fingerprint,
        "num_frames": str(episodes.num_frames),
        "reward_model_path": judge["id"],
        **{f"judge_{key}": str(value) for key, value in judge.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _head(path: Path, signals: Sequence[RewardSignal], name: str) -> list[np.ndarray]:
    """What one head said of every episode; [] when the judge lacks the head."""
    parts = [getattr(signal, name) for signal in signals]
    present = [part for part in parts if part is not None]
    if present and len(present) < len(parts):
        lacking = next(signal.episode_id for signal, part in zip(signals, parts, strict=True) if part is None)
        raise DataError(f"{path}: episode {lacking!r} has no {name}, but others do; score all with one judge")
    return present


def _check(path: Path, episodes: EpisodeSet, signals: Sequence[RewardSignal], judge: Mapping[str, str]) -> None:
    if not judge.get("id"):
        raise DataError(f"{path}: judge needs an 'id', got {sorted(judge)}")
    if len(signals) != len(episodes):
        raise DataError(f"{path}: {len(episodes)} episodes but {len(signals)} signals; score every episode")
    for episode, signal in zip(episodes, signals, strict=True):
        if episode.episode_id != signal.episode_id:
            raise DataError(
                f"{path}: episode {episode.episode_id!r} got the signal of {signal.episode_id!r}; keep the order"
            )
        if len(signal.progress) != len(episode) + 1:
            raise DataError(
                f"{path}: episode {episode.episode_id!r} has {len(episode) + 1} frames but "
                f"{len(signal.progress)} were scored"
            )


def read_reward_table(path: Path | str, episodes: EpisodeSet) -> list[RewardSignal]:
    """The signals of all episodes, in order. Raises DataError for a damaged, partial or foreign table."""
    path = Path(path)
    table = read_table(path)
    facts = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items() if key != b"pandas"}
    written = facts.get("robo_rl_format")
    if written != FORMAT:
        what = "not a reward table of robo_rl" if written is None else f"a reward table of format {written}"
        raise DataError(f"{path}: {what}; this needs format {FORMAT}, write one with `robo-rl reward score`")
    missing = [key for key in ("dataset_fingerprint", "judge_id") if key not in facts]
    missing += [name for name in ("index", PROGRESS) if name not in table.column_names]
    if missing:
        raise DataError(f"{path}: {missing[0]!r} is missing from the table; score the dataset again")
    if facts["dataset_fingerprint"] != episodes.fingerprint:
        raise DataError(
            f"{path}: made for dataset {facts.get('dataset', '?')!r} ({facts['dataset_fingerprint'][:12]}), this is "
            f"{episodes.root.resolve().name!r} ({episodes.fingerprint[:12]}); score this one"
        )
    _check_frames(path, table, episodes)
    try:
        return _signals(table, episodes, facts["judge_id"])
    except (DataError, ValueError) as error:
        raise DataError(f"{path}: {error}; score the dataset again") from None


def _check_frames(path: Path, table: pa.Table, episodes: EpisodeSet) -> None:
    index = table["index"].to_numpy()
    count = episodes.num_frames
    if np.array_equal(index, np.arange(count)):
        return
    beyond = index[(index < 0) | (index >= count)]
    if len(beyond):
        raise DataError(f"{path}: frame {beyond[0]} is scored, but the dataset has {count}; score it again")
    times = np.bincount(index.astype(np.int64), minlength=count)
    wrong = np.flatnonzero(times != 1)
    if len(wrong):
        episode = int(episodes.episode_of_frame[wrong[0]])
        where = f"frame {wrong[0] - episodes.first_frame[episode]} of episode {episodes[episode].episode_id!r}"
        how = "is not scored" if times[wrong[0]] == 0 else f"is scored {times[wrong[0]]} times"
        raise DataError(f"{path}: {where} {how} ({len(wrong)} such frames); score the dataset again")
    raise DataError(f"{path}: frames are out of order; sort the table by 'index'")


def _signals(table: pa.Table, episodes: EpisodeSet, judge: str) -> list[RewardSignal]:
    columns = {
        name: table[name].to_numpy().astype(np.float32)
        for name in (PROGRESS, *OPTIONAL, *TRI_STATE)
        if name in table.column_names
    }
    states = [columns[name] for name in TRI_STATE if name in columns]
    if len(states) not in (0, 3):
        raise DataError(f"only {len(states)} of the columns {', '.join(TRI_STATE)} are there")
    tri_state = np.stack(states, axis=1) if states else None
    signals = []
    for number, episode in enumerate(episodes):
        start = episodes.first_frame[number]
        rows = slice(start, start + episodes.lengths[number])
        signals.append(
            RewardSignal(
                episode_id=episode.episode_id,
                model_id=judge,
                progress=columns[PROGRESS][rows],
                success_prob=columns["success_prob"][rows] if "success_prob" in columns else None,
                tri_state=None if tri_state is None else tri_state[rows][:-1],
                uncertainty=columns["uncertainty"][rows] if "uncertainty" in columns else None,
            )
        )
    return signals
