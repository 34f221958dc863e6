"""What a policy, a judge or a simulator needs of a dataset, and whether the dataset has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from robo_rl.data import cache, layout
from robo_rl.data.doctor_finding import Finding, found
from robo_rl.data.doctor_numbers import gripper_numbers
from robo_rl.data.doctor_scan import Scan
from robo_rl.data.doctor_stats import Stats, examine_policy_stats


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a user of a dataset needs. None: it does not matter, or is not known."""

    who: str  # "policy policies/first"
    fps: float | None = None
    cameras: Mapping[str, tuple[int, int] | None] = field(default_factory=dict)  # name -> (height, width)
    exact_size: bool = True  # False: frames are resized, smaller ones lose detail
    state_dim: int | None = None
    action_dim: int | None = None
    action_range: tuple[float, float] | None = None
    signed_gripper: bool = False  # the sign of the last action opens or closes the gripper
    stats: Stats | None = None  # normalisation
    modes: Mapping[str, str] = field(default_factory=dict)  # feature key -> kind of normalisation


def examine_needs(scan: Scan, needs: Needs) -> Iterator[Finding]:
    who, recording = needs.who, scan.recording
    if needs.fps is not None and abs(needs.fps - recording.fps) > 0.01 * needs.fps:
        what = f"works at {needs.fps:g} steps a second, the dataset was recorded at {recording.fps:g} fps"
        advice = "motions would be faster or slower than demonstrated: resample the data, or change the rate"
        evidence = {"needed": needs.fps, "dataset": recording.fps}
        yield from found("fps-mismatch", "error", who, what, advice, **evidence)
    yield from _cameras(scan, needs)
    for name, wanted, has in (
        ("observation.state", needs.state_dim, len(scan.state.mean)),
        ("action", needs.action_dim, len(scan.action.mean)),
    ):
        if wanted is not None and wanted != has:
            what = f"needs {wanted} numbers of {name}, the dataset has {has}"
            evidence = {"needed": wanted, "dataset": has}
            yield from found("dim-mismatch", "error", who, what, "another robot or action space: convert", **evidence)
    if needs.action_dim in (None, len(scan.action.mean)):
        yield from _actions(scan, needs)
    if needs.stats is not None:
        yield from examine_policy_stats(scan, needs.stats, needs.modes, who)


def _cameras(scan: Scan, needs: Needs) -> Iterator[Finding]:
    present = {layout.camera_name(key): cache._size(feature) for key, feature in scan.recording.cameras.items()}
    for camera, size in needs.cameras.items():
        if camera not in present:
            what = f"needs camera {camera!r}, the dataset has {', '.join(present) or 'none'}"
            evidence = {"needed": camera, "dataset": sorted(present)}
            yield from found("missing-camera", "error", needs.who, what, "rename or record it", **evidence)
            continue
        has = present[camera]
        if size is None or tuple(size) == has:
            continue
        sizes = {"needed": list(size), "dataset": list(has)}
        if needs.exact_size:
            what = f"camera {camera!r} has frames of {has[0]}x{has[1]}, {size[0]}x{size[1]} are needed"
            yield from found("size-mismatch", "error", needs.who, what, "resize or crop the videos", **sizes)
        elif abs(has[0] * size[1] / (has[1] * size[0]) - 1) > 0.1:
            what = f"may stretch frames of camera {camera!r} from {has[0]}x{has[1]} to {size[0]}x{size[1]}"
            yield from found("stretched-frames", "note", needs.who, what, "see whether it pads or stretches", **sizes)
        elif min(has) < min(size):
            what = f"enlarges frames of camera {camera!r} from {has[0]}x{has[1]} to {size[0]}x{size[1]}"
            yield from found("small-frames", "note", needs.who, what, "record larger frames if details matter", **sizes)


def _actions(scan: Scan, needs: Needs) -> Iterator[Finding]:
    if needs.action_range is not None and not scan.is_unactuated:
        low, high = needs.action_range
        slack = 1e-3 * (high - low)
        outside = (scan.action.sample < low - slack) | (scan.action.sample > high + slack)
        beyond = np.flatnonzero((scan.action.low < low - slack) | (scan.action.high > high + slack))
        if len(beyond):
            what = f"takes actions in [{low:g}, {high:g}], the dataset's reach beyond"
            ends = float(scan.action.low.min()), float(scan.action.high.max())
            evidence = {"dimensions": beyond.tolist(), "least": ends[0], "greatest": ends[1]}
            advice = "other units or absolute positions: convert the actions; they would be clipped"
            severity = "error" if outside.any(axis=1).mean() > 0.05 else "warning"
            yield from found("action-range-mismatch", severity, needs.who, what, advice, **evidence)
    if needs.signed_gripper:
        number = gripper_numbers(scan)[-1]
        low = float(scan.action.low[number])
        if low >= -1e-6 and scan.action.span[number] > 0:
            what = f"moves the gripper by the sign of its command, but action {number} is never less than {low:.3g}"
            advice = "the data's gripper goes from 0 to 1: map it to -1 and 1"
            yield from found("gripper-mismatch", "error", needs.who, what, advice, dimension=number, low=low)
