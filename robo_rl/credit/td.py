"""Targets for a success probability learned by temporal differences (eVTA0). METHODS 2.3, 2.7."""

from __future__ import annotations

from typing import Literal

import numpy as np

from robo_rl.credit.segments import look_ahead
from robo_rl.errors import DataError
from robo_rl.types import Outcome


def td_success_targets(
    p_target: np.ndarray,
    outcome: Outcome,
    *,
    hop: int = 2,
    mc_mix: float = 0.0,
    failure_target: float = 0.0,
    timeout: Literal["failure", "bootstrap"] = "failure",
    segment_ids: np.ndarray | None = None,
    by_policy: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Targets y and mask of one episode's observations: (T+1,) -> float64 (T+1,), bool (T+1,).

        y_t = (1 - m) [d z + (1 - d) p_target(s_{t+n})] + m z

    d = 1 at the last observation only; the look ahead stops there. m = 0, n = 2 is the paper (it appends
    one frame, two frames later); m > 0 and the rules below are ours [O]. y is 0 where the mask is False.

    success: z = 1. failure: z = `failure_target` (0, or the paper's soft target below 0.6).
    timeout: "failure": z = `failure_target`, the probability of success within the horizon; "bootstrap":
        the last observation has no target, the others no share of z.
    abort, unknown: the whole episode is masked: no label may be taken from it.
    A change of controller: the look ahead stops before it, the last row of the segment has no target, and
    only the last segment sees z. Rows driven by somebody else (`by_policy` False) have no target, since p
    is the probability under the policy; the final observation belongs to the last step's controller.

    Args:
        p_target: (T+1,) success probability by the target network.
        segment_ids: (T,) one id for each run of one controller; None: from `by_policy`, or one segment.
        by_policy: (T,) bool; None: all.

    Raises:
        DataError: lengths that do not agree, hop < 1, mc_mix or a probability outside [0, 1].
    """
    p_target = np.asarray(p_target, dtype=np.float64)
    steps = len(p_target) - 1
    policy = np.ones(steps, dtype=bool) if by_policy is None else np.asarray(by_policy, dtype=bool)
    _check(p_target, mc_mix, failure_target, policy)
    if timeout not in ("failure", "bootstrap"):
        raise DataError(f"timeout must be 'failure' or 'bootstrap', got {timeout!r}")
    if outcome in (Outcome.ABORT, Outcome.UNKNOWN):
        return np.zeros(steps + 1), np.zeros(steps + 1, dtype=bool)
    ids = np.zeros(steps, dtype=np.int64) if segment_ids is None else np.asarray(segment_ids)
    if ids.shape != (steps,):
        raise DataError(f"segment ids must be ({steps},), got {ids.shape}")
    changes = (ids[1:] != ids[:-1]) | (policy[1:] != policy[:-1])
    segment = np.concatenate([[0], np.cumsum(changes)])

    reached = np.append(look_ahead(segment, hop, steps), steps)
    label = 1.0 if outcome is Outcome.SUCCESS else failure_target
    labelled = not (outcome is Outcome.TIMEOUT and timeout == "bootstrap")
    target = p_target[reached]
    mask = np.append(policy, policy[-1]) & (reached > np.arange(steps + 1))
    if labelled and policy[-1]:
        target[-1], mask[-1] = label, True
        suffix = np.append(segment == segment[-1], True)
        target[suffix] = (1.0 - mc_mix) * target[suffix] + mc_mix * label
    return np.where(mask, target, 0.0), mask


def _check(p_target: np.ndarray, mc_mix: float, failure_target: float, policy: np.ndarray) -> None:
    if p_target.ndim != 1 or len(p_target) < 2 or policy.shape != (len(p_target) - 1,):
        raise DataError(f"p_target must be (T+1,) and by_policy (T,), got {p_target.shape} and {policy.shape}")
    bad = np.flatnonzero(~((p_target >= 0) & (p_target <= 1)))
    if len(bad):
        raise DataError(f"success probabilities must lie in [0, 1]; frame {bad[0]} has {p_target[bad[0]]}")
    if not (0 <= mc_mix <= 1 and 0 <= failure_target <= 1):
        raise DataError(f"mc_mix and failure_target must lie in [0, 1], got {mc_mix} and {failure_target}")
