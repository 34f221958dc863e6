"""What an episode teaches a judge, from time and outcome alone: never from the simulator's ground truth.

Progress comes from episodes that succeeded: the share of the way still to go, counted in steps in which something
moved. It is a target for a regression over many episodes: states, not clocks, are what they have in common, so
what the judge learns falls when a state is undone although each single target only rises [O].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robo_rl.types import Controller, Outcome, Trajectory

STILL = 0.2  # a step that changes the pictures less than this share of the median step counts as standing still


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeTargets:
    """Labels of one episode's T + 1 observations."""

    progress: np.ndarray  # float32 (T+1,); NaN where the episode says nothing about progress
    still: np.ndarray  # bool (T,): steps in which nothing moves
    outcome: float  # label of the final observation: 1, 0, or NaN for none
    by_policy: np.ndarray  # bool (T+1,): frames whose success probability the episode's outcome teaches
    incomplete: bool  # certainly never complete: an episode that did not succeed


def picture_change(images: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean absolute change of the pictures over each step, all cameras: float32 (T,)."""
    total: np.ndarray | float = 0.0
    for frames in images.values():
        # every second pixel is plenty, and int16 holds the differences
        small = np.asarray(frames[:, ::2, ::2]).astype(np.int16)
        total = total + np.abs(np.diff(small, axis=0)).mean((1, 2, 3), dtype=np.float32)
    return np.asarray(total, dtype=np.float32)


def still_steps(change: np.ndarray) -> np.ndarray:
    """bool (T,): steps with a small share of the median change; none where the median step changes nothing."""
    return change < STILL * np.median(change)


def active_steps(still: np.ndarray) -> int:
    """Number of steps in which something moves, at least 1."""
    return max(1, int((~still).sum()))


def remaining_progress(still: np.ndarray, usual: float) -> np.ndarray:
    """1 - active steps still to go / min(all active steps, `usual`), in [0, 1]: bool (T,) -> float32 (T+1,).

    Counted from the end, because episodes that succeed agree there: with time / length, the same state would have
    another target in every episode. An episode longer than usual starts with a stretch of 0.
    """
    to_go = np.append(np.cumsum(~still[::-1])[::-1], 0)
    scale = max(1.0, min(float(active_steps(still)), usual))
    return np.clip(1.0 - to_go / scale, 0.0, 1.0).astype(np.float32)


def episode_targets(episodes: Sequence[Trajectory]) -> list[EpisodeTargets]:
    """Labels of all episodes; "usual" is the upper quartile of active steps of the successes of the same task."""
    still = [still_steps(picture_change(episode.images)) for episode in episodes]
    usual = _usual_length(episodes, still)
    any_policy = any((episode.controller == Controller.POLICY).any() for episode in episodes)
    return [
        EpisodeTargets(
            progress=(
                remaining_progress(steps, usual[episode.task])
                if episode.success
                else np.full(len(episode) + 1, np.nan, np.float32)
            ),
            still=steps,
            outcome=np.nan if episode.outcome.label is None else episode.outcome.label,
            by_policy=_outcome_frames(episode, any_policy),
            incomplete=episode.outcome in (Outcome.FAILURE, Outcome.TIMEOUT),
        )
        for episode, steps in zip(episodes, still, strict=True)
    ]


def _usual_length(episodes: Sequence[Trajectory], still: Sequence[np.ndarray]) -> dict[str, float]:
    lengths: dict[str, list[int]] = {}
    for episode, steps in zip(episodes, still, strict=True):
        if episode.success:
            lengths.setdefault(episode.task, []).append(active_steps(steps))
    return {task: float(np.percentile(values, 75)) for task, values in lengths.items()}


def _outcome_frames(episode: Trajectory, any_policy: bool) -> np.ndarray:
    """Frames whose success probability the outcome teaches: the last segment, if the policy drives it (METHODS 1.4).

    The probability is the policy's: demonstrations say nothing about it but that their last frame is a success. Where
    no policy acted at all, whoever did is the one whose success is judged.
    """
    if not any_policy:
        return np.ones(len(episode) + 1, dtype=bool)
    others = np.append(episode.controller, episode.controller[-1]) != Controller.POLICY
    taught = np.arange(len(others)) > (np.flatnonzero(others)[-1] if others.any() else -1)
    return np.asarray(taught)
