"""Try to fool a judge before it may teach. Works with any `RewardModel`; set, marks and verdict are ours [O].

What is known to fool reward models: a clock instead of progress (still and padded videos), no sense of order
(reversed, shuffled, rewound), scoring the average instead of the end (truncated), ignoring the pictures (blank), and
ignoring the instruction (a wrong one). Two facts come on top: it must tell successes from failures, and say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from reward_models import controls, metrics
from reward_models.score import score
from robo_rl.errors import DataError, RewardError
from robo_rl.statistics import Estimate, bootstrap_mean_interval
from robo_rl.types import RewardModel, RewardSignal, Trajectory

Verdict = Literal["pass", "warn", "fail"]
MIN_EPISODES = 4  # below this a control is not judged, only reported


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
        }

    @classmethod
    def from_json(cls, text: dict[str, Any]) -> AuditReport:
        """The inverse of `to_json`. Raises DataError when something is missing."""
        try:
            known: list[dict[str, Any]] = [
                {k: math.nan if v is None else v for k, v in row.items()} for row in text["rows"]
            ]
            rows = tuple(AuditRow(**row) for row in known)
            return cls(model_id=text["model_id"], seed=text["seed"], rows=rows)
        except (KeyError, TypeError) as error:
            raise DataError(f"not an audit: {error}") from None

    def table(self) -> str:
        """For a terminal."""
        lines = [f"audit of {self.model_id}: {self.verdict}"]
        for row in self.rows:
            span = f"[{row.low:+.2f}, {row.high:+.2f}]" if math.isfinite(row.low) else ""
            value = f"{row.effect:+.2f}" if math.isfinite(row.effect) else "undefined"
            lines.append(f"  {row.verdict:<5} {row.control:<18} {value:>9} {span:<16} {row.rule}  ({row.what})")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Pass at or beyond `good`, fail beyond `bad`, warn in between. `below`: small effects are the good ones."""

    good: float
    bad: float
    below: bool = False

    def verdict(self, effect: float) -> Verdict:
        """Undefined is no pass, and no proof of a fault either."""
        if not math.isfinite(effect):
            return "warn"
        sign = -1.0 if self.below else 1.0
        if sign * effect >= sign * self.good:
            return "pass"
        return "warn" if sign * effect >= sign * self.bad else "fail"

    @property
    def rule(self) -> str:
        sign, beyond = ("<=", "above") if self.below else (">=", "below")
        return f"effect {sign} {self.good:g} (fails {beyond} {self.bad:g})"


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Marks of every row; the effects are explained in the rows."""

    static: Mark = field(default_factory=lambda: Mark(good=0.4, bad=0.2))
    reversed: Mark = field(default_factory=lambda: Mark(good=0.4, bad=0.2))
    shuffled: Mark = field(default_factory=lambda: Mark(good=0.4, bad=0.2))
    rewound: Mark = field(default_factory=lambda: Mark(good=0.3, bad=0.15))
    truncated: Mark = field(default_factory=lambda: Mark(good=0.2, bad=0.1))
    padded: Mark = field(default_factory=lambda: Mark(good=0.1, bad=0.25, below=True))
    blank: Mark = field(default_factory=lambda: Mark(good=0.3, bad=0.15))
    wrong_instruction: Mark = field(default_factory=lambda: Mark(good=0.3, bad=0.1))
    success: Mark = field(default_factory=lambda: Mark(good=0.8, bad=0.6))
    rise: Mark = field(default_factory=lambda: Mark(good=0.2, bad=0.05))
    auroc: Mark = field(default_factory=lambda: Mark(good=0.85, bad=0.7))


def audit(
    judge: RewardModel, episodes: Sequence[Trajectory], *, seed: int, config: AuditConfig | None = None
) -> AuditReport:
    """Audit a judge on held-out episodes: successes are changed, failures compared.

    Where the judge gives no success probability, its progress takes that place.

    Raises:
        RewardError: no episode has a label, or the judge cannot score one.
    """
    config = config or AuditConfig()
    if not any(episode.outcome.label is not None for episode in episodes):
        raise RewardError(f"{judge.model_id}: an audit needs episodes that ended in success or failure")
    trial = _Trial(judge, episodes, seed)
    rows = [*_controls(trial, config), *_facts(trial, config)]
    return AuditReport(model_id=judge.model_id, rows=tuple(rows), seed=seed)


class _Trial:
    """The judge's opinions of the episodes as they are, and of changed ones on demand."""

    def __init__(self, judge: RewardModel, episodes: Sequence[Trajectory], seed: int) -> None:
        self.judge, self.episodes, self.seed = judge, episodes, seed
        self.signals = score(judge, episodes)
        self.successes = [n for n, episode in enumerate(episodes) if episode.success]

    def compare(
        self, control: controls.Control, effect: Callable[[RewardSignal, RewardSignal], float]
    ) -> tuple[Estimate, int]:
        """Mean effect(original, changed) over successful episodes, with its interval."""
        pairs = []
        for number in self.successes:
            changed = control(self.episodes[number], np.random.default_rng([self.seed, number]))
            if changed is not None:
                pairs.append((number, changed))
        given = score(self.judge, [changed for _, changed in pairs])
        values = [effect(self.signals[n], signal) for (n, _), signal in zip(pairs, given, strict=True)]
        return self.mean(np.array(values))

    def mean(self, values: np.ndarray) -> tuple[Estimate, int]:
        """Mean of one value an episode; undefined for too few."""
        values = values[np.isfinite(values)]
        if len(values) < MIN_EPISODES:
            reason = f"{len(values)} episodes; needs {MIN_EPISODES}"
            return Estimate(value=math.nan, count=len(values), reason=reason), len(values)
        return bootstrap_mean_interval(values, rng=np.random.default_rng(self.seed)), len(values)


def _controls(trial: _Trial, config: AuditConfig) -> list[AuditRow]:
    def row(
        name: str, control: controls.Control, effect: Callable[[RewardSignal, RewardSignal], float], what: str
    ) -> AuditRow:
        return _row(name, what, trial.compare(control, effect), getattr(config, name))

    wrong = controls.wrong_instruction(trial.episodes)
    return [
        row(
            "static",
            controls.static,
            _progress_drop,
            "The first frame all the time: progress ends lower than in the real video, by this much.",
        ),
        row(
            "reversed",
            controls.backwards,
            _progress_drop,
            "The video backwards: progress ends lower than in the real one, by this much.",
        ),
        row(
            "shuffled",
            controls.shuffled,
            _order_drop,
            "Frames in random order: progress follows the order of showing less than in the real video, by this much.",
        ),
        row(
            "rewound",
            controls.rewound,
            _progress_drop,
            "Nearly to the end, then back: progress ends lower than in the real video, by this much.",
        ),
        row(
            "truncated",
            controls.truncated,
            _progress_drop,
            "The first half only: progress ends lower than in the whole video, by this much.",
        ),
        row(
            "padded",
            controls.padded,
            _climb,
            "The first half, then a still picture for long: the score climbs by this much while nothing happens.",
        ),
        row(
            "blank",
            controls.blank,
            _score_drop,
            "Black pictures: the final success probability is lower than for the real video, by this much.",
        ),
        row(
            "wrong_instruction",
            wrong,
            _score_drop,
            "The same video under another instruction: the final success probability is lower, by this much.",
        ),
    ]


def _facts(trial: _Trial, config: AuditConfig) -> list[AuditRow]:
    final = metrics.final_scores(trial.signals)
    first = np.array([_score(signal)[0] for signal in trial.signals])
    rng = np.random.default_rng(trial.seed)
    area = metrics.outcome_auroc(trial.signals, trial.episodes, rng=rng)
    return [
        _row(
            "success",
            "Mean success probability at the end of episodes that succeeded.",
            trial.mean(final[trial.successes]),
            config.success,
        ),
        _row(
            "rise",
            "How much the success probability rises from the first to the last frame of episodes that succeeded.",
            trial.mean((final - first)[trial.successes]),
            config.rise,
        ),
        _row(
            "auroc",
            "Chance that a success ends with a higher score than a failure; 0.5 is guessing.",
            (area, area.count),
            config.auroc,
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


# --- effects of one episode: (opinion of the original, opinion of the changed one) -> number ----------------


def _score(signal: RewardSignal) -> np.ndarray:
    return signal.progress if signal.success_prob is None else signal.success_prob


def _progress_drop(original: RewardSignal, changed: RewardSignal) -> float:
    return float(original.progress[-1] - changed.progress[-1])


def _score_drop(original: RewardSignal, changed: RewardSignal) -> float:
    return float(_score(original)[-1] - _score(changed)[-1])


def _order_drop(original: RewardSignal, changed: RewardSignal) -> float:
    """NaN where one of the correlations is undefined."""
    return metrics.voc(original.progress).value - metrics.voc(changed.progress).value


def _climb(original: RewardSignal, changed: RewardSignal) -> float:
    """Progress or score at the end minus where the picture stops moving, the larger of both."""
    still = max(2, len(original.progress) // 2) - 1
    return float(max(row[-1] - row[still] for row in (changed.progress, _score(changed))))


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
