"""What each frame may be used for, decided once from who was in control and how the episode ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robo_rl.credit.kinds import WindowKind
from robo_rl.data.dataset import EpisodeSet
from robo_rl.types import Controller, Outcome, Trajectory


@dataclass(frozen=True, kw_only=True)
class Windows:
    """One row a frame of a dataset (N = all frames, final observations included)."""

    kind: np.ndarray  # int8 (N,), a `WindowKind`; final observations are EXCLUDED
    segment: np.ndarray  # int64 (N,), numbered within the episode; a final observation belongs to the last one
    outcome_ok: np.ndarray  # bool (N,): may take the episode's outcome as label
    td_ok: np.ndarray  # bool (N,): the next frame is its successor under the same controller
    actor_ok: np.ndarray  # bool (N,): may be imitated, as far as masks go


def segments(controller: np.ndarray) -> np.ndarray:
    """Maximal runs of one controller, numbered from 0: int8 (T,) -> int64 (T,)."""
    return np.concatenate([[0], np.cumsum(controller[1:] != controller[:-1])])


def kinds(episode: Trajectory) -> np.ndarray:
    """The table of METHODS 1.4 for one episode: int8 (T,).

    Episodes without a step of the policy are demonstrations, if they succeeded or nothing is known of
    their end. The policy segment after the last intervention carries the outcome; earlier ones do not.
    """
    steps = len(episode)
    controller = episode.controller
    policy = controller == Controller.POLICY
    person = (controller == Controller.HUMAN) | (controller == Controller.SCRIPT)
    out = np.full(steps, WindowKind.EXCLUDED, dtype=np.int8)
    if episode.outcome is Outcome.ABORT:
        return out
    if not policy.any():
        out[person] = WindowKind.DEMO
        return out
    known = episode.outcome.label is not None
    success = episode.success
    if not person.any():
        if known:
            out[policy] = WindowKind.AUTONOMOUS_SUCCESS if success else WindowKind.AUTONOMOUS_FAILURE
        return out
    last_person = int(np.flatnonzero(person)[-1])
    before = np.arange(steps) < last_person
    out[person] = WindowKind.INTERVENTION
    out[policy & before] = WindowKind.PRE_INTERVENTION
    if known:
        out[policy & ~before] = WindowKind.SUFFIX_SUCCESS if success else WindowKind.SUFFIX_FAILURE
    return out


def find_windows(episodes: EpisodeSet) -> Windows:
    """Kinds and masks of all frames of a dataset."""
    size = episodes.num_frames
    kind = np.full(size, WindowKind.EXCLUDED, dtype=np.int8)
    segment = np.zeros(size, dtype=np.int64)
    same = np.zeros(size, dtype=bool)
    for number, episode in enumerate(episodes):
        first, steps = int(episodes.first_frame[number]), len(episode)
        kind[first : first + steps] = kinds(episode)
        runs = segments(episode.controller)
        segment[first : first + steps] = runs
        segment[first + steps] = runs[-1]
        same[first : first + steps] = np.append(runs[1:] == runs[:-1], True)
    labelled = (
        WindowKind.AUTONOMOUS_SUCCESS,
        WindowKind.AUTONOMOUS_FAILURE,
        WindowKind.SUFFIX_SUCCESS,
        WindowKind.SUFFIX_FAILURE,
    )
    return Windows(
        kind=kind,
        segment=segment,
        outcome_ok=np.isin(kind, labelled),
        td_ok=same & (kind != WindowKind.EXCLUDED),
        actor_ok=~np.isin(kind, (WindowKind.EXCLUDED, WindowKind.PRE_INTERVENTION)),
    )
