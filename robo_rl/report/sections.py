"""The written parts of the page, in the order in which they are read. Each returns HTML."""

from __future__ import annotations

from collections.abc import Sequence

from robo_rl.report import charts
from robo_rl.report.model import ArmResult, CreditRound, Curve, JudgeRound, PairedTest, Provenance, ReportData
from robo_rl.report.wording import (
    Rated,
    cell,
    count,
    duration,
    escape,
    folded,
    interval,
    number,
    p_value,
    percent,
    points,
    points_interval,
    rate,
    rate_sentence,
    table,
)

SIGNIFICANT = 0.05
VERDICT_SIGNS = {"pass": "\u2713", "warn": "!", "fail": "\u2715"}
NOT_RECORDED = '<p class="empty">Not recorded in this run.</p>'


def arm_colours(arms: Sequence[ArmResult]) -> dict[str, str]:
    """Arm name -> CSS class; grey is always where we started, blue always what we made."""
    colours = {"imitation": "a0", "improved": "a1"}
    others = [arm.name for arm in arms if arm.name not in colours]
    return colours | {name: f"a{2 + i % 4}" for i, name in enumerate(others)}


def _before_after(data: ReportData) -> tuple[ArmResult | None, ArmResult | None]:
    named = {arm.name: arm for arm in data.arms}
    return named.get("imitation"), named.get("improved")


def verdict(data: ReportData) -> str:
    """The headline, the two numbers it is about, and the plain sentences below it."""
    before, after = _before_after(data)
    big = [_big_number(arm, colour) for arm, colour in ((before, "a0"), (after, "a1")) if arm is not None]
    arrow = '<span class="arrow" aria-hidden="true">\u2192</span>'
    change = _change(after)
    numbers = f'<div class="big-numbers">{arrow.join(big)}{change}</div>' if big else ""
    details = "".join(f"<p>{escape(sentence)}</p>" for sentence in data.details)
    return f'<h1>{escape(data.headline)}</h1>{numbers}<div class="details">{details}</div>'


def _change(after: ArmResult | None) -> str:
    for test in after.comparisons if after else ():
        if test.other == "imitation" and test.difference is not None:
            span = "" if test.low is None or test.high is None else points_interval(test.low, test.high) + ", "
            below = f"<small>{span}{escape(p_value(test.p))}</small>"
            value = f'<span class="big-value">{points(test.difference)}</span>'
            return (
                f'<div class="big change"><span class="big-label">Change on the same starts</span>{value}{below}</div>'
            )
    return ""


def _big_number(arm: ArmResult, colour: str) -> str:
    value = percent(rate(arm)) if arm.n else "not evaluated"
    below = f"{arm.successes} of {arm.n} ({interval(arm.wilson_low, arm.wilson_high)})" if arm.n else ""
    return (
        f'<div class="big {colour}" title="{escape(rate_sentence(arm.label, arm))}"><span class="big-label">'
        f'{escape(arm.label)}</span><span class="big-value">{escape(value)}</span><small>{escape(below)}</small></div>'
    )


def success(data: ReportData) -> str:
    """Success of every arm, over all tasks and task by task, and the same numbers as a table."""
    if not data.arms:
        return NOT_RECORDED
    colours = arm_colours(data.arms)
    overall = charts.bars([(arm.label, colours[arm.name], arm) for arm in data.arms])
    tasks = list(dict.fromkeys(result.task for arm in data.arms for result in arm.tasks))
    cards = "".join(_task_card(task, data.arms, colours) for task in tasks)
    by_task = f'<h3>Task by task</h3><div class="cards tasks">{cards}</div>' if tasks else ""
    note = (
        '<p class="caption">Bars are success rates, whiskers 95 % Wilson intervals. '
        "The simulator or the operator decides success, never the judge that trained the policy.</p>"
    )
    return f"{overall}{note}{by_task}{folded('The numbers as a table', _success_table(data.arms))}"


def _task_card(task: str, arms: Sequence[ArmResult], colours: dict[str, str]) -> str:
    rows = [(arm.label, colours[arm.name], result) for arm in arms for result in arm.tasks if result.task == task]
    return f'<div class="card"><h4>{escape(task)}</h4>{charts.bars(rows)}</div>'


def _success_table(arms: Sequence[ArmResult]) -> str:
    rows = []
    for arm in arms:
        every: list[tuple[str, Rated]] = [("all tasks", arm), *((result.task, result) for result in arm.tasks)]
        steps = cell(number(arm.mean_success_steps, 1), "mean_success_steps", arm.undefined)
        seconds = cell(number(arm.seconds_per_episode, 2), "seconds_per_episode", arm.undefined)
        for task, item in every:
            shown = [steps, seconds] if item is arm else ["", ""]
            rows.append(
                [
                    escape(arm.label),
                    escape(task),
                    str(item.successes),
                    str(item.n),
                    cell(percent(rate(item))),
                    cell(interval(item.wilson_low, item.wilson_high)),
                    *shown,
                ]
            )
    head = ["Policy", "Task", "Successes", "Episodes", "Rate", "95 % interval", "Mean steps to success", "s / episode"]
    return table(head, rows, caption="Success by policy and task", kind="numbers")


def comparisons(data: ReportData) -> str:
    """Every paired test as a sentence a person can repeat."""
    labels = {arm.name: arm.label for arm in data.arms}
    colours = arm_colours(data.arms)
    tests = [(arm, test) for arm in data.arms for test in arm.comparisons]
    if not tests:
        return NOT_RECORDED
    bounds = [abs(x) for _, test in tests for x in (test.low, test.high, test.difference) if x is not None]
    reach = max([0.1, *bounds]) * 1.1
    items = [_comparison(arm, test, labels[test.other], colours[arm.name], reach) for arm, test in tests]
    axis = (
        '<div class="difference-axis" aria-hidden="true"><span>worse</span><span>no difference</span>'
        "<span>better</span></div>"
    )
    return f'<ul class="comparisons">{"".join(items)}</ul>{axis}'


def _comparison(arm: ArmResult, test: PairedTest, other: str, colour: str, reach: float) -> str:
    title = f"<b>{escape(arm.label)}</b> against <b>{escape(other)}</b>"
    if test.difference is None or test.p is None:
        reason = test.undefined.get("difference") or test.undefined.get("p") or "too few pairs"
        return f'<li><p>{title}: <span class="undefined">undefined</span> ({escape(reason)}).</p></li>'
    if test.p >= SIGNIFICANT or test.difference == 0:
        word, tone = "no clear difference", "tie"
    else:
        word, tone = ("better", "win") if test.difference > 0 else ("worse", "loss")
    line = span = ""
    if test.low is not None and test.high is not None:
        line = charts.difference_line(test.difference, test.low, test.high, reach, colour)
        span = f" (95 % interval {points_interval(test.low, test.high)})"
    starts = f"{test.wins} start{'' if test.wins == 1 else 's'}"
    text = (
        f"{points(test.difference)}{span}, {p_value(test.p)}. It succeeded on {starts} where the other failed, "
        f"and failed on {test.losses} where the other succeeded."
    )
    return f'<li><p>{title}: <b class="{tone}">{word}</b>. {escape(text)}</p>{line}</li>'


def curves(data: ReportData) -> str:
    """Learning curves: one chart for every group and pair of axes."""
    if not data.curves:
        return NOT_RECORDED
    groups: dict[str, dict[tuple[str, str], list[Curve]]] = {}
    for curve in data.curves:
        groups.setdefault(curve.group, {}).setdefault((curve.x_label, curve.y_label), []).append(curve)
    cards = [
        f'<div class="card"><h4>{escape(group)} <small>{escape(y_label)}</small></h4>{charts.curve_chart(same)}</div>'
        for group, charts_of_group in groups.items()
        for (_, y_label), same in charts_of_group.items()
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


JUDGE_COLUMNS = (
    ("auroc", "AUROC", "Does the judge rank successes above failures? 1 is perfect, 0.5 is chance."),
    ("voc", "VOC", "Does progress rise with time on successful episodes? 1 is always."),
    ("vroc", "VROC", "Does it fall on successes played backwards? 1 is always; a clock is near \u22121."),
    ("ece", "ECE", "Mean gap between predicted and observed success; 0 is calibrated."),
    ("brier", "Brier", "Mean squared error of the success probability; 0 is perfect, 0.25 says nothing."),
)


def judge(data: ReportData) -> str:
    """Numbers, reliability and audit of the judge, on episodes that it did not learn from."""
    rounds = data.judge.rounds
    if not rounds:
        return NOT_RECORDED
    head = ["Round", *(name for _, name, _ in JUDGE_COLUMNS), "Episodes"]
    numbers = table(head, [_judge_row(r) for r in rounds], caption="Held-out quality of the judge", kind="numbers")
    meanings = "".join(f"<dt>{name}</dt><dd>{escape(what)}</dd>" for _, name, what in JUDGE_COLUMNS)
    cards = "".join(
        f'<div class="card"><h4>Round {r.round} <small>observed success</small></h4>'
        f"{charts.calibration_chart(r.calibration)}</div>"
        for r in rounds
        if r.calibration
    )
    audits = [r for r in rounds if r.audit]
    audit = "".join(_audit(r, is_open=r is audits[-1]) for r in reversed(audits))
    reliability = (
        f'<div class="cards">{cards}</div><p class="caption">A dot is a group of episodes, its area their number. '
        "On the dashed diagonal, predicted and observed success agree.</p>"
    )
    return (
        f'{numbers}<dl class="meanings">{meanings}</dl>{reliability if cards else ""}'
        f"<h3>Audit: videos whose right answer is known</h3>{audit or NOT_RECORDED}"
    )


def _judge_row(r: JudgeRound) -> list[str]:
    values = [cell(number(getattr(r, name)), name, r.undefined) for name, _, _ in JUDGE_COLUMNS]
    if r.auroc_low is not None and r.auroc_high is not None:
        values[0] += f" <small>{number(r.auroc_low, 2)} to {number(r.auroc_high, 2)}</small>"
    return [str(r.round), *values, str(r.num_episodes)]


def _audit(r: JudgeRound, *, is_open: bool) -> str:
    rows = []
    for row in r.audit:
        span = f" <small>{number(row.low, 2)} to {number(row.high, 2)}</small>" if row.low is not None else ""
        rows.append(
            [
                f"{escape(row.control)}",
                escape(row.what),
                cell(number(row.effect), "effect", row.undefined) + span,
                f"<code>{escape(row.rule)}</code>",
                f'<span class="verdict {row.verdict}">{VERDICT_SIGNS[row.verdict]} {row.verdict}</span>',
            ]
        )
    head = ["Control", "What it asks", "Effect", "Rule", "Verdict"]
    tally = ", ".join(
        f"{sum(row.verdict == v for row in r.audit)} {v}"
        for v in VERDICT_SIGNS
        if any(row.verdict == v for row in r.audit)
    )
    content = table(head, rows, caption=f"Audit of the judge in round {r.round}", kind="audit")
    return folded(f"Round {r.round}: {tally}", content, is_open=is_open)


def credit(data: ReportData) -> str:
    """How the sample weights spread, and how many samples they leave."""
    if not data.credit:
        return NOT_RECORDED
    cards = "".join(_credit_card(c) for c in data.credit)
    note = (
        "Height: share of that kind\u2019s windows (their number is beside the name). The effective sample size "
        "is the number of equally weighted windows that would carry as much."
    )
    return f'<div class="cards">{cards}</div><p class="caption">{note}</p>'


def _credit_card(c: CreditRound) -> str:
    shares = [n / sum(counts) for counts in c.histogram.values() if sum(counts) for n in counts]
    largest = max(shares, default=1.0) or 1.0
    kinds = "".join(
        charts.weight_histogram(c, kind, largest=largest, colour=f"s{i % 6}") for i, kind in enumerate(c.histogram)
    )
    meter = ""
    if c.ess is None:
        ess = cell("undefined", "ess", c.undefined)
    else:
        ess = f"<b>{count(c.ess)}</b> of {count(c.num_samples)} windows"
    if c.ess_share is not None:
        ess += f" ({escape(percent(c.ess_share))})"
        meter = f'<span class="track s0"><span class="fill" style="width:{100 * c.ess_share:.1f}%"></span></span>'
    return (
        f'<div class="card"><h4>Round {c.round} <small>{escape(c.method)}</small></h4>'
        f'<p class="ess">Effective sample size {ess}</p>{meter}{kinds}<p class="axis-name">sample weight</p></div>'
    )


def rounds(data: ReportData) -> str:
    """Success after every round of improvement."""
    colours = arm_colours(data.arms)
    lines = [(arm.label, colours[arm.name], arm.rounds) for arm in data.arms if arm.rounds]
    if not lines:
        return NOT_RECORDED
    keys = "".join(f'<span class="key {colour}">{escape(label)}</span>' for label, colour, _ in lines)
    rows = []
    for label, _, results in lines:
        for r in results:
            span = cell(interval(r.wilson_low, r.wilson_high))
            rows.append([escape(label), str(r.round), str(r.successes), str(r.n), cell(percent(rate(r))), span])
    head = ["Policy", "Round", "Successes", "Episodes", "Rate", "95 % interval"]
    numbers = table(head, rows, caption="Success by round", kind="numbers")
    return (
        f'<div class="split"><div class="card"><p class="legend">{keys}</p>{charts.rounds_chart(lines)}</div>'
        f"<div>{numbers}</div></div>"
    )


def stages(provenance: Provenance) -> str:
    """Where the time went."""
    seconds = provenance.seconds_per_stage
    if not seconds:
        return NOT_RECORDED
    longest, total = max(seconds.values()) or 1.0, sum(seconds.values())
    bars = "".join(_stage_bar(name, value, longest) for name, value in seconds.items())
    peak = "" if provenance.peak_rss_gb is None else f" Peak memory {provenance.peak_rss_gb:.1f} GB."
    machine = f" Machine: {escape(provenance.machine)}." if provenance.machine else ""
    return f'<div class="bars plain">{bars}</div><p class="caption">{duration(total)} in all.{peak}{machine}</p>'


def _stage_bar(name: str, seconds: float, longest: float) -> str:
    return (
        f'<div class="bar s0"><span class="bar-label">{escape(name)}</span><span class="track">'
        f'<span class="fill" style="width:{100 * seconds / longest:.2f}%"></span></span>'
        f'<span class="bar-value">{duration(seconds)}</span></div>'
    )


def provenance(data: ReportData) -> str:
    """Configuration, versions, commit, seeds and fingerprints, folded away."""
    p = data.provenance
    facts = {"commit": p.commit or "not recorded", "created": data.created, "machine": p.machine or "not recorded"}
    facts |= {f"seed: {name}": str(seed) for name, seed in p.seeds.items()}
    facts |= {f"data: {name}": mark for name, mark in p.fingerprints.items()}
    rows = [[escape(name), f"<code>{escape(value)}</code>"] for name, value in facts.items()]
    versions = [[escape(name), f"<code>{escape(value)}</code>"] for name, value in p.versions.items()]
    return (
        folded("Commit, seeds, data", table(["What", "Value"], rows, caption="Origin of the run"))
        + folded("Versions", table(["Package", "Version"], versions, caption="Versions"))
        + folded("Configuration", f'<pre tabindex="0"><code>{escape(p.config)}</code></pre>')
    )


def commands(data: ReportData) -> str:
    """The lines that reproduce the run, each with a button to copy it."""
    if not data.commands:
        return NOT_RECORDED
    button = '<button type="button" class="copy" aria-label="Copy this command">Copy</button>'
    items = "".join(f"<li><code>{escape(line)}</code>{button}</li>" for line in data.commands)
    return f'<ol class="commands">{items}</ol>'
