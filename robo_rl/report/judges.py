"""What several judges said about the episodes of a dataset, as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from robo_rl.errors import DataError
from robo_rl.report import charts, viewer
from robo_rl.report.episode import EpisodeView
from robo_rl.report.render import fill, static
from robo_rl.report.wording import duration, escape, number, table
from robo_rl.types import Outcome

WIDE = 1000  # units across a drawing; it is stretched to its column, so units are shares and not pixels
TALL = 100  # units from 0 to 1
COLOURS = 6  # and as many kinds of dashes
NO_ANSWER = "no answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeFigures:
    """One judge's row of the table. A figure that does not exist is None, and `about` says why."""

    name: str
    model_id: str
    frames: int
    abstained: int
    voc: float | None  # Spearman of progress with time, mean over successes
    pearson: float | None  # with the annotated progress, mean over episodes that have one
    mse: float | None  # to the annotated progress, over all their frames
    about: Mapping[str, str] = field(default_factory=dict)  # figure -> what it is over, or why there is none


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedEpisode:
    """One episode with the curves of every judge that scored it; `view` has fewer frames and the same curves."""

    title: str
    instruction: str
    outcome: Outcome
    fps: float
    progress: Mapping[str, np.ndarray]  # judge -> float32 (T+1,), NaN where it gave no answer
    success: Mapping[str, np.ndarray] = field(default_factory=dict)  # judge -> float32 (T+1,), NaN where no answer
    truth: np.ndarray | None = None  # float32 (T+1,)
    truth_name: str = "annotated"  # or the simulator's
    marks: Sequence[tuple[int, str]] = ()  # (frame, what begins there), rising
    end: int | None = None  # frame where the last part ends
    view: EpisodeView | None = None

    def __post_init__(self) -> None:
        curves = [*self.progress.values(), *self.success.values(), *([] if self.truth is None else [self.truth])]
        lengths = {len(values) for values in curves}
        if len(lengths) != 1:
            raise DataError(f"episode {self.title!r}: judges and truth must have one length, got {sorted(lengths)}")
        ends = [] if self.end is None else [self.end]
        outside = [frame for frame in (*(frame for frame, _ in self.marks), *ends) if not 0 <= frame < self.frames]
        if outside:
            raise DataError(
                f"episode {self.title!r}: mark at frame {outside[0]}, but frames are 0 to {self.frames - 1}"
            )

    @property
    def frames(self) -> int:
        """T + 1."""
        return len(next(iter((*self.progress.values(), *self.success.values(), self.truth))))  # type: ignore[arg-type]


def render_judges(
    title: str, about: str, pictures: str, judges: Sequence[JudgeFigures], episodes: Iterable[JudgedEpisode]
) -> str:
    """The page. `about` is one sentence about the data, `pictures` one about the videos; all text is escaped.

    `episodes` are drawn one after the other and not kept, so that a generator holds the frames of one at a time.
    """
    names = [judge.name for judge in judges]
    drawn: list[str] = []
    buttons: list[str] = []
    facts: list[dict[str, object]] = []
    videos: list[str] = []
    for episode in episodes:
        drawn.append(_figure(episode, names))
        if episode.view is not None:
            buttons.append(viewer.button(len(facts), episode.view, duration((episode.frames - 1) / episode.fps)))
            videos.append(viewer.video(len(facts), episode.view))
            facts.append(viewer.facts(episode.view, judges=names))
        del episode  # before the next one is made: its frames are what takes memory
    listed = f'<div class="episode-group"><h4>Episodes</h4>{"".join(buttons)}</div>'
    stage = fill(static("viewer.html"), {"list": listed})
    return fill(
        static("judges.html"),
        {
            "style": static("style.css"),
            "code": "\n".join(static(f"{name}.js") for name in ("page", *(("tracks", "viewer") if facts else ()))),
            "title": escape(title),
            "about": escape(about),
            "table": _table(judges),
            "charts": "".join(drawn),
            "viewer": f'<p class="caption">{escape(pictures)}</p>{stage}' if facts else "There are no cameras.",
            "episode_json": viewer.embed_json(facts),
            "videos": "\n".join(videos),
        },
    )


# ---- the table


def _table(judges: Sequence[JudgeFigures]) -> str:
    rows = [
        [
            f"{_key(place, judge.name)}<small>{escape(judge.model_id)}</small>",
            f"{judge.frames:,}",
            f"{judge.abstained:,}",
            _cell(number(judge.voc, 2), judge.voc, judge.about.get("voc", "")),
            _cell(number(judge.pearson, 2), judge.pearson, judge.about.get("pearson", "")),
            _cell(number(judge.mse, 4), judge.mse, judge.about.get("mse", "")),
        ]
        for place, judge in enumerate(judges)
    ]
    head = ["Judge", "Frames", "No answer", "VOC", "Pearson", "MSE"]
    return table(head, rows, caption="Judges on the episodes of this page", kind="judges") + _reasons(judges)


def _cell(text: str, value: float | None, about: str) -> str:
    if value is None:
        return f'<span class="undefined" title="{escape(about)}">\u2013</span>'
    return f'<span title="{escape(about)}">{escape(text)}</span>'


def _reasons(judges: Sequence[JudgeFigures]) -> str:
    """Why there are dashes, for those who cannot hover: on paper and on a phone."""
    because: dict[str, list[str]] = {}
    for judge in judges:
        for name, label in (("voc", "VOC"), ("pearson", "Pearson"), ("mse", "MSE")):
            if getattr(judge, name) is None:
                because.setdefault(judge.about.get(name, "not defined"), []).append(f"{label} of {judge.name}")
    if not because:
        return ""
    lines = [f"{escape(', '.join(which))}: {escape(reason)}" for reason, which in because.items()]
    return f'<p class="caption reasons">\u2013 has no value. {"; ".join(lines)}.</p>'


# ---- the charts


def style(place: int) -> str:
    """Colour and dashes of a judge; colours are told apart without seeing red and green, dashes without colour."""
    return f"s{place % COLOURS} dash{place % COLOURS}"


def _swatch(kind: str) -> str:
    return f'<svg class="swatch" viewBox="0 0 26 6" aria-hidden="true"><path class="{kind}" d="M0 3H26"/></svg>'


def _key(place: int, name: str, detail: str = "") -> str:
    small = f" <small>{escape(detail)}</small>" if detail else ""
    return f'<span class="judge-key">{_swatch(f"line {style(place)}")}{escape(name)}{small}</span>'


def _figure(episode: JudgedEpisode, judges: Sequence[str]) -> str:
    keys = []
    for place, name in enumerate(judges):
        values = episode.progress.get(name)
        detail = "did not score this episode" if values is None else _last(values)
        keys.append(_key(place, name, detail))
    if episode.truth is not None:
        keys.append(f'<span class="judge-key">{_swatch("truth-line")}{escape(episode.truth_name)}</span>')
    if any(np.isnan(values).any() for values in episode.progress.values()):
        keys.append('<span class="judge-key"><small>faint: no answer</small></span>')
    sign = episode.outcome.value
    return (
        f'<figure class="judged"><figcaption><b>{escape(episode.title)}</b> '
        f'<span class="sign {sign}">{viewer.OUTCOME_SIGNS.get(episode.outcome, "?")} {sign}</span> '
        f'<span class="asked">{escape(episode.instruction)}</span></figcaption>'
        f'<p class="legend">{"".join(keys)}</p>{judged_chart(episode, judges)}{_parts(episode)}</figure>'
    )


def _last(values: np.ndarray) -> str:
    return NO_ANSWER if np.isnan(values[-1]) else f"ends at {number(float(values[-1]), 2)}"


def _parts(episode: JudgedEpisode) -> str:
    if not episode.marks:
        return ""
    items = "".join(
        f"<li>{escape(name)} <small>{frame / episode.fps:.1f} s</small></li>" for frame, name in episode.marks
    )
    return f'<details><summary>{len(episode.marks)} parts of the task</summary><ol class="parts">{items}</ol></details>'


def judged_chart(episode: JudgedEpisode, judges: Sequence[str]) -> str:
    """Progress against seconds: a line a judge, annotated progress in grey, a vertical line where a part begins.

    Below it the success probabilities, where a judge has them. The drawing is stretched to its column and words are
    HTML at shares of its width, so that they have one size on a phone, on a screen and on paper.
    """
    last = episode.frames - 1
    ticks = [tick * episode.fps / last for tick in charts.nice_ticks(0.0, last / episode.fps, 6)]
    seconds = [_at(share, f"{share * last / episode.fps:g} s") for share in ticks]
    label = f"Progress of {episode.title} by {', '.join(episode.progress)}"
    parts = [
        '<div class="plot">',
        f'<div class="plot-row numbers">{_numbers(episode, last)}</div>' if episode.marks else "",
        _area(episode, judges, episode.progress, label, (0.0, 0.25, 0.5, 0.75, 1.0)),
    ]
    if episode.success:
        parts.append('<p class="plot-name">Success probability</p>')
        parts.append(_area(episode, judges, episode.success, f"Success probability of {episode.title}", (0.0, 1.0)))
    parts.append(f'<div class="plot-row">{"".join(seconds)}</div></div>')
    return "".join(parts)


def _at(share: float, text: str, more: str = "") -> str:
    return f'<span style="left:{100 * share:.2f}%"{more}>{escape(text)}</span>'


def _numbers(episode: JudgedEpisode, last: int) -> str:
    """Numbers of the parts; one that has no room steps up, and is left out where that is taken, too."""
    free = [-1.0, -1.0]  # where the last number of the lower and of the upper row is, as a share of the width
    found = []
    for place, (frame, name) in enumerate(episode.marks):
        share = frame / last
        row = next((i for i, taken in enumerate(free) if share - taken >= 0.05 or taken < 0), None)
        if row is not None:
            free[row] = share
            more = f'{" class=up" if row else ""} title="{escape(_mark(name, frame, episode.fps))}"'
            found.append(_at(share, str(place + 1), more))
    return "".join(found)


def _mark(name: str, frame: int, fps: float) -> str:
    return f"{name}, {frame / fps:.1f} s"


def _area(
    episode: JudgedEpisode,
    judges: Sequence[str],
    curves: Mapping[str, np.ndarray],
    label: str,
    ticks: Sequence[float],
) -> str:
    last, low = episode.frames - 1, curves is not episode.progress
    parts = [f'<path class="grid" d="M0 {TALL * (1 - tick):g}H{WIDE}"/>' for tick in ticks]
    for frame, name in episode.marks:
        x = f"{WIDE * frame / last:.1f}"
        parts.append(f'<path class="boundary"{"" if low else f' data-frame="{frame}"'} d="M{x} 0V{TALL}"/>')
        parts.append(
            f'<path class="touch" d="M{x} 0V{TALL}"><title>{escape(_mark(name, frame, episode.fps))}</title></path>'
        )
    if episode.end is not None:
        parts.append(f'<path class="boundary" data-end="{episode.end}" d="M{WIDE * episode.end / last:.1f} 0V{TALL}"/>')
    if episode.truth is not None and not low:
        parts.append(
            f'<path class="truth-line" d="{_line(episode.truth)}"><title>{escape(episode.truth_name)}</title></path>'
        )
    for name, values in curves.items():
        kind, title = style(judges.index(name)), f"<title>{escape(name)}</title>"
        known = np.flatnonzero(~np.isnan(values))
        if len(known) < len(values):
            parts.append(f'<path class="line faint {kind}" d="{_line(values[known], known, last)}"/>')
        if len(known):
            named = f'data-{"success" if low else "judge"}="{escape(name)}"'
            parts.append(
                f'<path class="line{" thin" if low else ""} {kind}" {named} d="{_line(values)}">{title}</path>'
            )
    levels = "".join(f'<span style="bottom:{100 * tick:g}%">{tick:g}</span>' for tick in ticks)
    return (
        f'<div class="plot-area{" low" if low else ""}">{levels}<svg viewBox="0 0 {WIDE} {TALL}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg></div>'
    )


def _line(values: np.ndarray, frames: np.ndarray | None = None, last: int | None = None) -> str:
    """Path data, broken where values are NaN; what stands alone between two gaps is a short stroke."""
    frames = np.arange(len(values)) if frames is None else frames
    last = len(values) - 1 if last is None else last
    known = np.flatnonzero(~np.isnan(values))
    cuts = np.flatnonzero(np.diff(known) > 1) + 1
    pieces = []
    for a, b in pairwise((0, *cuts.tolist(), len(known))):
        piece = known[a:b]
        points = [(WIDE * float(frames[i]) / last, TALL * (1.0 - min(1.0, max(0.0, float(values[i]))))) for i in piece]
        if len(points) == 1:
            points = [(points[0][0] - 1.5, points[0][1]), (points[0][0] + 1.5, points[0][1])]
        pieces.append(charts.path(charts.thin(points, 2 * WIDE)))
    return "".join(pieces) if len(known) else ""
