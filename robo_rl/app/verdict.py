"""What a run showed, in sentences. Nothing is claimed that the paired test does not show."""

from __future__ import annotations

from collections.abc import Sequence

from robo_rl.app.config import RunConfig
from robo_rl.report.model import ArmResult, JudgeQuality, PairedTest

PERCENT = "\u00a0%"  # a number and its unit stay on one line
CLEAR = 0.05  # two-sided, exact McNemar


def spoken_p(p: float | None) -> str:
    """p = 0.013, p < 0.0001."""
    if p is None:
        return "p undefined"
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def rate(arm: ArmResult) -> float:
    return 100.0 * arm.successes / arm.n


def headline(arms: Sequence[ArmResult]) -> str:
    """The verdict in one sentence with its numbers."""
    by_name = {arm.name: arm for arm in arms}
    start, end = by_name["imitation"], by_name["improved"]
    test = _against(end, "imitation")
    change = rate(end) - rate(start)
    numbers = (
        f"from {rate(start):.1f}{PERCENT} to {rate(end):.1f}{PERCENT} over the same {end.n} held-out states "
        f"({change:+.1f} points, paired {spoken_p(test.p)})"
    )
    if test.p is not None and test.p < CLEAR:
        verb = "lifted" if change > 0 else "lowered"
        return f"Judged credit {verb} success {numbers}."
    return f"No clear change: judged credit took success {numbers}."


def details(config: RunConfig, arms: Sequence[ArmResult], judge: JudgeQuality) -> list[str]:
    """Plain sentences: what the controls say, and what the audit says."""
    by_name = {arm.name: arm for arm in arms}
    end, start = by_name["improved"], by_name["imitation"]
    lines = []
    if "bc_continued" in by_name:
        test = _against(by_name["bc_continued"], "imitation")
        lines.append(
            f"Training on the demonstrations for as many steps more (BC continued) gives "
            f"{rate(by_name['bc_continued']):.1f}{PERCENT}, against {rate(start):.1f}{PERCENT} before: "
            f"{_relation(test)}."
        )
    if "filtered_bc" in by_name:
        lines.append(_versus_filtered(end, by_name["filtered_bc"]))
    if start.mean_success_steps and end.mean_success_steps:
        lines.append(
            f"Successful episodes take {end.mean_success_steps:.1f} steps on average, "
            f"{start.mean_success_steps:.1f} before."
        )
    lines.append(_audit_line(config, judge))
    return lines


def _against(arm: ArmResult, other: str) -> PairedTest:
    return next(test for test in arm.comparisons if test.other == other)


def _relation(test: PairedTest) -> str:
    if test.p is not None and test.p < CLEAR and test.difference:
        return f"{'better' if test.difference > 0 else 'worse'}, paired {spoken_p(test.p)}"
    return f"no clear difference, paired {spoken_p(test.p)}"


def _versus_filtered(end: ArmResult, filtered: ArmResult) -> str:
    test = _against(end, "filtered_bc")
    numbers = f"{rate(end):.1f}{PERCENT} against {rate(filtered):.1f}{PERCENT}, paired {spoken_p(test.p)}"
    if test.p is not None and test.p < CLEAR and test.difference:
        word = "beats" if test.difference > 0 else "loses to"
        return f"Judged credit {word} filtered BC at the same budget of rollouts and gradient steps: {numbers}."
    return f"Judged credit ties with filtered BC at the same budget of rollouts and gradient steps: {numbers}."


def _audit_line(config: RunConfig, judge: JudgeQuality) -> str:
    rows = judge.rounds[-1].audit
    failed = [row.control for row in rows if row.verdict == "fail"]
    if not failed:
        warned = [row.control for row in rows if row.verdict == "warn"]
        more = f" ({len(warned)} with a warning: {', '.join(warned)})" if warned else ""
        return f"The judge passed its audit of {len(rows)} controls{more}."
    accepted = "; the run went on because accept_failed_audit is set" if config.accept_failed_audit else ""
    return f"The judge failed {len(failed)} of {len(rows)} audit controls: {', '.join(failed)}{accepted}."
