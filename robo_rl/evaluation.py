"""Results of an evaluation: success with intervals, and paired comparison on the same initial states."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robo_rl.errors import DataError
from robo_rl.statistics import Estimate, PairedTest, mcnemar_exact, paired_difference_interval, wilson_interval
from robo_rl.types import EpisodeResult, Outcome

FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSummary:
    """What an evaluation says. Aborted episodes are counted and left out of every rate."""

    success: Estimate
    per_task: dict[str, Estimate]
    num_episodes: int
    num_aborted: int
    mean_steps_of_successes: float  # NaN without a success
    seconds_per_episode: float  # a worker's time for an episode, not the wall time of the whole

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what is undefined is None."""
        return {
            "success": _estimate_dict(self.success),
            "per_task": {task: _estimate_dict(estimate) for task, estimate in self.per_task.items()},
            "num_episodes": self.num_episodes,
            "num_aborted": self.num_aborted,
            "mean_steps_of_successes": _number(self.mean_steps_of_successes),
            "seconds_per_episode": _number(self.seconds_per_episode),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationResult:
    """Episodes of one policy on the initial states (seed, index), one entry an episode.

    Raises DataError when built with arrays that do not fit together, or with an index twice.
    """

    seed: int
    task: np.ndarray  # str (N,)
    index: np.ndarray  # int64 (N,)
    success: np.ndarray  # bool (N,)
    steps: np.ndarray  # int64 (N,), control steps
    seconds: np.ndarray  # float64 (N,), a worker's time
    aborted: np.ndarray  # bool (N,): the simulator failed, no outcome may be taken
    policy_id: str = ""
    world: str = ""  # what the initial states are of; results of different worlds are never compared

    def __post_init__(self) -> None:
        shape = (len(self.index),)
        for name in ("task", "index", "success", "steps", "seconds", "aborted"):
            if getattr(self, name).shape != shape:
                raise DataError(f"evaluation: {name} must be {shape}, got {getattr(self, name).shape}")
        for name in ("success", "aborted"):
            if getattr(self, name).dtype != np.bool_:
                raise DataError(f"evaluation: {name} must be bool, got {getattr(self, name).dtype}")
        if not shape[0]:
            raise DataError("evaluation: no episodes")
        values, counts = np.unique(self.index, return_counts=True)
        if (counts > 1).any():
            raise DataError(f"evaluation: index {values[counts > 1][0]} occurs more than once")
        both = np.flatnonzero(self.success & self.aborted)
        if len(both):
            raise DataError(f"evaluation: index {self.index[both[0]]} is both a success and aborted")

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def from_episodes(
        cls, results: Sequence[EpisodeResult], *, seed: int, policy_id: str = "", world: str = ""
    ) -> EvaluationResult:
        """From what `robo_rl.rollout.evaluate` gives. `policy_id` defaults to the one in the results."""
        said = {str(result.extra.get("policy_id", "")) for result in results}
        if not policy_id and len(said) > 1:
            raise DataError(f"evaluation: results of several policies: {', '.join(sorted(said))}")
        return cls(
            seed=seed,
            task=np.array([result.task for result in results], dtype=np.str_),
            index=np.array([result.index for result in results], dtype=np.int64),
            success=np.array([result.success for result in results], dtype=bool),
            steps=np.array([result.steps for result in results], dtype=np.int64),
            seconds=np.array([result.seconds for result in results], dtype=np.float64),
            aborted=np.array([result.extra.get("outcome") == Outcome.ABORT for result in results], dtype=bool),
            policy_id=policy_id or "".join(said),
            world=world,
        )

    def summary(self, confidence: float = 0.95) -> EvaluationSummary:
        """Rates with Wilson intervals, overall and for each task."""
        valid = ~self.aborted

        def rate(rows: np.ndarray) -> Estimate:
            return wilson_interval(int(self.success[rows].sum()), int(rows.sum()), confidence)

        return EvaluationSummary(
            success=rate(valid),
            per_task={str(task): rate(valid & (self.task == task)) for task in np.unique(self.task)},
            num_episodes=len(self),
            num_aborted=int(self.aborted.sum()),
            mean_steps_of_successes=float(self.steps[self.success].mean()) if self.success.any() else math.nan,
            seconds_per_episode=float(self.seconds.mean()),
        )

    def save(self, path: Path) -> None:
        """Write JSON: the summary for people, the arrays for `load`. Atomic."""
        content = {
            "format": FORMAT,
            "seed": self.seed,
            "policy_id": self.policy_id,
            "world": self.world,
            "summary": self.summary().as_dict(),
            "episodes": {name: getattr(self, name).tolist() for name in _ARRAYS},
        }
        _write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> EvaluationResult:
        """Read what `save` wrote. Raises DataError naming the file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{path}: no such evaluation") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: not an evaluation that can be read ({error})") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DataError(f"{path}: not an evaluation of format {FORMAT}; evaluate again")
        try:
            arrays = {name: np.array(content["episodes"][name], dtype=dtype) for name, dtype in _ARRAYS.items()}
            return cls(seed=content["seed"], policy_id=content["policy_id"], world=content["world"], **arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: a broken evaluation ({type(error).__name__}: {error})") from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from error


_ARRAYS: dict[str, Any] = {
    "task": np.str_,
    "index": np.int64,
    "success": bool,
    "steps": np.int64,
    "seconds": np.float64,
    "aborted": bool,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two policies on the same initial states; pairs with an aborted episode are left out and counted."""

    difference: Estimate  # rate(a) - rate(b), Newcombe's paired interval
    test: PairedTest  # exact McNemar
    rate_a: Estimate
    rate_b: Estimate
    steps_saved: float  # mean of steps(b) - steps(a) where both succeed; NaN without such a pair
    num_pairs: int
    num_dropped: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what is undefined is None."""
        return {
            "difference": _estimate_dict(self.difference),
            "rate_a": _estimate_dict(self.rate_a),
            "rate_b": _estimate_dict(self.rate_b),
            "both": self.test.both,
            "only_a": self.test.only_a,
            "only_b": self.test.only_b,
            "neither": self.test.neither,
            "p_value": _number(self.test.p_value),
            "steps_saved": _number(self.steps_saved),
            "num_pairs": self.num_pairs,
            "num_dropped": self.num_dropped,
        }


def compare(a: EvaluationResult, b: EvaluationResult, confidence: float = 0.95) -> Comparison:
    """Compare `a` with `b`, episode by episode of the same (seed, index).

    Raises DataError unless both are of the same world, seed, indices and tasks: a difference between
    different initial states is not a difference between policies.
    """
    rows_a, rows_b = _paired_rows(a, b)
    valid = ~(a.aborted[rows_a] | b.aborted[rows_b])
    rows_a, rows_b = rows_a[valid], rows_b[valid]
    success_a, success_b = a.success[rows_a], b.success[rows_b]
    both = success_a & success_b
    return Comparison(
        difference=paired_difference_interval(success_a, success_b, confidence),
        test=mcnemar_exact(success_a, success_b),
        rate_a=wilson_interval(int(success_a.sum()), len(success_a), confidence),
        rate_b=wilson_interval(int(success_b.sum()), len(success_b), confidence),
        steps_saved=float((b.steps[rows_b] - a.steps[rows_a])[both].mean()) if both.any() else math.nan,
        num_pairs=len(rows_a),
        num_dropped=int((~valid).sum()),
    )


def _paired_rows(a: EvaluationResult, b: EvaluationResult) -> tuple[np.ndarray, np.ndarray]:
    """Rows of both in the order of the index; DataError where the initial states differ."""
    what = f"{a.policy_id or 'a'} and {b.policy_id or 'b'} were not evaluated on the same initial states"
    for name in ("world", "seed"):
        if getattr(a, name) != getattr(b, name):
            raise DataError(f"{what}: {name} {getattr(a, name)!r} against {getattr(b, name)!r}")
    rows_a, rows_b = np.argsort(a.index), np.argsort(b.index)
    if not np.array_equal(a.index[rows_a], b.index[rows_b]):
        odd = np.setxor1d(a.index, b.index)
        raise DataError(f"{what}: {len(odd)} indices are in one of them only, the first is {odd[0]}")
    differ = np.flatnonzero(a.task[rows_a] != b.task[rows_b])
    if len(differ):
        row_a, row_b = rows_a[differ[0]], rows_b[differ[0]]
        raise DataError(f"{what}: index {a.index[row_a]} is '{a.task[row_a]}' against '{b.task[row_b]}'")
    return rows_a, rows_b


def _estimate_dict(estimate: Estimate) -> dict[str, Any]:
    return {
        "value": _number(estimate.value),
        "low": _number(estimate.low),
        "high": _number(estimate.high),
        "count": estimate.count,
        "reason": estimate.reason,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
