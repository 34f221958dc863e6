"""Small charts as HTML and SVG. Colours are CSS classes, so light and dark need no second drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from robo_rl.report.model import CalibrationBin, CreditRound, Curve, RoundResult
from robo_rl.report.wording import Rated, count, escape, percent, rate, rate_sentence, short

WIDTH, HEIGHT = 340, 200
LEFT, RIGHT, TOP, BOTTOM = 38, 10, 10, 36
MAX_POINTS = 400  # of one drawn line; longer curves keep the extremes of every stretch

Point = tuple[float, float]


def nice_ticks(low: float, high: float, target: int = 4) -> list[float]:
    """About `target` round numbers inside [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / target
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 2.5, 5, 10) if power * k >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(step * i, 12) for i in range(first, last + 1)]


def thin(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most about `limit` points: the lowest and highest of every stretch, so that no spike is lost."""
    if len(points) <= limit:
        return list(points)
    stretch = math.ceil(2 * len(points) / limit)
    kept: list[Point] = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        ends = {min(range(len(part)), key=lambda i: part[i][1]), max(range(len(part)), key=lambda i: part[i][1])}
        kept += [part[i] for i in sorted(ends)]
    return kept


class Axes:
    """Maps data to the drawing area of one SVG and draws grid, ticks and labels."""

    def __init__(self, x: Point, y: Point) -> None:
        self.x, self.y = _widen(x), _widen(y)

    def at(self, x: float, y: float) -> Point:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def frame(
        self,
        x_label: str,
        x_ticks: Sequence[float],
        y_ticks: Sequence[float],
        text: tuple[Callable[[float], str], Callable[[float], str]] = (short, short),
    ) -> str:
        """Grid, ticks and the label of the x axis; the y axis is named in the heading above the chart."""
        right, low = WIDTH - RIGHT, HEIGHT - BOTTOM
        parts = [f'<text class="axis" x="{right}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>']
        for tick in y_ticks:
            _, y = self.at(self.x[0], tick)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
            parts.append(
                f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{text[1](tick)}</text>'
            )
        for tick in x_ticks:
            x, _ = self.at(tick, self.y[0])
            parts.append(f'<text class="tick" x="{x:.1f}" y="{low + 14}" text-anchor="middle">{text[0](tick)}</text>')
        parts.append(f'<path class="base" d="M{LEFT} {low}H{right}"/>')
        return "".join(parts)


def _widen(span: Point) -> Point:
    low, high = span
    return (low, high) if high > low else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))


def svg(content: str, label: str) -> str:
    """A chart of the standard size that fills its column."""
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{content}</svg>'


def path(points: Sequence[Point]) -> str:
    """SVG path data through `points`."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def bars(items: Sequence[tuple[str, str, Rated]]) -> str:
    """Horizontal bars with Wilson whiskers from (label, colour class, result)."""
    return f'<div class="bars">{"".join(_bar(*item) for item in items)}</div>'


def _bar(label: str, colour: str, item: Rated) -> str:
    value = rate(item)
    tip = escape(rate_sentence(label, item))
    fill = whisker = ""
    if value is not None:
        fill = f'<span class="fill" style="width:{100 * value:.2f}%"></span>'
    if item.wilson_low is not None and item.wilson_high is not None:
        left, width = 100 * item.wilson_low, 100 * (item.wilson_high - item.wilson_low)
        whisker = f'<span class="whisker" style="left:{left:.2f}%;width:{width:.2f}%"></span>'
    counts = f"{item.successes}/{item.n}" if item.n else "not evaluated"
    shown = f"<b>{escape(percent(value))}</b> " if value is not None else ""
    return (
        f'<div class="bar {colour}" title="{tip}"><span class="bar-label">{escape(label)}</span>'
        f'<span class="track">{fill}{whisker}</span><span class="bar-value">{shown}<small>{counts}</small></span></div>'
    )


def difference_line(value: float, low: float, high: float, reach: float, colour: str) -> str:
    """A difference and its interval on an axis from -reach to +reach with zero marked."""

    def across(x: float) -> float:
        return 50 + 50 * max(-1.0, min(1.0, x / reach))

    return (
        f'<span class="difference {colour}" aria-hidden="true"><span class="zero"></span>'
        f'<span class="span" style="left:{across(low):.2f}%;width:{across(high) - across(low):.2f}%"></span>'
        f'<span class="dot" style="left:{across(value):.2f}%"></span></span>'
    )


def curve_chart(curves: Sequence[Curve]) -> str:
    """Curves that share axes, with a legend that gives the last value of each."""
    series = [[(x, y) for x, y in zip(c.x, c.y, strict=True) if y is not None] for c in curves]
    points = [point for line in series for point in line]
    last = [short(line[-1][1]) if line else "undefined" for line in series]
    keys = [
        f'<span class="key s{i % 6}">{escape(c.name)} <small>{last[i]}</small></span>' for i, c in enumerate(curves)
    ]
    head = f'<p class="legend">{"".join(keys)}</p>'
    if not points:
        return f'{head}<p class="empty">undefined: no point was recorded</p>'
    xs, ys = zip(*points, strict=True)
    axes = Axes((min(xs), max(xs)), (min(0.0, *ys) if min(ys) < 0.4 * max(ys) else min(ys), max(ys)))
    parts = [axes.frame(curves[0].x_label, nice_ticks(*axes.x), nice_ticks(*axes.y))]
    for i, line in enumerate(series):
        drawn = [axes.at(*point) for point in thin(line)]
        if len(drawn) == 1:
            parts.append(f'<circle class="point s{i % 6}" cx="{drawn[0][0]:.1f}" cy="{drawn[0][1]:.1f}" r="3"/>')
        elif drawn:
            parts.append(f'<path class="line s{i % 6}" d="{path(drawn)}"/>')
    label = f"{', '.join(c.name for c in curves)} against {curves[0].x_label}"
    return head + svg("".join(parts), label)


def calibration_chart(bins: Sequence[CalibrationBin]) -> str:
    """Reliability: predicted success across, observed success up; on the diagonal the judge is calibrated."""
    axes = Axes((0.0, 1.0), (0.0, 1.0))
    ticks = (0, 0.25, 0.5, 0.75, 1)
    parts = [axes.frame("predicted success", ticks, ticks, (percent, percent))]
    parts.append(f'<path class="diagonal" d="{path([axes.at(0, 0), axes.at(1, 1)])}"/>')
    most = max((b.count for b in bins), default=1) or 1
    if len(bins) > 1:
        parts.append(f'<path class="line s0 thin" d="{path([axes.at(b.confidence, b.observed) for b in bins])}"/>')
    for b in bins:
        x, y = axes.at(b.confidence, b.observed)
        tip = f"predicted {percent(b.confidence)}, observed {percent(b.observed)}, {b.count} episodes"
        radius = 2.5 + 6 * math.sqrt(b.count / most)
        parts.append(
            f'<circle class="point s0" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{tip}</title></circle>'
        )
    return svg("".join(parts), "Reliability: predicted against observed success")


def weight_histogram(credit: CreditRound, kind: str, *, largest: float, colour: str) -> str:
    """Share of one kind's windows in every weight bin; `largest` is the share at the top of the axis."""
    counts, edges = credit.histogram[kind], credit.bin_edges
    total = sum(counts)
    base, top, left, right = 58, 6, 4, WIDTH - 4
    span = edges[-1] - edges[0]
    parts = []
    for i, size in enumerate(counts):
        x0 = left + (edges[i] - edges[0]) / span * (right - left)
        x1 = left + (edges[i + 1] - edges[0]) / span * (right - left)
        tall = (base - top) * (size / total / largest if total else 0.0)
        tip = f"weight {short(edges[i])} to {short(edges[i + 1])}: {count(size)} windows"
        parts.append(
            f'<rect class="{colour}" x="{x0 + 0.5:.1f}" y="{base - tall:.1f}" width="{max(x1 - x0 - 1, 0.5):.1f}" '
            f'height="{tall:.1f}"><title>{tip}</title></rect>'
        )
    parts.append(f'<path class="base" d="M{left} {base}H{right}"/>')
    for tick in nice_ticks(edges[0], edges[-1]):
        x = left + (tick - edges[0]) / span * (right - left)
        anchor = "start" if x < left + 8 else "end" if x > right - 8 else "middle"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{base + 13}" text-anchor="{anchor}">{short(tick)}</text>')
    label = f"Weights of {kind} windows"
    body = f'<svg class="chart" viewBox="0 0 {WIDTH} 74" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    return f'<p class="histogram-name">{escape(kind)} <small>{count(total)}</small></p>{body}'


def rounds_chart(lines: Sequence[tuple[str, str, Sequence[RoundResult]]]) -> str:
    """Success after every round with whiskers, from (label, colour class, rounds)."""
    numbers = [r.round for _, _, rounds in lines for r in rounds]
    axes = Axes((min(numbers) - 0.3, max(numbers) + 0.3), (0.0, 1.0))
    parts = [axes.frame("round", sorted(set(numbers)), (0, 0.25, 0.5, 0.75, 1), (short, percent))]
    for i, (label, colour, rounds) in enumerate(lines):
        shift = 0.06 * (i - (len(lines) - 1) / 2)  # whiskers of two arms side by side, not on top of each other
        drawn: list[Point] = []
        for r in rounds:
            value = rate(r)
            if value is None:
                continue
            x, y = axes.at(r.round + shift, value)
            drawn.append((x, y))
            parts.append(f'<circle class="point {colour}" cx="{x:.1f}" cy="{y:.1f}" r="4">')
            parts.append(f"<title>{escape(rate_sentence(f'{label}, round {r.round}', r))}</title></circle>")
            if r.wilson_low is not None and r.wilson_high is not None:
                low, high = axes.at(0, r.wilson_low)[1], axes.at(0, r.wilson_high)[1]
                caps = f"M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6"
                parts.append(f'<path class="line {colour} thin" d="M{x:.1f} {low:.1f}V{high:.1f}{caps}"/>')
        if len(drawn) > 1:
            parts.append(f'<path class="line {colour}" d="{path(drawn)}"/>')
    return svg("".join(parts), "Success rate after every round")
