"""Numbers as people read them, and text as HTML. Everything returned is safe to place in a page."""

from __future__ import annotations

import html
from collections.abc import Mapping

from robo_rl.report.model import ArmResult, RoundResult, TaskResult

SPACE = "\u00a0"  # no line break between a number and its unit
MINUS = "\u2212"

Rated = ArmResult | TaskResult | RoundResult


def escape(text: object) -> str:
    """Text for an element or a quoted attribute."""
    return html.escape(str(text), quote=True)


def rate(item: Rated) -> float | None:
    """Share of successes, None when nothing was evaluated."""
    return item.successes / item.n if item.n else None


def percent(value: float | None) -> str:
    """0.615 -> '61.5 %'; None -> 'undefined'."""
    if value is None:
        return "undefined"
    return f"{100 * value:.1f}".removesuffix(".0").replace("-", MINUS) + f"{SPACE}%"


def points(value: float | None) -> str:
    """A difference of two rates: 0.43 -> '+43 points'."""
    if value is None:
        return "undefined"
    size = f"{abs(100 * value):.1f}".removesuffix(".0")
    sign = "" if size == "0" else MINUS if value < 0 else "+"
    return f"{sign}{size}{SPACE}point{'' if size == '1' else 's'}"


def points_interval(low: float, high: float) -> str:
    """'+23.6 to +39.1 points'."""
    return f"{points(low).split(SPACE)[0]} to {points(high)}"


def number(value: float | None, digits: int = 3) -> str:
    """Fixed decimals with a true minus sign; None -> 'undefined'."""
    if value is None:
        return "undefined"
    return f"{value:.{digits}f}".replace("-", MINUS)


def short(value: float) -> str:
    """Four significant digits: for ticks and last values."""
    text = f"{value:.4g}"
    if "e" in text and 1e4 <= abs(value) < 1e7:
        text = f"{value:,.0f}"
    return text.replace("-", MINUS)


def count(value: float) -> str:
    """12345.6 -> '12,346'."""
    return f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """75 -> '1 min 15 s'."""
    if seconds is None:
        return "undefined"
    if seconds < 10:
        return f"{seconds:.1f}{SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}{SPACE}h {minutes}{SPACE}min"
    return f"{minutes}{SPACE}min {rest}{SPACE}s" if minutes else f"{rest}{SPACE}s"


def p_value(p: float | None) -> str:
    """0.0004 -> 'p < 0.001'."""
    if p is None:
        return "p undefined"
    return (
        f"p{SPACE}<{SPACE}0.001" if p < 0.001 else f"p{SPACE}={SPACE}{p:.2g}" if p < 0.1 else f"p{SPACE}={SPACE}{p:.2f}"
    )


def interval(low: float | None, high: float | None) -> str:
    """A Wilson interval: '25 % to 37.7 %'."""
    if low is None or high is None:
        return "undefined"
    return f"{percent(low)} to {percent(high)}"


def rate_sentence(name: str, item: Rated) -> str:
    """Plain text: 'Imitation: 62 of 200 succeeded (31 %), 95 % interval 25 % to 37.7 %'."""
    if item.n == 0:
        return f"{name}: no episode was evaluated, so the rate is undefined"
    share = f"{name}: {item.successes} of {item.n} succeeded ({percent(rate(item))})"
    return f"{share}, 95{SPACE}% interval {interval(item.wilson_low, item.wilson_high)}"


def cell(text: str, name: str = "", undefined: Mapping[str, str] | None = None) -> str:
    """A table cell. An undefined value is marked, with its reason where `undefined` gives one."""
    if not text.startswith("undefined"):
        return escape(text)
    reason = (undefined or {}).get(name, "")
    because = f" <small>{escape(reason)}</small>" if reason else ""
    return f'<span class="undefined">{escape(text)}</span>{because}'


def table(head: list[str], rows: list[list[str]], *, caption: str, kind: str = "") -> str:
    """An HTML table of cells that are already HTML; the first column heads its row."""
    columns = "".join(f'<th scope="col">{item}</th>' for item in head)
    body = []
    for row in rows:
        rest = "".join(
            f'<td data-label="{escape(name)}">{item}</td>' for name, item in zip(head[1:], row[1:], strict=True)
        )
        body.append(f'<tr><th scope="row">{row[0]}</th>{rest}</tr>')
    return (
        f'<div class="table-wrap"><table class="{kind}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{columns}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def folded(summary: str, content: str, *, is_open: bool = False) -> str:
    """A part that opens on demand."""
    return f"<details{' open' if is_open else ''}><summary>{escape(summary)}</summary>{content}</details>"
