"""What an episode teaches a judge, from time and outcome alone: never from the simulator's ground truth.

Progress comes from episodes that succeeded: the share of the way still to go, counted in steps in which something
moved. It is a target for a regression over many episodes: states, not clocks, are what they have in common, so
what the judge learns falls when a state is undone although each single target only rises [O].
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from robo_rl.types import Controller, Trajectory

UNLABELLED = -2  # a step that nobody labelled
STILL = 0.2  # a step that changes the pictures less than this share of the median step counts as standing still


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeTargets:
    """Labels of one episode's T + 1 observations."""

    progress: np.ndarray  # float32 (T+1,); NaN where the episode says nothing about progress
    still: np.ndarray  # bool (T,): steps in which nothing moves
    outcome: float  # label of the final observation: 1, 0, or NaN for none
    by_policy: np.ndarray  # bool (T+1,): frames whose success probability the episode's outcome teaches
    incomplete: bool  # certainly never complete: an episode that did not succeed
    direction: np.ndarray | None = None  # int8 (T,): +1, 0, -1 as a person labelled the steps, UNLABELLED elsewhere


Part = tuple[int, int, int]  # episode, first and last frame; last -1: to the end


@dataclass(frozen=True, kw_only=True)
class HumanLabels:
    """What people said of episodes, by their number in the set that is fitted to."""

    direction: Mapping[int, np.ndarray] = field(default_factory=dict)  # int8 (T,) tri-state of steps, or UNLABELLED
    boundaries: Mapping[int, np.ndarray] = field(default_factory=dict)  # int64 (K+1,) rising frames: K sub-tasks
    success: Mapping[int, bool] = field(default_factory=dict)  # outcome of episodes that have none
    preferences: Sequence[tuple[Part, Part]] = ()  # (better, worse) parts of episodes of one instruction

    def select(self, numbers: np.ndarray) -> HumanLabels:
        """The labels of some episodes, renumbered 0, 1, ..."""
        place = {int(number): n for n, number in enumerate(numbers)}
        return HumanLabels(
            direction={place[e]: v for e, v in self.direction.items() if e in place},
            boundaries={place[e]: v for e, v in self.boundaries.items() if e in place},
            success={place[e]: v for e, v in self.success.items() if e in place},
            preferences=[
                ((place[a[0]], *a[1:]), (place[b[0]], *b[1:]))
                for a, b in self.preferences
                if a[0] in place and b[0] in place
            ],
        )


def boundary_progress(boundaries: np.ndarray, frames: int) -> np.ndarray:
    """Progress from sub-task boundaries: K + 1 rising frames -> float32 (frames,) in [0, 1] (METHODS 4).

    Boundary i has progress i / K; frames between are interpolated; 0 before the first, 1 from the last on.
    """
    share = np.arange(len(boundaries)) / (len(boundaries) - 1)
    return np.interp(np.arange(frames), boundaries, share).astype(np.float32)


def thinned(targets: EpisodeTargets, frames: np.ndarray) -> EpisodeTargets:
    """Targets of some rising frames, the first and the last among them. A step between them is still if all its
    steps are, and has a person's label if one sign is all that was given for them."""
    if len(frames) == len(targets.progress):
        return targets
    spans = list(itertools.pairwise(frames))
    direction = None
    if targets.direction is not None:
        given = [np.unique(part[part != UNLABELLED]) for a, b in spans for part in [targets.direction[a:b]]]
        direction = np.array([d[0] if len(d) == 1 else UNLABELLED for d in given], dtype=np.int8)
    return EpisodeTargets(
        progress=targets.progress[frames],
        still=np.array([targets.still[a:b].all() for a, b in spans], dtype=bool),
        outcome=targets.outcome,
        by_policy=targets.by_policy[frames],
        incomplete=targets.incomplete,
        direction=direction,
    )


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


def episode_targets(episodes: Sequence[Trajectory], labels: HumanLabels | None = None) -> list[EpisodeTargets]:
    """Labels of all episodes; "usual" is the upper quartile of active steps of the successes of the same task.

    A person's sub-task boundaries take the place of the progress that time gives, a person's outcome that of a
    missing one.
    """
    labels = labels or HumanLabels()
    still = [still_steps(picture_change(episode.images)) for episode in episodes]
    usual = _usual_length(episodes, still)
    any_policy = any((episode.controller == Controller.POLICY).any() for episode in episodes)
    found = []
    for number, (episode, steps) in enumerate(zip(episodes, still, strict=True)):
        outcome = episode.outcome.label if episode.outcome.label is not None else labels.success.get(number)
        if number in labels.boundaries:
            progress = boundary_progress(labels.boundaries[number], len(episode) + 1)
        elif outcome:
            progress = remaining_progress(steps, usual.get(episode.task, np.inf))
        else:
            progress = np.full(len(episode) + 1, np.nan, np.float32)
        found.append(
            EpisodeTargets(
                progress=progress,
                still=steps,
                outcome=np.nan if outcome is None else float(outcome),
                by_policy=_outcome_frames(episode, any_policy),
                incomplete=outcome is not None and not outcome,
                direction=labels.direction.get(number),
            )
        )
    return found


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
