"""How actions and proprioception go together: what kind of commands they are, what comes first, which way is up.

All of it is correlation over whole sampled episodes, nothing is assumed of the robot. Where nothing correlates the
answer is "unknown" and no finding is made [our choice, as are all thresholds here].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robo_rl.data.doctor_finding import Finding, found
from robo_rl.data.doctor_scan import Scan

LAG_SECONDS = 0.5
KNOWN = 0.6  # correlation from which a dimension's kind counts as known
SAME = 0.5  # deviations of a command: where the state comes closer than this at some lag, it is the state commanded
LATE_SECONDS = 0.3
FACTORS = {"degrees to radians": 180 / np.pi, "metres to millimetres": 1000.0, "metres to centimetres": 100.0}
Series = list[np.ndarray]  # float64 (T, D) an episode


@dataclass(frozen=True, kw_only=True)
class Motion:
    """What each action does to the proprioception, as far as the sample tells."""

    kind: list[str]  # of each action: "absolute", "delta" or "unknown"
    partner: np.ndarray  # int64 (A,), the number of the state that goes with it
    strength: np.ndarray  # float64 (A,), correlation with its sign
    lags: np.ndarray  # int64 (A,), steps from a command to its effect; meaningless where the kind is unknown
    lead: np.ndarray  # float64 (A,): how much better this lag explains the motion than any from 0 on
    slope: np.ndarray  # float64 (A,), action units a state unit, of absolute actions; NaN otherwise
    episodes: int

    @property
    def known(self) -> np.ndarray:
        return np.flatnonzero([kind != "unknown" for kind in self.kind])

    def majority(self, grippers: Sequence[int]) -> str:
        """The kind of most actions. Grippers are often absolute where the arm is not: they count when alone."""
        names = [self.kind[d] for d in self.known if d not in grippers] or [self.kind[d] for d in self.known]
        return max(sorted(set(names)), key=names.count) if names else "unknown"


def correlation(left: Series, right: Series, lag: int) -> np.ndarray:
    """Of left[t] with right[t + lag], pooled over episodes and scaled by the spread of all: (A, S)."""
    total, count = np.zeros((left[0].shape[1], right[0].shape[1])), 0
    for one, other in zip(left, right, strict=True):
        length = min(len(one), len(other))
        early, late = one[max(0, -lag) : length - max(0, lag)], other[max(0, lag) : length - max(0, -lag)]
        if len(early) > 0 and len(early) == len(late):
            total += early.T @ late
            count += len(early)
    scale = np.outer(_root_mean_square(left), _root_mean_square(right))
    return np.divide(total / max(count, 1), scale, out=np.zeros_like(total), where=scale > 0)


def _root_mean_square(series: Series) -> np.ndarray:
    return np.sqrt(sum((one**2).sum(0) for one in series) / max(sum(len(one) for one in series), 1))


def _centred(series: Sequence[np.ndarray], *, each: bool) -> Series:
    """Without the mean of each episode, or of all. Spread that is rounding alone counts as none."""
    doubles = [one.astype(np.float64) for one in series]
    mean = np.concatenate(doubles).mean(0)
    size = 1e-6 * np.abs(np.concatenate(doubles)).max(0)
    out = [one - (one.mean(0) if each else mean) for one in doubles]
    return [np.where(np.abs(one) > size, one, 0.0) for one in out]


def study(scan: Scan) -> Motion | None:
    """None where there is no proprioception or no episode that is long enough."""
    lag = max(3, min(10, round(LAG_SECONDS * scan.recording.fps)))
    sample = [rows for rows in scan.sample if len(rows) > 2 * lag + 4]
    if not sample or not scan.state.mean.size or scan.is_unactuated:
        return None
    actions, states = [rows.action[:-1] for rows in sample], [rows.state for rows in sample]
    moves = _centred([np.diff(state, axis=0) for state in states], each=False)
    steps = _centred([np.diff(action, axis=0) for action in actions], each=False)
    lags = np.arange(-lag, lag + 1)
    by_delta = np.stack([correlation(_centred(actions, each=False), moves, int(k)) for k in lags])
    by_step = np.stack([correlation(steps, moves, int(k)) for k in lags])
    levels = _centred(actions, each=True), _centred([state[:-1] for state in states], each=True)
    by_level = max((correlation(*levels, k) for k in range(3)), key=lambda values: float(np.abs(values).max()))
    spread = np.concatenate(actions).astype(np.float64).std(0)
    gaps = np.stack([_gap(actions, states, int(k)) for k in lags]) / np.where(spread > 0, spread, 1.0)[:, None]
    for d in np.flatnonzero((gaps.min(axis=(0, 2)) < SAME) & (spread > 0)):
        at = int(gaps[:, d].min(axis=1).argmin())  # commands and states have one unit: no doubt what they are
        by_level[d], by_delta[:, d] = correlation(*levels, int(lags[at]))[d], 0.0
    parts = [_dimension(d, by_delta, by_step, by_level, lags) for d in range(actions[0].shape[1])]
    kind, partner, strength, best, lead = zip(*parts, strict=True)
    slope = np.array(
        [
            _slope(levels[0], levels[1], d, j) if name == "absolute" else np.nan
            for d, (name, j) in enumerate(zip(kind, partner, strict=True))
        ]
    )
    return Motion(
        kind=list(kind),
        partner=np.array(partner),
        strength=np.array(strength),
        lags=np.array(best),
        lead=np.array(lead),
        slope=slope,
        episodes=len(sample),
    )


def _gap(actions: Sequence[np.ndarray], states: Sequence[np.ndarray], lag: int) -> np.ndarray:
    """Root mean square of action[t] - state[t + lag]: (A, S)."""
    total, count = np.zeros((actions[0].shape[1], states[0].shape[1])), 0
    for action, state in zip(actions, states, strict=True):
        early = action[max(0, -lag) : len(state) - max(0, lag)].astype(np.float64)
        late = state[max(0, lag) :][: len(early)].astype(np.float64)
        early = early[: len(late)]
        total += (early**2).sum(0)[:, None] + (late**2).sum(0) - 2 * early.T @ late
        count += len(early)
    return np.sqrt(np.maximum(total, 0.0) / max(count, 1))


def _dimension(
    number: int, by_delta: np.ndarray, by_step: np.ndarray, by_level: np.ndarray, lags: np.ndarray
) -> tuple[str, int, float, int, float]:
    """(kind, partner, correlation, lag, lead) of one action."""
    level_partner = int(np.abs(by_level[number]).argmax())
    at, delta_partner = np.unravel_index(np.abs(by_delta[:, number]).argmax(), by_delta[:, number].shape)
    level, delta = float(by_level[number, level_partner]), float(by_delta[at, number, delta_partner])
    if abs(level) >= KNOWN and abs(level) >= abs(delta):
        lag, lead = _lag(np.sign(level) * by_step[:, number, level_partner], lags)
        return "absolute", level_partner, level, lag, lead
    if abs(delta) >= KNOWN:
        lag, lead = _lag(np.sign(delta) * by_delta[:, number, delta_partner], lags)
        return "delta", int(delta_partner), delta, lag, lead
    return "unknown", level_partner, 0.0, 0, 0.0


def _lag(curve: np.ndarray, lags: np.ndarray) -> tuple[int, float]:
    """The lag of the peak, the one nearest to 0 among equals; and by how much it beats all from 0 on."""
    peak = float(curve.max())
    if peak < 0.3:
        return 0, 0.0
    near = lags[curve >= peak - 0.02]
    best = int(near[np.abs(near).argmin()])
    return best, peak - float(curve[lags >= 0].max())


def _slope(actions: Series, states: Series, number: int, partner: int) -> float:
    pairs = zip(actions, states, strict=True)
    both = sum(float(one[:, number] @ other[:, partner]) for one, other in pairs)
    return both / sum(float(other[:, partner] @ other[:, partner]) for other in states)


def describe(motion: Motion | None, scan: Scan, grippers: Sequence[int]) -> dict[str, Any]:
    """Plain facts for the text and the JSON."""
    if motion is None:
        return {"kind": "unknown"}
    facts: dict[str, Any] = {
        "kind": motion.majority(grippers),
        "kinds": motion.kind,
        "sampled_episodes": motion.episodes,
    }
    if len(motion.known):
        steps = int(np.median(motion.lags[motion.known]))
        facts |= {"lag_steps": steps, "lag_seconds": steps / scan.recording.fps}
        facts["correlation"] = [round(float(value), 3) for value in motion.strength]
    return facts


# --- findings -------------------------------------------------------------------------------------------------


def examine_motion(motion: Motion | None, scan: Scan, grippers: Sequence[int]) -> Iterator[Finding]:
    if motion is None or not len(motion.known):
        return
    yield from _order(motion, scan)
    yield from _copies(motion, scan)
    yield from _units(motion, scan)
    yield from _odd_episodes(motion, scan, grippers)


def _order(motion: Motion, scan: Scan) -> Iterator[Finding]:
    fps = scan.recording.fps
    lags, leads = motion.lags[motion.known], motion.lead[motion.known]
    steps = int(np.median(lags))
    evidence = {"lag_steps": steps, "lag_seconds": steps / fps, "dimensions": motion.known.tolist()}
    if steps < 0 and np.median(leads) > 0.05:
        what = f"actions come {-steps} step{'s' * (steps < -1)} after the motion that they should cause"
        advice = f"action and observation.state are shifted against each other: move the actions {-steps} rows up"
        yield from found("action-late", "error", "dataset", what, advice, lead=float(np.median(leads)), **evidence)
    elif steps > max(2, LATE_SECONDS * fps):
        what = f"the state follows the actions only after {steps} steps"
        advice = "look for a delay in the recorder; a policy will act on what is long past"
        yield from found("slow-state", "warning", "dataset", what, advice, **evidence)


def _copies(motion: Motion, scan: Scan) -> Iterator[Finding]:
    """Absolute actions that are the present state: a policy learns to stand still."""
    copied = []
    for number in motion.known[[motion.kind[d] == "absolute" for d in motion.known]].tolist():
        partner = int(motion.partner[number])
        gap = max(float(np.abs(rows.action[:-1, number] - rows.state[:-1, partner]).max()) for rows in scan.sample)
        if gap <= 1e-4 * max(float(scan.state.span[partner]), 1e-9):
            copied.append(number)
    if copied and len(copied) == sum(kind == "absolute" for kind in motion.kind):
        what = f"action {', '.join(map(str, copied))} is the proprioception of the same row"
        advice = "record the commands, or take the state of the next row as the action"
        yield from found("action-is-state", "error", "dataset", what, advice, dimensions=copied)


def _units(motion: Motion, scan: Scan) -> Iterator[Finding]:
    for name, factor in FACTORS.items():
        for value, word in ((factor, "action"), (1 / factor, "state")):
            off = np.flatnonzero(np.abs(np.abs(motion.slope) / value - 1.0) < 0.15).tolist()
            if off:
                slope = float(np.median(motion.slope[off]))
                what = f"action {', '.join(map(str, off))} is {slope:.4g} times the state that it commands"
                advice = f"looks like {name}; the {word} is in the smaller unit: bring both into the same"
                yield from found("units-differ", "warning", "dataset", what, advice, slope=slope, dimensions=off)


def _odd_episodes(motion: Motion, scan: Scan, grippers: Sequence[int]) -> Iterator[Finding]:
    """Episodes in which an axis is turned round, or whose actions are of the other kind."""
    flipped: dict[int, list[str]] = {}
    other: list[str] = []
    usual = motion.majority(grippers)
    steady = [d for d in motion.known if d not in grippers and motion.kind[d] == usual]
    for rows in scan.sample:
        if len(rows) < 12:
            continue
        levels, deltas = _own(motion, rows.action[:-1], rows.state)
        own = np.array([levels[d] if kind == "absolute" else deltas[d] for d, kind in enumerate(motion.kind)])
        for d in motion.known:
            if own[d] * np.sign(motion.strength[d]) < -0.5:
                flipped.setdefault(int(d), []).append(scan.name(rows.number))
        if steady:
            as_all, as_other = (levels, deltas) if usual == "absolute" else (deltas, levels)
            if np.median(np.abs(as_other[steady])) > max(0.7, np.median(np.abs(as_all[steady])) + 0.2):
                other.append(scan.name(rows.number))
    for d, names in flipped.items():
        name, said = ("gripper-sign", "the gripper") if d in grippers else ("flipped-axis", f"action {d}")
        what = f"{said} moves the state the other way than in the other episodes"
        advice = "turn its sign round, or leave these episodes out"
        yield from found(name, "error", names, what, advice, dimension=d, correlation=float(motion.strength[d]))
    kinds = {"absolute": "positions", "delta": "differences"}
    what = f"the actions do not look like {kinds.get(usual, '')}, as they do in the other episodes"
    advice = "two recorders, or two settings of one: convert these episodes or leave them out"
    yield from found("mixed-action-kind", "error", other, what, advice, kind=usual)


def _own(motion: Motion, action: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Correlation of every action with its partner's level and with its partner's change, in one episode."""
    partner, length = state[:, motion.partner].astype(np.float64), len(action)
    levels, deltas = np.zeros(action.shape[1]), np.zeros(action.shape[1])
    for d in range(action.shape[1]):
        lag = max(0, int(motion.lags[d]))
        values = action[: length - lag, d].astype(np.float64)
        change = np.diff(partner[:, d])[lag:][: len(values)]
        level = partner[lag:-1, d][: len(values)]
        levels[d], deltas[d] = _pearson(values, level), _pearson(values, change)
    return levels, deltas


def _pearson(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one - one.mean(), other - other.mean()
    size = np.sqrt((one @ one) * (other @ other))
    return float(one @ other / size) if size > 1e-12 else 0.0
