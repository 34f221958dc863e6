"""What a report shows, and how it is kept on disk: report.json plus one .npz file of arrays for every episode.

The report is a function of this data alone, so it can be drawn again without the datasets or the policies.
A number that does not exist (a correlation of a constant, a mean over no successes) is None, never 0, and
`undefined` on the same object may give the reason: {"mean_success_steps": "no episode succeeded"}.
Every interval is a 95 % interval: the page says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from robo_rl.errors import DataError
from robo_rl.report.decode import decode, encode
from robo_rl.report.episode import EpisodeGroup, EpisodeView, read_episode, replace_file, write_episode

__all__ = [
    "ArmResult",
    "AuditRow",
    "CalibrationBin",
    "CreditRound",
    "Curve",
    "EpisodeGroup",
    "EpisodeView",
    "JudgeQuality",
    "JudgeRound",
    "PairedTest",
    "Provenance",
    "ReportData",
    "RoundResult",
    "TaskResult",
    "Verdict",
    "load_report_data",
    "save_report_data",
]

Verdict = Literal["pass", "warn", "fail"]

_JSON = "report.json"
_FORMAT = 1


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DataError(message)


def _check_rate(item: TaskResult | RoundResult | ArmResult, where: str) -> None:
    _require(
        0 <= item.successes <= item.n,
        f"{where}: {item.successes} successes of {item.n} episodes; need 0 <= successes <= n",
    )
    for name in ("wilson_low", "wilson_high"):
        bound = getattr(item, name)
        _require(bound is None or 0.0 <= bound <= 1.0, f"{where}: {name} is {bound}; a rate lies in [0, 1]")
    if item.wilson_low is not None and item.wilson_high is not None:
        _require(
            item.wilson_low <= item.wilson_high,
            f"{where}: wilson_low {item.wilson_low} is above wilson_high {item.wilson_high}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """Success of one arm on one task; Wilson interval of the rate, None when n = 0."""

    task: str
    n: int
    successes: int
    wilson_low: float | None
    wilson_high: float | None

    def __post_init__(self) -> None:
        _check_rate(self, f"task {self.task!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundResult:
    """Success of one arm after one round of improvement (round 0: before any)."""

    round: int
    n: int
    successes: int
    wilson_low: float | None
    wilson_high: float | None

    def __post_init__(self) -> None:
        _check_rate(self, f"round {self.round}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedTest:
    """An arm against another on the same initial states: rate of the arm minus rate of `other`."""

    other: str  # name of the other arm
    difference: float | None  # in [-1, 1]
    low: float | None  # interval of the difference
    high: float | None
    p: float | None  # two-sided p value of the paired test
    wins: int  # initial states where this arm succeeded and the other did not
    losses: int  # and the other way round
    undefined: Mapping[str, str] = field(default_factory=dict)  # field name -> why it is None


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmResult:
    """One evaluated policy. The first arm of a report is "imitation": what the others set out from."""

    name: str  # "imitation", "improved", "bc_continued", "filtered_bc", ...
    label: str  # as people say it
    n: int
    successes: int
    wilson_low: float | None
    wilson_high: float | None
    mean_success_steps: float | None  # over successful episodes
    seconds_per_episode: float | None
    tasks: Sequence[TaskResult] = ()
    rounds: Sequence[RoundResult] = ()
    comparisons: Sequence[PairedTest] = ()
    undefined: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_rate(self, f"arm {self.name!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One learning curve. Curves with the same `group` and labels share axes."""

    name: str
    group: str  # "imitation", "improved round 1", "judge round 1", ...
    x_label: str
    y_label: str
    x: Sequence[float]
    y: Sequence[float | None]

    def __post_init__(self) -> None:
        _require(
            len(self.x) == len(self.y),
            f"curve {self.group!r} / {self.name!r}: {len(self.x)} x but {len(self.y)} y values",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationBin:
    """Episodes whose predicted success fell into one bin."""

    confidence: float  # mean predicted probability of success
    observed: float  # share that succeeded
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRow:
    """One control of the judge: a video whose right answer is known."""

    control: str  # "reversed", "shuffled", "blank", ...
    what: str  # one plain sentence: what was shown and what a sound judge does
    effect: float | None
    low: float | None
    high: float | None
    rule: str  # "effect >= 0.3"
    verdict: Verdict
    undefined: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(
            self.verdict in get_args(Verdict),
            f"audit control {self.control!r}: verdict {self.verdict!r} is not one of {get_args(Verdict)}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeRound:
    """Quality of the judge on held-out episodes in one round."""

    round: int
    auroc: float | None  # of the final success probability against the outcome
    auroc_low: float | None
    auroc_high: float | None
    voc: float | None  # value-order correlation on successful episodes
    vroc: float | None  # on reversed videos, against descending time; +1 is sound, a clock is near -1
    ece: float | None  # expected calibration error
    brier: float | None
    num_episodes: int
    calibration: Sequence[CalibrationBin] = ()
    audit: Sequence[AuditRow] = ()
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeQuality:
    """The judge, round by round."""

    rounds: Sequence[JudgeRound] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CreditRound:
    """The sample weights of one round: how much of the data the weighted loss really used."""

    round: int
    method: str
    ess: float | None  # effective sample size, (sum w)^2 / sum w^2
    ess_share: float | None  # ess / num_samples
    num_samples: int
    histogram: Mapping[str, Sequence[int]]  # window kind -> counts (B,)
    bin_edges: Sequence[float]  # (B+1,), increasing
    undefined: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"credit of round {self.round}"
        edges = list(self.bin_edges)
        _require(edges == sorted(set(edges)), f"{where}: bin_edges must increase, got {edges}")
        for kind, counts in self.histogram.items():
            _require(
                len(counts) == len(edges) - 1,
                f"{where}: {len(counts)} counts of {kind!r} but {len(edges)} bin edges; need one edge more",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where the run came from."""

    config: str  # the whole configuration, as text
    versions: Mapping[str, str] = field(default_factory=dict)  # package -> version
    commit: str = ""
    seeds: Mapping[str, int] = field(default_factory=dict)
    machine: str = ""
    seconds_per_stage: Mapping[str, float] = field(default_factory=dict)  # in the order in which they ran
    peak_rss_gb: float | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # dataset -> content hash


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportData:
    """Everything the page shows."""

    title: str
    created: str  # ISO 8601
    headline: str  # the verdict in one sentence
    details: Sequence[str]  # plain sentences: what was tested, what ties
    arms: Sequence[ArmResult]
    provenance: Provenance
    curves: Sequence[Curve] = ()
    judge: JudgeQuality = field(default_factory=JudgeQuality)
    credit: Sequence[CreditRound] = ()
    episodes: Sequence[EpisodeView] = ()
    commands: Sequence[str] = ()  # that reproduce the run, in order

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        _require(len(set(names)) == len(names), f"arms: the names must differ, got {names}")
        for arm in self.arms:
            for test in arm.comparisons:
                _require(
                    test.other in names,
                    f"arm {arm.name!r}: compared with {test.other!r}, which is not an arm of {names}",
                )
        keys = [episode.key for episode in self.episodes]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        _require(not twice, f"episodes: the key {twice[0] if twice else ''!r} is used more than once")


# On disk: report.json is replaced last and names every array file by its content, so a reader sees the old
# report or the new one, never a mixture.


def save_report_data(folder: Path | str, data: ReportData) -> None:
    """Write `data` as folder/report.json and one folder/episode-*.npz for every episode; atomic.

    Raises DataError for a number that is not finite.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = {f.name: encode(getattr(data, f.name), f.name) for f in fields(data) if f.name != "episodes"}
    text["format"] = _FORMAT
    text["episodes"] = [write_episode(folder, episode, f"episodes[{i}]") for i, episode in enumerate(data.episodes)]
    replace_file(folder / _JSON, json.dumps(text, indent=1, ensure_ascii=False, allow_nan=False).encode())
    kept = {episode["file"] for episode in text["episodes"]}
    for old in folder.glob("episode-*.npz"):
        if old.name not in kept:
            old.unlink(missing_ok=True)


def load_report_data(folder: Path | str) -> ReportData:
    """Read what `save_report_data` wrote. Raises DataError for anything missing, damaged or ill-formed."""
    path = Path(folder) / _JSON
    try:
        text = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; a finished run has one") from None
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    _require(isinstance(text, dict), f"{path}: expected a mapping at the top")
    version = text.pop("format", None)
    _require(version == _FORMAT, f"{path}: format {version!r}; this version reads format {_FORMAT}")
    episodes = text.pop("episodes", None)
    _require(isinstance(episodes, list), f"{path}: 'episodes' must be a list")
    views = [read_episode(path.parent, item, f"{path}: episodes[{i}]") for i, item in enumerate(episodes)]
    data: ReportData = decode(ReportData, text, f"{path}: report")
    try:
        return ReportData(**{f.name: getattr(data, f.name) for f in fields(data)} | {"episodes": views})
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
