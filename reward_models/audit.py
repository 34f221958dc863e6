"""Try to fool a judge before it may teach. Works with any `RewardModel`; set, marks and verdict are ours [O].

What is known to fool reward models: a clock instead of progress (still and padded videos), no sense of order
(reversed, shuffled, rewound), scoring the average instead of the end (truncated), ignoring the pictures (blank), and
ignoring the instruction (a wrong one). Facts come on top: it must tell successes from failures, and say so. Further
controls (light, noise, rate, words, views) can only warn. `audit_rows.py` has them all with their marks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from reward_models import metrics
from reward_models.audit_rows import ControlRow, Mark, Verdict, control_rows, final_rows
from reward_models.score import score
from robo_rl.errors import DataError, RewardError
from robo_rl.statistics import Estimate, bootstrap_mean_interval
from robo_rl.types import RewardModel, Trajectory

MIN_EPISODES = 4  # below this a control is not judged, only reported
TOGETHER = 16  # changed episodes that are in memory at once


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRow:
    """One control: what was shown, what came of it, and what is asked."""

    control: str
    what: str  # one plain sentence: what was shown and what a sound judge does
    effect: float  # NaN where it could not be measured
    low: float  # 95 % interval over episodes
    high: float
    num_episodes: int
    rule: str
    verdict: Verdict
    reason: str = ""  # why the effect is NaN


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditReport:
    """All controls of one judge."""

    model_id: str
    rows: tuple[AuditRow, ...]
    seed: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)  # control -> why this data does not allow it

    @property
    def failed(self) -> list[str]:
        """Names of the controls that failed."""
        return [row.control for row in self.rows if row.verdict == "fail"]

    @property
    def verdict(self) -> Verdict:
        """The worst of the rows."""
        verdicts = {row.verdict for row in self.rows}
        return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "pass"

    def to_json(self) -> dict[str, Any]:
        """Plain values; NaN becomes None."""
        rows = [{k: _plain(v) for k, v in asdict(row).items()} for row in self.rows]
        return {
            "model_id": self.model_id,
            "seed": self.seed,
            "verdict": self.verdict,
            "failed": self.failed,
            "rows": rows,
            "left_out": dict(self.left_out),
        }

    @classmethod
    def from_json(cls, text: dict[str, Any]) -> AuditReport:
        """The inverse of `to_json`. Raises DataError when something is missing."""
        try:
            known: list[dict[str, Any]] = [
                {k: math.nan if v is None else v for k, v in row.items()} for row in text["rows"]
            ]
            rows = tuple(AuditRow(**row) for row in known)
            left_out = dict(text.get("left_out", {}))
            return cls(model_id=text["model_id"], seed=text["seed"], rows=rows, left_out=left_out)
        except (KeyError, TypeError) as error:
            raise DataError(f"not an audit: {error}") from None

    def table(self) -> str:
        """For a terminal."""
        lines = [f"audit of {self.model_id}: {self.verdict}"]
        for row in self.rows:
            span = f"[{row.low:+.2f}, {row.high:+.2f}]" if math.isfinite(row.low) else ""
            value = f"{row.effect:+.2f}" if math.isfinite(row.effect) else "undefined"
            lines.append(f"  {row.verdict:<5} {row.control:<22} {value:>9} {span:<16} {row.rule}  ({row.what})")
        lines += [f"  -     {name:<22} left out: {why}" for name, why in self.left_out.items()]
        return "\n".join(lines)


FACTS = {
    "success": Mark(good=0.8, bad=0.6),
    "rise": Mark(good=0.2, bad=0.05),
    "auroc": Mark(good=0.85, bad=0.7),
}


def audit(
    judge: RewardModel, episodes: Sequence[Trajectory], *, seed: int, marks: Mapping[str, Mark] | None = None
) -> AuditReport:
    """Audit a judge on held-out episodes: successes are changed, failures compared.

    Where the judge gives no success probability, its progress takes that place. `marks` replace those of controls
    and facts by name.

    Raises:
        RewardError: no episode has a label, or the judge cannot score one.
    """
    if not any(episode.outcome.label is not None for episode in episodes):
        raise RewardError(f"{judge.model_id}: an audit needs episodes that ended in success or failure")
    trial, own = _Trial(judge, episodes, seed), marks or {}
    rows, left_out = [], {}
    for entry in control_rows(episodes):
        found = trial.compare(entry)
        if entry.optional and found[1] < MIN_EPISODES:
            left_out[entry.name] = found[0].reason
            continue
        rows.append(_row(entry.name, entry.what, found, own.get(entry.name, entry.mark)))
    rows += _facts(trial, FACTS | dict(own))
    return AuditReport(model_id=judge.model_id, rows=tuple(rows), seed=seed, left_out=left_out)


class _Trial:
    """The judge's opinions of the episodes as they are, and of changed ones on demand."""

    def __init__(self, judge: RewardModel, episodes: Sequence[Trajectory], seed: int) -> None:
        self.judge, self.episodes, self.seed = judge, episodes, seed
        self.signals = score(judge, episodes)
        self.successes = [n for n, episode in enumerate(episodes) if episode.success]
        self.failures = [n for n, episode in enumerate(episodes) if episode.outcome.label == 0.0]

    def compare(self, entry: ControlRow) -> tuple[Estimate, int]:
        """Mean effect of a control over the episodes it changes, with its interval."""
        values = []
        numbers = self.failures if entry.of_failures else self.successes
        for first in range(0, len(numbers), TOGETHER):
            pairs = []
            for number in numbers[first : first + TOGETHER]:
                changed = entry.control(self.episodes[number], np.random.default_rng([self.seed, number]))
                if changed is not None:
                    pairs.append((number, changed))
            given = score(self.judge, [changed for _, changed in pairs])
            values += [entry.effect(self.signals[n], signal) for (n, _), signal in zip(pairs, given, strict=True)]
        return self.mean(np.array(values, dtype=np.float64))

    def mean(self, values: np.ndarray) -> tuple[Estimate, int]:
        """Mean of one value an episode; undefined for too few."""
        values = values[np.isfinite(values)]
        if len(values) < MIN_EPISODES:
            reason = f"{len(values)} episodes; needs {MIN_EPISODES}"
            return Estimate(value=math.nan, count=len(values), reason=reason), len(values)
        return bootstrap_mean_interval(values, rng=np.random.default_rng(self.seed)), len(values)


def _facts(trial: _Trial, marks: Mapping[str, Mark]) -> list[AuditRow]:
    final = metrics.final_scores(trial.signals)
    first = np.array([final_rows(signal)[0] for signal in trial.signals])
    rng = np.random.default_rng(trial.seed)
    area = metrics.outcome_auroc(trial.signals, trial.episodes, rng=rng)
    return [
        _row(
            "success",
            "Mean success probability at the end of episodes that succeeded.",
            trial.mean(final[trial.successes]),
            marks["success"],
        ),
        _row(
            "rise",
            "How much the success probability rises from the first to the last frame of episodes that succeeded.",
            trial.mean((final - first)[trial.successes]),
            marks["rise"],
        ),
        _row(
            "auroc",
            "Chance that a success ends with a higher score than a failure; 0.5 is guessing.",
            (area, area.count),
            marks["auroc"],
        ),
    ]


def _row(name: str, what: str, found: tuple[Estimate, int], mark: Mark) -> AuditRow:
    estimate, count = found
    return AuditRow(
        control=name,
        what=what,
        effect=estimate.value,
        low=estimate.low,
        high=estimate.high,
        num_episodes=count,
        rule=mark.rule,
        verdict=mark.verdict(estimate.value),
        reason=estimate.reason if not estimate.defined else "",
    )


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
