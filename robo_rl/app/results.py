"""From the stages of a run to the report and the summary: the same numbers in both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from robo_rl.app.config import RunConfig
from robo_rl.app.pipeline import Plan
from robo_rl.app.verdict import details, headline, spoken_p
from robo_rl.credit.kinds import WindowKind
from robo_rl.evaluation import Comparison, EvaluationResult, compare
from robo_rl.report.episode import EpisodeView, read_episode
from robo_rl.report.model import (
    ArmResult,
    AuditRow,
    CalibrationBin,
    CreditRound,
    Curve,
    JudgeQuality,
    JudgeRound,
    PairedTest,
    Provenance,
    ReportData,
    RoundResult,
    TaskResult,
)

LABELS = {
    "imitation": "Imitation",
    "improved": "Improved with judged credit",
    "filtered_bc": "Filtered BC",
    "bc_continued": "BC continued",
}
BINS = [round(0.25 * edge, 2) for edge in range(13)]


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a run says of itself."""

    report: ReportData
    summary: dict[str, Any]


def collect_results(config: RunConfig, out: Path, plan: Plan, provenance: Provenance) -> Results:
    """Read the finished stages of `out`."""
    stages = out / "stages"
    evaluations = {
        arm: [EvaluationResult.load(stages / name / "evaluation.json") for name in names]
        for arm, names in plan.evaluations.items()
    }
    final = {arm: rounds[-1] for arm, rounds in evaluations.items()}
    start = evaluations["imitation"][0]
    arms = [_arm(arm, rounds, start, final) for arm, rounds in evaluations.items()]
    judge = JudgeQuality(rounds=[_judge_round(stages, number) for number in range(1, config.rounds + 1)])
    headline_text = headline(arms)
    report = ReportData(
        title=config.report.title,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        headline=headline_text,
        details=details(config, arms, judge),
        arms=arms,
        provenance=provenance,
        curves=_curves(stages),
        judge=judge,
        credit=[_credit_round(config, stages, number) for number in range(1, config.rounds + 1)],
        episodes=[*read_views(stages / "showcase"), *read_views(stages / f"credit-{config.rounds}")],
        commands=_commands(config, out),
    )
    return Results(report=report, summary=_summary(arms, final, judge, headline_text))


def _commands(config: RunConfig, out: Path) -> list[str]:
    policy = out / "stages" / f"improved-{config.rounds}" / "policy"
    file = f"configs/{config.name}.yaml"
    return [
        f"robo-rl run {file} --out={out}",
        f"robo-rl eval {file} --policy={policy} --against={out}/stages/evaluate-imitation/evaluation.json",
    ]


def _arm(
    name: str, rounds: list[EvaluationResult], start: EvaluationResult, final: Mapping[str, EvaluationResult]
) -> ArmResult:
    last = rounds[-1]
    summary = last.summary()
    undefined = {} if last.success.any() else {"mean_success_steps": "no episode succeeded"}
    others = [other for other in final if other != name and (name == "improved" or other == "imitation")]
    tests = [_paired(last, final[other], other) for other in others]
    numbered = rounds if name == "imitation" else [start, *rounds]
    return ArmResult(
        name=name,
        label=LABELS[name],
        n=summary.success.count,
        successes=int(last.success.sum()),
        wilson_low=summary.success.low,
        wilson_high=summary.success.high,
        mean_success_steps=_number(summary.mean_steps_of_successes),
        seconds_per_episode=_number(summary.seconds_per_episode),
        tasks=[
            TaskResult(
                task=task,
                n=rate.count,
                successes=round(rate.value * rate.count),
                wilson_low=rate.low,
                wilson_high=rate.high,
            )
            for task, rate in summary.per_task.items()
        ],
        rounds=[_round(number, result) for number, result in enumerate(numbered)],
        comparisons=tests,
        undefined=undefined,
    )


def _round(number: int, result: EvaluationResult) -> RoundResult:
    rate = result.summary().success
    return RoundResult(
        round=number,
        n=rate.count,
        successes=int(result.success.sum()),
        wilson_low=rate.low,
        wilson_high=rate.high,
    )


def _paired(result: EvaluationResult, other: EvaluationResult, name: str) -> PairedTest:
    done = compare(result, other)
    return PairedTest(
        other=name,
        difference=_number(done.difference.value),
        low=_number(done.difference.low),
        high=_number(done.difference.high),
        p=_number(done.test.p_value),
        wins=done.test.only_a,
        losses=done.test.only_b,
    )


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _judge_round(stages: Path, number: int) -> JudgeRound:
    folder = stages / f"judge-{number}"
    quality = json.loads((folder / "quality.json").read_text())
    audit = json.loads((folder / "audit.json").read_text())
    rows = [
        AuditRow(
            control=row["control"],
            what=row["what"],
            effect=_number(row["effect"]),
            low=_number(row["low"]),
            high=_number(row["high"]),
            rule=row["rule"],
            verdict=row["verdict"],
        )
        for row in audit["rows"]
    ]
    bins = [CalibrationBin(**row) for row in quality.pop("calibration")]
    return JudgeRound(round=number, calibration=bins, audit=rows, **quality)


def _credit_round(config: RunConfig, stages: Path, number: int) -> CreditRound:
    folder = stages / f"credit-{number}"
    figures = json.loads((folder / "credit.json").read_text())
    with np.load(folder / "credit.npz") as kept:
        weight, kind = kept["weight"], kept["kind"]
    edges = [*BINS[:-1], max(BINS[-1], float(np.ceil(weight.max() + 1e-6)))]
    histogram = {
        WindowKind(value).name.lower().replace("_", " "): np.histogram(weight[kind == value], edges)[0].tolist()
        for value in np.unique(kind)
        if value != WindowKind.EXCLUDED
    }
    return CreditRound(
        round=number,
        method=config.credit.type,
        ess=_number(figures["ess"]),
        ess_share=_number(figures["ess_share"]),
        num_samples=int(figures["samples"]),
        histogram=histogram,
        bin_edges=edges,
    )


def _curves(stages: Path) -> list[Curve]:
    curves = []
    for path in sorted(stages.glob("*/training/metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        curves.append(
            Curve(
                name="flow loss",
                group=path.parent.parent.name,
                x_label="gradient step",
                y_label="loss",
                x=[row["step"] for row in rows],
                y=_smooth([row["flow_loss"] for row in rows]),
            )
        )
    for path in sorted(stages.glob("judge-*/curves.json")):
        for name, values in json.loads(path.read_text()).items():
            smooth = _smooth(values, 15)
            steps = list(range(1, len(values) + 1, max(1, len(values) // 60)))
            y = [smooth[step - 1] for step in steps]
            group = f"{path.parent.name}: {name}"
            curves.append(Curve(name=name, group=group, x_label="gradient step", y_label="loss", x=steps, y=y))
    return curves


def _smooth(values: list[float], width: int = 3) -> list[float | None]:
    kept = np.array(values, dtype=float)
    out = []
    for place in range(len(kept)):
        part = kept[max(0, place - width) : place + width + 1]
        part = part[np.isfinite(part)]
        out.append(float(part.mean()) if len(part) else None)
    return out


def read_views(folder: Path) -> list[EpisodeView]:
    """The episodes that a stage chose to show."""
    rows = json.loads((folder / "views.json").read_text())
    return [read_episode(folder, row, f"{folder}: views[{place}]") for place, row in enumerate(rows)]


def _summary(
    arms: list[ArmResult], final: Mapping[str, EvaluationResult], judge: JudgeQuality, headline_text: str
) -> dict[str, Any]:
    by_name = {arm.name: arm for arm in arms}
    last = judge.rounds[-1]

    def p_value(other: str) -> float | None:
        tests = [test.p for test in by_name["improved"].comparisons if test.other == other]
        return tests[0] if tests else None

    keys = ("n", "successes", "wilson_low", "wilson_high", "mean_success_steps")
    return {
        "verdict": headline_text,
        **{arm.name: {key: getattr(arm, key) for key in keys} for arm in arms},
        "paired_p": p_value("imitation"),
        "paired_p_vs_filtered_bc": p_value("filtered_bc"),
        "paired_p_vs_bc_continued": p_value("bc_continued"),
        "judge": {
            "auroc": last.auroc,
            "voc": last.voc,
            "vroc": last.vroc,
            "ece": last.ece,
            "brier": last.brier,
            "audit": {row.control: row.verdict for row in last.audit},
        },
    }


def rate_table(result: EvaluationResult) -> str:
    """Success overall and per task, with Wilson intervals, as lines of text."""
    summary = result.summary()
    rows = [("all", summary.success), *summary.per_task.items()]
    lines = [f"{'task':<24} success      95 % interval   episodes"]
    for task, rate in rows:
        lines.append(
            f"{task:<24} {100 * rate.value:5.1f} %   {100 * rate.low:5.1f} to {100 * rate.high:5.1f} %   {rate.count}"
        )
    if result.success.any():
        lines.append(f"successful episodes take {summary.mean_steps_of_successes:.1f} steps on average")
    return "\n".join(lines)


def comparison_sentence(done: Comparison) -> str:
    """A paired comparison in words."""
    return (
        f"paired on {done.num_pairs} states: {100 * done.difference.value:+.1f} points "
        f"[{100 * done.difference.low:+.1f}, {100 * done.difference.high:+.1f}], {done.test.only_a} won, "
        f"{done.test.only_b} lost, {spoken_p(_number(done.test.p_value))} (exact McNemar)"
    )
