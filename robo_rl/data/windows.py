"""What each frame may be used for, decided once from who was in control and how the episode ended.

HABC, section on intervention-aware credit (METHODS 1.4, and our choices in 1.7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robo_rl.credit.kinds import FAILURE_KINDS, SUCCESS_KINDS, WindowKind
from robo_rl.data.dataset import EpisodeSet
from robo_rl.types import Controller, Outcome, Trajectory

__all__ = ["WindowKind", "Windows", "find_windows", "kinds", "segments", "suffix"]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """One row a frame of a dataset (N = all frames, final observations included)."""

    kind: np.ndarray  # int8 (N,), a `WindowKind`; final observations are EXCLUDED
    segment: np.ndarray  # int64 (N,), numbered within the episode; a final observation belongs to the last one
    suffix: np.ndarray  # bool (N,): the policy's, after the last intervention of a mixed episode
    outcome_ok: np.ndarray  # bool (N,): may take the episode's outcome as label
    td_ok: np.ndarray  # bool (N,): the next frame is its successor under the same controller
    actor_ok: np.ndarray  # bool (N,): may be imitated, as far as masks go


def segments(controller: np.ndarray) -> np.ndarray:
    """Maximal runs of one controller, numbered from 0: int8 (T,) -> int64 (T,)."""
    return np.concatenate([[0], np.cumsum(controller[1:] != controller[:-1])]).astype(np.int64)


def _person(controller: np.ndarray) -> np.ndarray:
    return (controller == Controller.HUMAN) | (controller == Controller.SCRIPT)


def suffix(controller: np.ndarray) -> np.ndarray:
    """Steps of the policy after the last intervention: int8 (T,) -> bool (T,). None without an intervention."""
    person = np.flatnonzero(_person(controller))
    after = np.arange(len(controller)) > (person[-1] if len(person) else len(controller))
    return after & (controller == Controller.POLICY)


def kinds(episode: Trajectory) -> np.ndarray:
    """The table of METHODS 1.4 for one episode: int8 (T,), a `WindowKind` of every step.

    Episodes without a step of the policy are demonstrations, unless they are known to have failed: a failed
    demonstration is not imitated. The policy segment after the last intervention carries the outcome; earlier
    ones do not. Pauses and aborted episodes are never used.
    """
    controller, outcome = episode.controller, episode.outcome
    policy, person = controller == Controller.POLICY, _person(controller)
    out = np.full(len(episode), WindowKind.EXCLUDED, dtype=np.int8)
    if outcome is Outcome.ABORT:
        return out
    known = outcome.label is not None
    if not policy.any():
        if episode.success or not known:
            out[person] = WindowKind.DEMO
        return out
    if not person.any():
        if known:
            out[policy] = WindowKind.AUTONOMOUS_SUCCESS if episode.success else WindowKind.AUTONOMOUS_FAILURE
        return out
    after = suffix(controller)
    out[person] = WindowKind.INTERVENTION
    out[policy & ~after] = WindowKind.PRE_INTERVENTION
    if known:
        out[after] = WindowKind.SUFFIX_SUCCESS if episode.success else WindowKind.SUFFIX_FAILURE
    return out


def find_windows(episodes: EpisodeSet) -> Windows:
    """Kinds and masks of all frames of a dataset."""
    size = episodes.num_frames
    kind = np.full(size, WindowKind.EXCLUDED, dtype=np.int8)
    segment = np.zeros(size, dtype=np.int64)
    same, after = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
    for number, episode in enumerate(episodes):
        first, steps = int(episodes.first_frame[number]), len(episode)
        rows = slice(first, first + steps)
        runs = segments(episode.controller)
        kind[rows], segment[rows], after[rows] = kinds(episode), runs, suffix(episode.controller)
        segment[first + steps] = runs[-1]
        same[rows] = np.append(runs[1:] == runs[:-1], True)  # the last step is followed by the final observation
    return Windows(
        kind=kind,
        segment=segment,
        suffix=after,
        outcome_ok=np.isin(kind, SUCCESS_KINDS + FAILURE_KINDS),
        td_ok=same & (kind != WindowKind.EXCLUDED),
        actor_ok=~np.isin(kind, (WindowKind.EXCLUDED, WindowKind.PRE_INTERVENTION)),
    )
