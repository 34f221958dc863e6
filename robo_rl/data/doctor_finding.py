"""What the doctor has to say: one finding a thing, with evidence in numbers and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SEVERITIES = ("error", "warning", "note")
NAMED = 2  # episodes that the text names
LISTED = 50  # episodes that the evidence lists


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know about a dataset."""

    severity: str  # "error": do not train on it; "warning": look at it; "note": good to know
    where: str
    what: str
    advice: str
    name: str = ""  # what kind of finding: "frozen-camera"
    evidence: Mapping[str, Any] = field(default_factory=dict)  # plain numbers, words and lists of them

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"evidence": dict(self.evidence)}


def found(
    name: str, severity: str, where: Iterable[str] | str, what: str, advice: str, **evidence: Any
) -> Iterator[Finding]:
    """One finding, or none when `where` lists episodes and there is none."""
    if not isinstance(where, str):
        names = list(where)
        if not names:
            return
        evidence |= {"episodes": names[:LISTED], "num_episodes": len(names)}
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        where = f"episode{'s' * (len(names) > 1)} {', '.join(names[:NAMED])}{more}"
    yield Finding(name=name, severity=severity, where=where, what=what, advice=advice, evidence=evidence)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def table(findings: Sequence[Finding]) -> str:
    """Findings as text, one a line, with aligned columns."""
    if not findings:
        return "nothing found"
    rows = [(f.severity, f.name, f.where, f"{f.what}{_numbers(f.evidence)}; {f.advice}") for f in findings]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)) + f"  {row[3]}" for row in rows
    )


def _numbers(evidence: Mapping[str, Any]) -> str:
    """The single numbers and words of the evidence, in brackets."""
    told = {
        key: f"{value:.4g}" if isinstance(value, float) else str(value)
        for key, value in evidence.items()
        if isinstance(value, (bool, int, float, str)) and key != "num_episodes"
    }
    return f" ({', '.join(f'{key}={value}' for key, value in told.items())})" if told else ""
