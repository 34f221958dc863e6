"""What several judges said about the episodes of a dataset, as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from robo_rl.errors import DataError
from robo_rl.report import charts, viewer
from robo_rl.report.episode import EpisodeView
from robo_rl.report.render import fill, static
from robo_rl.report.wording import cell, escape, number, table
from robo_rl.types import Outcome

WIDE, HIGH = 900, 260  # of an episode's chart
LEFT, RIGHT, TOP, BOTTOM = 38, 12, 22, 34
COLOURS = 6
SIGNS = {Outcome.SUCCESS: "success", Outcome.FAILURE: "failure", Outcome.TIMEOUT: "timeout"}


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeFigures:
    """One judge's line of the table. A figure that does not exist is None, with the reason in `undefined`."""

    name: str
    model_id: str
    frames: int
    abstained: int
    voc: float | None  # Spearman of progress with time, mean over successes
    pearson: float | None  # with the annotated progress, mean over episodes that have one
    mse: float | None  # to the annotated progress, over all their frames
    undefined: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedEpisode:
    """One episode with every judge's progress, complete; `view` has fewer frames and the same curves at those."""

    title: str
    instruction: str
    outcome: Outcome
    fps: float
    progress: Mapping[str, np.ndarray]  # judge -> float32 (T+1,)
    truth: np.ndarray | None = None  # float32 (T+1,), annotated or the simulator's
    marks: Sequence[tuple[int, str]] = ()  # (frame, what begins there)
    view: EpisodeView | None = None

    def __post_init__(self) -> None:
        lengths = {len(values) for values in self.progress.values()}
        if len(lengths) != 1 or (self.truth is not None and {len(self.truth)} != lengths):
            raise DataError(f"episode {self.title!r}: judges and truth must have one length, got {sorted(lengths)}")


def render_judges(title: str, facts: str, judges: Sequence[JudgeFigures], episodes: Sequence[JudgedEpisode]) -> str:
    """The page. `facts` is one sentence about the data; everything a person wrote is escaped."""
    views = [episode.view for episode in episodes if episode.view is not None]
    return fill(
        static("judges.html"),
        {
            "style": static("style.css"),
            "page_js": static("page.js"),
            "tracks_js": static("tracks.js"),
            "viewer_js": static("viewer.js") if views else "",
            "title": escape(title),
            "facts": escape(facts),
            "table": _table(judges),
            "charts": "".join(_episode(episode, [judge.name for judge in judges]) for episode in episodes),
            "viewer": fill(static("viewer.html"), {"list": viewer.episode_list(views)}) if views else "",
            "episode_json": viewer.episode_json(views),
            "videos": viewer.videos(views),
        },
    )


def _table(judges: Sequence[JudgeFigures]) -> str:
    rows = [
        [
            f'<span class="key s{place % COLOURS}">{escape(judge.name)}</span>',
            f"<small>{escape(judge.model_id)}</small>",
            str(judge.frames),
            str(judge.abstained),
            cell(number(judge.voc, 2), "voc", judge.undefined),
            cell(number(judge.pearson, 2), "pearson", judge.undefined),
            cell(number(judge.mse, 3), "mse", judge.undefined),
        ]
        for place, judge in enumerate(judges)
    ]
    head = ["judge", "id", "frames", "without an answer", "VOC", "Pearson", "MSE"]
    return table(head, rows, caption="Judges on the episodes of this page")


def _episode(episode: JudgedEpisode, judges: Sequence[str]) -> str:
    sign = SIGNS.get(episode.outcome, "unknown")
    keys = [
        f'<span class="key s{judges.index(name) % COLOURS}">{escape(name)} <small>{values[-1]:.2f}</small></span>'
        for name, values in episode.progress.items()
    ]
    if episode.truth is not None:
        keys.append('<span class="key truth">annotated</span>')
    return (
        f'<figure class="judged"><figcaption><b>{escape(episode.title)}</b> '
        f'<span class="sign {sign}">{sign}</span> <span class="asked">{escape(episode.instruction)}</span>'
        f'</figcaption><p class="legend">{"".join(keys)}</p>'
        f'<div class="scroll">{judged_chart(episode, judges)}</div></figure>'
    )


def judged_chart(episode: JudgedEpisode, judges: Sequence[str]) -> str:
    """Progress against seconds, a line a judge, the annotated progress dashed, a vertical line where a part begins."""
    last = len(next(iter(episode.progress.values()))) - 1
    seconds = last / episode.fps

    def at(frame: float, value: float) -> tuple[float, float]:
        across = LEFT + frame / max(last, 1) * (WIDE - LEFT - RIGHT)
        return across, HIGH - BOTTOM - min(1.0, max(0.0, value)) * (HIGH - TOP - BOTTOM)

    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = at(0, tick)[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDE - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick:g}</text>')
    for place, (frame, name) in enumerate(episode.marks):
        x = at(frame, 0)[0]
        parts.append(f'<path class="boundary" data-frame="{frame}" d="M{x:.1f} {TOP}V{HIGH - BOTTOM}">')
        parts.append(f"<title>{escape(name)}, {frame / episode.fps:.1f} s</title></path>")
        parts.append(f'<text class="tick" x="{x:.1f}" y="{TOP - 7}" text-anchor="middle">{place + 1}</text>')
    for tick in charts.nice_ticks(0.0, seconds, 8):
        x = at(tick * episode.fps, 0)[0]
        anchor = "end" if x > WIDE - RIGHT - 12 else "middle"
        text = f"{tick:g}{' s' if tick == 0 else ''}"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HIGH - BOTTOM + 15}" text-anchor="{anchor}">{text}</text>')
    if episode.truth is not None:
        parts.append(f'<path class="truth-line" d="{_line(episode.truth, at)}"/>')
    for name, values in episode.progress.items():
        place = judges.index(name) % COLOURS
        parts.append(f'<path class="line s{place} dash{place}" data-judge="{escape(name)}" d="{_line(values, at)}"/>')
    label = f"Progress of {episode.title} by {', '.join(episode.progress)}"
    return (
        f'<svg class="chart wide" viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _line(values: np.ndarray, at: object) -> str:
    points = charts.thin([(float(frame), float(value)) for frame, value in enumerate(values)], 2 * WIDE)
    return charts.path([at(*point) for point in points])  # type: ignore[operator]
