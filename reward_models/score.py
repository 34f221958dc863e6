"""Score a dataset episode by episode, with bounded memory. Writing the reward table is the caller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from robo_rl.errors import DataError, RewardError
from robo_rl.types import RewardModel, RewardSignal, Trajectory

BATCH = 16  # episodes handed to the judge together


def score(
    judge: RewardModel,
    episodes: Sequence[Trajectory],
    *,
    batch_size: int = BATCH,
    progress_callback: Callable[[int, int], None] | None = None,
) -> list[RewardSignal]:
    """An opinion of every episode, in order. Works with any `RewardModel`.

    Raises:
        RewardError: an opinion is missing, of another episode, of the wrong length, or not finite; names the episode.
    """
    signals: list[RewardSignal] = []
    for first in range(0, len(episodes), batch_size):
        batch = [episodes[n] for n in range(first, min(first + batch_size, len(episodes)))]
        try:
            given = judge.score(batch)
        except DataError as error:  # the RewardSignal's own check: it names the episode and the frame
            raise RewardError(str(error)) from None
        if len(given) != len(batch):
            raise RewardError(
                f"{judge.model_id}: {len(batch)} episodes from number {first} on, but {len(given)} opinions"
            )
        for episode, signal in zip(batch, given, strict=True):
            _check(episode, signal)
        signals += given
        if progress_callback is not None:
            progress_callback(len(signals), len(episodes))
    return signals


def _check(episode: Trajectory, signal: RewardSignal) -> None:
    where = f"{signal.model_id}: episode {episode.episode_id!r}"  # a judge may hash its parameters to tell its own
    if signal.episode_id != episode.episode_id:
        raise RewardError(f"{where}: the opinion is about {signal.episode_id!r}; a judge must keep the order")
    if len(signal.progress) != len(episode) + 1:
        raise RewardError(f"{where}: {len(episode) + 1} observations but {len(signal.progress)} opinions")
    if signal.success_prob is not None and not np.all((signal.success_prob >= 0) & (signal.success_prob <= 1)):
        raise RewardError(f"{where}: success probabilities must lie in [0, 1]")
