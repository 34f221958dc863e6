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
TRI_STATE = ("p_progressive", "p_stagnant", "p_regressive")


def write_reward_table(
    path: Path | str,
    episodes: EpisodeSet,
    signals: Sequence[RewardSignal],
    *,
    judge: Mapping[str, str],
    extra: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the signals of all episodes, atomically.

    `judge` names the judge (`id` is needed; revision, prompt, sampling are kept too). `extra` are further
    columns, (N,). Raises DataError when an episode is missing or a length does not fit.
    """
    path = Path(path)
    _check(path, episodes, signals)
    offset = np.arange(episodes.num_frames) - np.repeat(episodes.first_frame, episodes.lengths)
    columns: dict[str, np.ndarray] = {
        "index": np.arange(episodes.num_frames),
        "episode_index": episodes.episode_of_frame.astype(np.int64),
        "frame_index": offset,
        "progress_sparse": np.concatenate([signal.progress for signal in signals]).astype(np.float32),
    }
    for name in ("success_prob", "uncertainty"):
        if all(getattr(signal, name) is not None for signal in signals):
            columns[name] = np.concatenate([getattr(signal, name) for signal in signals]).astype(np.float32)
    if all(signal.tri_state is not None for signal in signals):
        nothing = np.full((1, 3), np.nan, np.float32)
        stacked = np.concatenate([part for s in signals for part in (s.tri_state, nothing) if part is not None])
        columns |= {name: stacked[:, place].astype(np.float32) for place, name in enumerate(TRI_STATE)}
    columns |= dict(extra or {})
    metadata = {
        "robo_rl_format": FORMAT,
        "dataset_fingerprint": episodes.fingerprint,
        "num_frames": str(episodes.num_frames),
        "reward_model_path": judge["id"],
        **{f"judge_{key}": str(value) for key, value in judge.items()},
    }
    table = pa.table(columns).replace_schema_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    pq.write_table(table, temporary)
    os.replace(temporary, path)


def _check(path: Path, episodes: EpisodeSet, signals: Sequence[RewardSignal]) -> None:
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
    facts = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    if facts.get("robo_rl_format") != FORMAT:
        raise DataError(f"{path}: not a reward table of this version; write one with `robo-rl reward score`")
    if facts["dataset_fingerprint"] != episodes.fingerprint:
        raise DataError(
            f"{path}: made for another dataset (fingerprint {facts['dataset_fingerprint'][:12]}, this one is "
            f"{episodes.fingerprint[:12]}); score this one again"
        )
    index = table["index"].to_numpy()
    if not np.array_equal(index, np.arange(episodes.num_frames)):
        missing = np.setdiff1d(np.arange(episodes.num_frames), index)
        if len(missing):
            name = episodes[int(episodes.episode_of_frame[missing[0]])].episode_id
            raise DataError(f"{path}: partial: frame {missing[0]} of episode {name!r} is not scored; score it again")
        raise DataError(f"{path}: frames are repeated or out of order; score the dataset again")
    return _signals(table, episodes, facts["judge_id"])


def _signals(table: pa.Table, episodes: EpisodeSet, judge: str) -> list[RewardSignal]:
    def read(name: str) -> np.ndarray | None:
        return table[name].to_numpy().astype(np.float32) if name in table.column_names else None

    progress, success, uncertainty = read("progress_sparse"), read("success_prob"), read("uncertainty")
    parts = [read(name) for name in TRI_STATE]
    tri_state = None if any(part is None for part in parts) else np.stack([p for p in parts if p is not None], 1)
    signals = []
    for number, episode in enumerate(episodes):
        rows = slice(episodes.first_frame[number], episodes.first_frame[number] + episodes.lengths[number])
        if progress is None:
            raise DataError("the table has no column 'progress_sparse'")
        signals.append(
            RewardSignal(
                episode_id=episode.episode_id,
                model_id=judge,
                progress=progress[rows],
                success_prob=None if success is None else success[rows],
                tri_state=None if tri_state is None else tri_state[rows][:-1],
                uncertainty=None if uncertainty is None else uncertainty[rows],
            )
        )
    return signals
