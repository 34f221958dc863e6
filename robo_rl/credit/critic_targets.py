"""What frames may teach the critics, and how they are dealt into folds. METHODS 1.2, 1.4."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from robo_rl.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticArrays:
    """What each of N frames may teach (masks of METHODS 1.4). Frames of an episode lie together, in order."""

    label: np.ndarray  # float (N,): 1 success, 0 failure; not read where outcome_ok is False
    outcome_ok: np.ndarray  # bool (N,): may carry its episode's outcome
    ve_ok: np.ndarray  # bool (N,): may teach the efficiency head
    terminal_success: np.ndarray  # bool (N,): where the V_e target is 0
    next_index: np.ndarray  # int64 (N,): the frame that follows; -1, or the frame itself, for none

    def __post_init__(self) -> None:
        count = len(self.label)
        for item in fields(self):
            if (shape := getattr(self, item.name).shape) != (count,):
                raise DataError(f"critics: {item.name} must be ({count},), got {shape}")
        if not np.isin(self.label[self.outcome_ok], (0, 1)).all():
            raise DataError("critics: label must be 0 or 1 wherever outcome_ok is true")
        bad = np.flatnonzero(
            (self.next_index >= count) | ((self.next_index < np.arange(count)) & ~(self.next_index == -1))
        )
        if len(bad):
            raise DataError(
                f"critics: next_index of frame {bad[0]} must be -1, itself or a later frame below {count}, "
                f"got {self.next_index[bad[0]]}"
            )

    @property
    def followed(self) -> np.ndarray:
        """bool (N,): whether there is a next frame."""
        return self.next_index > np.arange(len(self.label))

    def only(self, keep: np.ndarray) -> CriticArrays:
        """The same frames, of which only `keep` (bool (N,)) teach anything."""
        return replace(self, outcome_ok=self.outcome_ok & keep, ve_ok=self.ve_ok & keep)


def steps_to_success(arrays: CriticArrays) -> np.ndarray:
    """Counted steps to the terminal success step along `next_index`, float64 (N,); NaN where it is not reached."""
    steps = np.where(arrays.terminal_success, 0.0, np.nan)
    # the frame after lies later, so one pass backwards sees it before its predecessor
    for row in np.flatnonzero(~arrays.terminal_success & arrays.followed)[::-1]:
        steps[row] = steps[arrays.next_index[row]] + 1.0
    return steps


def assign_folds(arrays: CriticArrays, episode: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Fold of every frame, int64 (N,): whole episodes, dealt within each kind of outcome.

    Raises:
        DataError: fewer episodes that teach a success's end than folds.
    """
    _, member = np.unique(episode, return_inverse=True)
    count = int(member.max()) + 1
    known, won, ends = (
        np.bincount(member, weights=mask, minlength=count) > 0
        for mask in (
            arrays.outcome_ok,
            arrays.outcome_ok & (arrays.label == 1),
            arrays.terminal_success & arrays.ve_ok,
        )
    )
    if ends.sum() < folds:
        raise DataError(
            f"critics: cross-fitting in {folds} folds needs at least {folds} successful episodes, got {int(ends.sum())}"
        )
    order = rng.permutation(count)
    # equal kinds next to each other, then dealt like cards: no fold is without a success
    order = order[np.argsort((4 * ends + 2 * known + won)[order], kind="stable")]
    fold = np.empty(count, dtype=np.int64)
    fold[order] = np.arange(count) % folds
    return fold[member]
