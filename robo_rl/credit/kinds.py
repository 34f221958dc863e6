"""What a frame may be used for (HABC, METHODS 1.4): the table that credit and data share."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class WindowKind(IntEnum):
    """Where a window comes from. Stored as int8."""

    DEMO = 0  # demonstration, human or scripted
    AUTONOMOUS_SUCCESS = 1  # the policy alone, the episode succeeded
    AUTONOMOUS_FAILURE = 2  # the policy alone, the episode failed or timed out
    PRE_INTERVENTION = 3  # policy segment before or between interventions: no outcome, not imitated
    INTERVENTION = 4  # a person in control
    SUFFIX_SUCCESS = 5  # the last policy segment after the last intervention; the episode succeeded
    SUFFIX_FAILURE = 6
    EXCLUDED = 7  # aborts, pauses, the final observation: nothing may be learned from it


SUCCESS_KINDS = (WindowKind.AUTONOMOUS_SUCCESS, WindowKind.SUFFIX_SUCCESS)
FAILURE_KINDS = (WindowKind.AUTONOMOUS_FAILURE, WindowKind.SUFFIX_FAILURE)


def outcome_labels(kind: np.ndarray) -> np.ndarray:
    """Viability labels, (N,) int8 -> float32 (N,): 1 success, 0 failure, NaN where no label may be taken.

    Only windows that the policy drove to the episode's end carry its outcome. What a policy did before
    a person stepped in caused neither the success nor the failure that followed (METHODS 1.4).
    """
    labels = np.full(np.shape(kind), np.nan, dtype=np.float32)
    labels[np.isin(kind, SUCCESS_KINDS)] = 1.0
    labels[np.isin(kind, FAILURE_KINDS)] = 0.0
    return labels


def efficiency_ok(kind: np.ndarray, episode_success: np.ndarray) -> np.ndarray:
    """Which windows train the efficiency head, (N,) int8, (N,) bool -> (N,) bool (METHODS 1.2, 1.4).

    Successful policy windows, and interventions of episodes that succeeded.
    """
    intervention = (np.asarray(kind) == WindowKind.INTERVENTION) & np.asarray(episode_success, dtype=bool)
    return np.isin(kind, SUCCESS_KINDS) | intervention
