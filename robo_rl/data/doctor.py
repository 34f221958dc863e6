"""What is wrong with a dataset, before anything is learned from it.

Numbers are read in groups of rows, every row once; of the videos all headers are read and a sample of frames is
decoded. Memory holds one episode, a bounded sample, and a few numbers an episode, so a million frames are no trouble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robo_rl.data import cache, doctor_motion, doctor_numbers, layout
from robo_rl.data.dataset import EpisodeSet
from robo_rl.data.doctor_finding import SEVERITIES, Finding, found, table, worst_first
from robo_rl.data.doctor_frames import FRAMES, Plan, examine_pictures, plan, watch_cameras
from robo_rl.data.doctor_meta import examine_meta, leakage
from robo_rl.data.doctor_needs import Needs, examine_needs
from robo_rl.data.doctor_read import Recording, open_recording
from robo_rl.data.doctor_scan import Scan, scan
from robo_rl.data.doctor_stats import examine_stats
from robo_rl.errors import DataError

__all__ = ["Diagnosis", "Finding", "Needs", "diagnose", "examine", "is_unactuated", "table"]

LOST = 20  # episodes that cannot be used and are named one by one


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything the doctor has to say."""

    root: Path
    facts: dict[str, Any] = field(default_factory=dict)  # what kind of data it is; empty when it cannot be read
    findings: list[Finding] = field(default_factory=list)  # worst first

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        counts = {name: sum(finding.severity == name for finding in self.findings) for name in SEVERITIES}
        findings = [finding.to_json() for finding in self.findings]
        return {"dataset": str(self.root), "facts": self.facts, "counts": counts, "findings": findings}


def examine(root: Path | str) -> list[Finding]:
    """Findings, worst first. This never raises DataError.

    A dataset that cannot be read gives one error; an episode that cannot, one that names it.
    """
    return diagnose(root).findings


def diagnose(
    root: Path | str, *, needs: Sequence[Needs] = (), against: Path | str | None = None, frames: int = FRAMES
) -> Diagnosis:
    """Facts and findings of a dataset, and of how it fits who is to use it.

    `needs`: of a policy, a judge, a simulator. `against`: another dataset that must not share episodes with it.
    `frames`: how many of each camera are decoded; a dataset with no more is decoded whole. Never raises DataError.
    """
    root = Path(root)
    try:
        recording = open_recording(root)
        made = plan(recording, frames)
        numbers = scan(recording, made.windows)
    except DataError as error:
        return Diagnosis(
            root=root, findings=[*found("unreadable", "error", str(root), str(error), "mend or copy it again")]
        )
    names = [facts.episode_id for facts in numbers.facts]
    seen, findings = watch_cameras(recording, made, numbers.windows, numbers.state.span, names)
    findings += _lost(numbers)
    facts = _facts(numbers, made)
    if numbers.good:
        findings += examine_pictures(seen, names, recording)
        findings += examine_meta(numbers)
        findings += examine_stats(numbers)
        findings += _actuated(numbers, facts)
        for one in needs:
            findings += examine_needs(numbers, one)
        if against is not None:
            findings += _against(numbers, Path(against))
    return Diagnosis(root=root, facts=facts, findings=worst_first(findings))


def is_unactuated(episodes: EpisodeSet) -> bool:
    """Videos alone, as `robo-rl import` makes them of recordings without actions: one action that is always 0."""
    return episodes.flat_actions.shape[1] == 1 and not episodes.flat_actions.any()


def _lost(numbers: Scan) -> list[Finding]:
    why = numbers.recording.damage.why
    advice = "mend it; until then `robo-rl reward score --skip-bad` leaves it out"
    out: list[Finding] = []
    for number in sorted(why)[:LOST]:
        out += found("bad-episode", "error", f"episode {numbers.name(number)}", why[number], advice, number=number)
    more = sorted(why)[LOST:]
    if more:
        out += found("bad-episode", "error", map(numbers.name, more), "these cannot be used either", advice)
    return out


def _actuated(numbers: Scan, facts: dict[str, Any]) -> list[Finding]:
    if numbers.is_unactuated:
        advice = "a judge can learn from it, a policy cannot"
        return [*found("no-actions", "note", "dataset", "there are no actions", advice)]
    motion = doctor_motion.study(numbers)
    grippers = doctor_numbers.gripper_numbers(numbers)
    facts["actions"] = doctor_numbers.describe(numbers) | doctor_motion.describe(motion, numbers, grippers)
    return [
        *doctor_numbers.examine_numbers(numbers),
        *doctor_motion.examine_motion(motion, numbers, grippers),
    ]


def _against(numbers: Scan, other: Path) -> list[Finding]:
    try:
        theirs = scan(open_recording(other), {})
    except DataError as error:
        return [*found("unreadable", "error", str(other), str(error), "mend or copy it again")]
    return [*leakage(numbers, theirs, other)]


def _facts(numbers: Scan, made: Plan) -> dict[str, Any]:
    recording: Recording = numbers.recording
    lengths = recording.lengths
    outcomes = [str(numbers.facts[number].outcome) for number in numbers.good]
    return {
        "episodes": len(recording),
        "usable_episodes": len(numbers.good),
        "frames": int(lengths.sum()),
        "frames_decoded": made.frames,
        "fps": recording.fps,
        "cameras": {layout.camera_name(key): list(cache._size(f)) for key, f in recording.cameras.items()},
        "state_dim": len(numbers.state.mean),
        "action_dim": len(numbers.action.mean),
        "steps": [int(lengths.min()) - 1, int(np.median(lengths)) - 1, int(lengths.max()) - 1],
        "instructions": len({numbers.facts[number].instruction for number in numbers.good}),
        "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
    }
