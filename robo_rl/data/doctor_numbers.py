"""Actions and proprioception on their own: what never changes, what is far off, units, the gripper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from robo_rl.data.doctor_finding import Finding, found
from robo_rl.data.doctor_scan import Moments, Scan

FAR = 5.0  # ranges from the 1 % to the 99 % quantile that a value may lie outside of them
TIMES_USUAL = 3.0  # the 99 % quantile: actions in [-1, 1] that reach further are outliers
FACTORS = {180 / np.pi: "degrees among radians", 1000.0: "millimetres among metres"}
GRIPPER_WORDS = ("grip", "finger", "jaw", "claw")


def examine_numbers(scan: Scan) -> Iterator[Finding]:
    yield from _widths(scan)
    yield from _constant(scan)
    yield from _range(scan)
    yield from _far(scan)
    yield from _scales(scan)
    yield from _rewards(scan)
    yield from _gripper(scan, gripper_numbers(scan))


def gripper_numbers(scan: Scan) -> list[int]:
    """Which actions are grippers: those named so, or else the last."""
    names = scan.recording.names("action")
    return _named(names) or [len(scan.action.mean) - 1]


def _named(names: Sequence[str]) -> list[int]:
    return [number for number, name in enumerate(names) if any(word in name for word in GRIPPER_WORDS)]


def describe(scan: Scan) -> dict[str, Any]:
    """Plain facts about the actions and the gripper."""
    low, high = scan.action.low, scan.action.high
    most = float(np.abs(np.concatenate([low, high])).max(initial=0.0))
    units = "within [-1, 1]" if most <= 1 + 1e-6 else "radians or metres" if most <= 2 * np.pi else "degrees or counts"
    grippers = gripper_numbers(scan)
    values = scan.action.sample[:, grippers[0]]
    levels = np.unique(np.round(values, 3))
    return {
        "action_low": [round(float(value), 4) for value in low],
        "action_high": [round(float(value), 4) for value in high],
        "units": units,
        "gripper": grippers,
        "gripper_named": bool(_named(scan.recording.names("action"))),
        "gripper_range": [float(values.min(initial=0.0)), float(values.max(initial=0.0))],
        "gripper_levels": levels.tolist() if len(levels) <= 3 else "continuous",
    }


def _widths(scan: Scan) -> Iterator[Finding]:
    for key, moments in (("action", scan.action), ("observation.state", scan.state)):
        declared = scan.recording.width(key)
        if declared and declared != len(moments.mean):
            what = f"{key} has {len(moments.mean)} numbers in data/, {declared} in meta/info.json"
            yield from found("wrong-width", "error", "dataset", what, "correct the shape in meta/info.json")
        names = scan.recording.info["features"].get(key, {}).get("names")
        if isinstance(names, list) and len(names) != declared:
            what = f"{key} has {declared} numbers but {len(names)} names"
            yield from found("wrong-names", "warning", "dataset", what, "correct the names in meta/info.json")


def _constant(scan: Scan) -> Iterator[Finding]:
    constant = np.flatnonzero(scan.action.span == 0)
    if len(constant):
        what = f"action {', '.join(map(str, constant))} never changes"
        advice = "check what was recorded"
        yield from found("constant-action", "warning", "dataset", what, advice, dimensions=constant.tolist())
    for key, moments in (("action", scan.action), ("observation.state", scan.state)):
        for number, share, spread in _nearly_constant(moments):
            what = f"{key} {number} hardly ever changes"
            advice = "normalising blows up its noise: leave the dimension out, or give it a spread of 1"
            evidence = {"dimension": number, "same_value_share": share, "spread": spread}
            yield from found("near-constant", "warning", "dataset", what, advice, **evidence)
    constant = np.flatnonzero(scan.state.span == 0)
    if 0 < len(constant) < len(scan.state.mean):
        what = f"observation.state {', '.join(map(str, constant))} never changes"
        advice = "harmless where the normaliser guards against a spread of 0"
        yield from found("constant-state", "note", "dataset", what, advice, dimensions=constant.tolist())
    span = scan.state.span
    idle, numb = [], []
    for number in scan.good:
        one = scan.episodes[number]
        acts = bool(np.ptp([one.action_low, one.action_high], axis=0).any())
        if not acts and scan.action.span.any():
            idle.append(scan.name(number))
        if acts and len(span) and not np.any(one.state_high != one.state_low):
            numb.append(scan.name(number))
    yield from found("idle-episode", "warning", idle, "not one action changes", "the robot was not driven: remove them")
    what = "actions change, the proprioception does not"
    yield from found("dead-state", "warning", numb, what, "check the sensors")


def _nearly_constant(moments: Moments) -> Iterator[tuple[int, float, float]]:
    """(dimension, share of its most frequent value, spread): 99 % the same value, or a spread that is noise alone."""
    sample, usual = moments.sample, np.median(moments.std[moments.std > 0]) if moments.std.any() else 0.0
    for number in np.flatnonzero(moments.span > 0).tolist():
        values, counts = np.unique(sample[:, number], return_counts=True)
        share, spread = float(counts.max() / len(sample)), float(moments.std[number])
        noise = spread < 1e-4 * usual or spread < 1e-6 * abs(float(moments.mean[number]))
        if len(values) and ((share > 0.99 and len(sample) >= 200) or noise):
            yield number, share, spread


def _range(scan: Scan) -> Iterator[Finding]:
    total = sum(int(scan.recording.lengths[number]) - 1 for number in scan.good)
    beyond = {number: scan.episodes[number].beyond for number in scan.good if scan.episodes[number].beyond}
    share = sum(beyond.values()) / max(total, 1)
    most = float(np.abs(np.concatenate([scan.action.low, scan.action.high])).max(initial=0.0))
    usual = np.quantile(np.abs(scan.action.sample), 0.99, axis=0)
    # joint angles in radians pass 1 as well, but not by a jump
    jumps = np.maximum(np.abs(scan.action.low), np.abs(scan.action.high)) > TIMES_USUAL * np.maximum(usual, 0.1)
    if 0 < share < 0.05 and jumps.any():
        what = f"actions reach {most:.3g}, though nearly all lie in [-1, 1]"
        advice = "look for outliers and wrong units"
        yield from found("action-outlier", "warning", map(scan.name, beyond), what, advice, share=share)
    elif beyond:
        what = f"actions reach {most:.3g}"
        yield from found("action-range", "note", "dataset", what, "the worlds of this project take [-1, 1]")


def _far(scan: Scan) -> Iterator[Finding]:
    """Single values far from all others: a glitch of the sensor or of the recorder."""
    bounds = [
        ("action", scan.action, lambda one: (one.action_low, one.action_high)),
        ("observation.state", scan.state, lambda one: (one.state_low, one.state_high)),
    ]
    for key, moments, limits in bounds:
        if moments.count < 50 or not len(moments.mean):
            continue
        low, high = np.quantile(moments.sample, [0.01, 0.99], axis=0)
        reach = np.where(high > low, FAR * (high - low), np.inf)
        for number in np.flatnonzero((moments.low < low - reach) | (moments.high > high + reach)).tolist():
            at = [
                episode
                for episode in scan.good
                if (limits(scan.episodes[episode])[0][number] < low[number] - reach[number])
                or (limits(scan.episodes[episode])[1][number] > high[number] + reach[number])
            ]
            if len(at) > max(1, len(scan.good) // 10):
                continue  # not single ones: a scale, which `_scales` names
            what = f"{key} {number} has values far from all others"
            evidence = {
                "least": float(moments.low[number]),
                "greatest": float(moments.high[number]),
                "usual": [float(low[number]), float(high[number])],
            }
            advice = "a glitch of a sensor or a wrong unit: mend or leave out; min / max normalisation suffers most"
            yield from found("far-value", "warning", map(scan.name, at), what, advice, **evidence)


def _scales(scan: Scan) -> Iterator[Finding]:
    """Episodes whose numbers are all greater or smaller than usual by the factor between two units."""
    numbers = scan.good
    if len(numbers) < 3:
        return
    for key, low, high in (("action", "action_low", "action_high"), ("observation.state", "state_low", "state_high")):
        ends = [(getattr(scan.episodes[n], low), getattr(scan.episodes[n], high)) for n in numbers]
        sizes = np.array([np.maximum(np.abs(one), np.abs(other)) for one, other in ends], np.float64)
        if not sizes.size:
            continue
        ratios = _ratios(sizes)
        for factor, said in FACTORS.items():
            for value in (factor, 1 / factor):
                at = [n for n in range(len(numbers)) if abs(ratios[n] - np.log(value)) < 0.5]
                what = f"{key} is about {value:.3g} times what it is in the other episodes"
                evidence = {"ratios": np.exp(ratios[at[:50]]).tolist()}
                names = [scan.name(numbers[n]) for n in at]
                advice = f"looks like {said}: convert these episodes"
                yield from found("mixed-units", "error", names, what, advice, **evidence)


def _ratios(sizes: np.ndarray) -> np.ndarray:
    """(E, D) greatest sizes -> (E,) log of the factor by which an episode differs; NaN where dimensions disagree.

    An episode in which the robot hardly moves is small, too, but not by one factor in all dimensions.
    """
    usual = np.median(sizes, axis=0)
    moving = (usual > 0) & (sizes > 0).all(axis=0)
    if moving.sum() < 2:
        return np.full(len(sizes), np.nan)
    logs = np.log(sizes[:, moving] / usual[moving])
    return np.where(logs.std(axis=1) < 0.5, np.median(logs, axis=1), np.nan)


def _rewards(scan: Scan) -> Iterator[Finding]:
    bad = [
        scan.name(number)
        for number in scan.good
        if scan.facts[number].has_reward and np.isnan(_or_zero(scan.episodes[number].reward))
    ]
    yield from found("bad-reward", "error", bad, "rewards that are not finite", "record them again or leave them out")


def _or_zero(value: float | None) -> float:
    return 0.0 if value is None else value


# --- the gripper ------------------------------------------------------------------------------------------------


def _gripper(scan: Scan, grippers: Iterable[int]) -> Iterator[Finding]:
    named = bool(_named(scan.recording.names("action")))
    for number in grippers:
        said = f"action {number}, the gripper," if named else "the last action, usually the gripper,"
        still = [n for n in scan.good if scan.episodes[n].action_low[number] == scan.episodes[n].action_high[number]]
        what = f"{said} stays the same in {len(still)} of {len(scan.good)} episodes"
        severity = "warning" if len(still) == len(scan.good) else "note"
        advice = "check that it was recorded"
        yield from found("still-gripper", severity, map(scan.name, still), what, advice, dimension=number)
        if len(still) < len(scan.good):
            yield from _gripper_range(scan, number, said, named=named)


def _gripper_range(scan: Scan, number: int, said: str, *, named: bool) -> Iterator[Finding]:
    low, high = float(scan.action.low[number]), float(scan.action.high[number])
    others = np.delete(np.maximum(np.abs(scan.action.low), np.abs(scan.action.high)), number)
    evidence = {"dimension": number, "low": low, "high": high}
    if len(others) and others.max() <= 1 + 1e-6 and max(-low, high) > 1.5:
        what = f"{said} reaches {max(-low, high, key=abs):.3g}, all other actions lie in [-1, 1]"
        advice = "scale it to the range of the others"
        yield from found("gripper-range", "warning", "dataset", what, advice, **evidence)
    is_one_sided = low > 0.05 or high < -0.05
    if is_one_sided and max(abs(low), abs(high)) <= 1 + 1e-6:
        never = "closes" if low > 0 else "opens"
        what = f"{said} is always {'above' if low > 0 else 'below'} {low if low > 0 else high:.3g}: it never {never}"
        advice = "where more is more open, as in this project's worlds (> 0 opens); check range and sign"
        severity = "warning" if named else "note"
        yield from found("one-sided-gripper", severity, "dataset", what, advice, **evidence)
    few_levels = len(np.unique(np.round(scan.action.sample[:, number], 3))) <= 4
    if named or few_levels:
        yield from _conventions(scan, number, said)


def _conventions(scan: Scan, number: int, said: str) -> Iterator[Finding]:
    """Episodes of one task whose gripper goes from 0 to 1 among others where it goes from -1 to 1.

    Between tasks nothing is compared: what closes in one may stay still, at 0, in another.
    """
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for episode in scan.good:
        one, facts = scan.episodes[episode], scan.facts[episode]
        low, high = float(one.action_low[number]), float(one.action_high[number])
        if 0.5 <= high <= 1 + 1e-6 and (low <= -0.5 or abs(low) <= 0.02):
            groups.setdefault(facts.task or facts.instruction, ([], []))[low > -0.5].append(facts.episode_id)
    for task, (signed, unsigned) in groups.items():
        if signed and unsigned:
            words = "-1 to 1", "0 to 1"
            fewer, (here, there) = (signed, words) if len(signed) <= len(unsigned) else (unsigned, words[::-1])
            what = f"{said} goes from {here} here and from {there} elsewhere"
            evidence = {"dimension": number, "task": task}
            yield from found("mixed-gripper", "error", fewer, what, "bring all to one convention", **evidence)
