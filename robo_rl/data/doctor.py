"""What is wrong with a dataset, before anything is learned from it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robo_rl.data.damage import instruction_fault
from robo_rl.data.dataset import EpisodeSet, read_episodes
from robo_rl.data.tables import read_table
from robo_rl.data.windows import segments
from robo_rl.errors import DataError
from robo_rl.types import Controller, Outcome, Trajectory

FROZEN_SECONDS = 1.0  # a camera that shows the same for longer while the robot moves has stopped
SAME_PICTURE = 40  # grey levels: where no pixel differs by more it is the codec (up to 36), not the scene (150)
ONE_COLOUR = 16  # grey levels
MOVED = 0.05  # of the range that the proprioception has in the dataset
SHORT_STEPS = 8  # one action chunk
FEW_EPISODES = 5
FLICKER_STEPS = 3  # nobody takes over for less


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know about a dataset."""

    severity: str  # "error": do not train on it; "warning": look at it; "note": good to know
    where: str
    what: str
    advice: str


def examine(root: Path | str) -> list[Finding]:
    """Findings, worst first. This never raises DataError.

    A dataset that cannot be read gives one error; an episode that cannot, one that names it.
    """
    try:
        episodes, bad = read_episodes(root, skip_bad=True)
        times = _clock(episodes)
    except DataError as error:
        return [Finding(severity="error", where=str(root), what=str(error), advice="mend or copy it again")]
    advice = "mend it; until then `robo-rl reward score --skip-bad` leaves it out"
    lost = [Finding(severity="error", where=f"episode {one.episode_id}", what=one.why, advice=advice) for one in bad]
    checks = [_outcomes, _tasks, _identity, _cameras]
    if is_unactuated(episodes):
        advice = "a judge can learn from it, a policy cannot"
        lost.append(Finding(severity="note", where="dataset", what="there are no actions", advice=advice))
    else:
        checks += [_actions, _gripper, _numbers, _controllers]
    findings = [*lost, *times, *(finding for check in checks for finding in check(episodes))]
    return sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.severity))


def table(findings: Sequence[Finding]) -> str:
    """Findings as text, one a line, with aligned columns."""
    if not findings:
        return "nothing found"
    rows = [(f.severity, f.where, f"{f.what}; {f.advice}") for f in findings]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows)


def _found(severity: str, where: Iterable[str] | str, what: str, advice: str) -> Iterator[Finding]:
    """One finding, or none when no episode is named."""
    if not isinstance(where, str):
        names = list(where)
        if not names:
            return
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        where = f"episode{'s' * (len(names) > 1)} {', '.join(names[:2])}{more}"
    yield Finding(severity=severity, where=where, what=what, advice=advice)


def is_unactuated(episodes: EpisodeSet) -> bool:
    """Videos alone, as `robo-rl import` makes them of recordings without actions: one action that is always 0."""
    return episodes.flat_actions.shape[1] == 1 and not episodes.flat_actions.any()


def _clock(episodes: EpisodeSet) -> list[Finding]:
    found: list[Finding] = []
    if not 1 <= episodes.fps <= 120:
        found += _found("warning", "dataset", f"recorded at {episodes.fps:g} fps", "check `fps` in meta/info.json")
    late: set[int] = set()
    first = episodes._stores[0].episodes.first
    for path in sorted(episodes.root.glob("data/*/*.parquet")):
        try:
            table = read_table(path)
        except DataError:
            continue  # its episodes are named already
        if "timestamp" not in table.column_names:
            return [*found, *_found("warning", "dataset", "there are no timestamps", "record them; lerobot needs them")]
        number, times = table["episode_index"].to_numpy(), table["timestamp"].to_numpy()
        expected = (table["index"].to_numpy() - first[number]) / episodes.fps
        late |= set(number[~(np.abs(times - expected) < 0.2 / episodes.fps)].tolist())
    names = [name for name, number in zip(episodes.episode_ids, episodes.numbers, strict=True) if int(number) in late]
    advice = "lerobot looks frames up by time; write frame number / fps"
    return [*found, *_found("error", names, "timestamps are not frame number / fps", advice)]


def _names(episodes: EpisodeSet, numbers: Iterable[int]) -> list[str]:
    return [episodes[int(number)].episode_id for number in numbers]


def _outcomes(episodes: EpisodeSet) -> Iterator[Finding]:
    outcomes = [episode.outcome for episode in episodes]
    unknown = outcomes.count(Outcome.UNKNOWN)
    if unknown:
        what = f"{unknown} of {len(outcomes)} episodes have no outcome"
        yield from _found("warning", "dataset", what, "label them, or only imitate them")
    labels = {outcome.label for outcome in outcomes} - {None}
    autonomous = any((episode.controller == Controller.POLICY).any() for episode in episodes)
    if labels == {0.0}:
        yield from _found("warning", "dataset", "no episode succeeded", "check the success criterion or the policy")
    if labels == {1.0} and autonomous:
        yield from _found("note", "dataset", "every episode succeeded", "a judge needs failures to learn from")


def _tasks(episodes: EpisodeSet) -> Iterator[Finding]:
    for task, count in sorted(Counter(episode.task or episode.instruction for episode in episodes).items()):
        if count < FEW_EPISODES:
            what = f"{count} episode{'s' * (count > 1)}"
            yield from _found("note", f"task {task!r}", what, "its results will be uncertain; record more")
    empty = [episode.episode_id for episode in episodes if instruction_fault(episode.instruction)]
    yield from _found("warning", empty, "no instruction", "a language-conditioned policy needs one, a judge too")


def _identity(episodes: EpisodeSet) -> Iterator[Finding]:
    short = [episode.episode_id for episode in episodes if len(episode) < SHORT_STEPS]
    yield from _found("warning", short, f"fewer than {SHORT_STEPS} steps", "remove them, or check the recording")
    marks = (
        []
        if is_unactuated(episodes)
        else [hashlib.blake2b(e.actions.tobytes() + e.state.tobytes()).digest() for e in episodes]
    )
    first = {mark: number for number, mark in reversed(list(enumerate(marks)))}
    again = [episodes.episode_ids[number] for number, mark in enumerate(marks) if first[mark] != number]
    yield from _found("error", again, "the same actions and states as an earlier episode", "remove the copies")
    double = [name for name, count in Counter(e.episode_id for e in episodes).items() if count > 1]
    yield from _found("error", double, "several episodes have this id", "give each its own")


def _actions(episodes: EpisodeSet) -> Iterator[Finding]:
    actions = episodes.flat_actions[~episodes.is_final]
    constant = np.flatnonzero(np.ptp(actions, axis=0) == 0)
    if len(constant):
        what = f"action {', '.join(map(str, constant))} never changes"
        yield from _found("warning", "dataset", what, "check what was recorded")
    beyond = (np.abs(actions) > 1.0 + 1e-6).any(1)
    owners = np.unique(episodes.episode_of_frame[~episodes.is_final][beyond])
    if 0 < beyond.mean() < 0.05:
        what = f"actions reach {np.abs(actions).max():.3g}, though nearly all lie in [-1, 1]"
        yield from _found("warning", _names(episodes, owners), what, "look for outliers and wrong units")
    elif beyond.any():
        what = f"actions reach {np.abs(actions).max():.3g}"
        yield from _found("note", "dataset", what, "the worlds of this project take [-1, 1]")


def _gripper(episodes: EpisodeSet) -> Iterator[Finding]:
    still = [episode.episode_id for episode in episodes if np.ptp(episode.actions[:, -1]) == 0]
    if still:
        what = f"the last action, usually the gripper, stays the same in {len(still)} of {len(episodes)} episodes"
        severity = "warning" if len(still) == len(episodes) else "note"
        yield from _found(severity, still, what, "check that it was recorded")


def _numbers(episodes: EpisodeSet) -> Iterator[Finding]:
    broken = [e.episode_id for e in episodes if e.reward is not None and not np.isfinite(e.reward).all()]
    yield from _found("error", broken, "rewards that are not finite", "record them again or leave them out")
    if episodes.flat_state.shape[1]:
        still = [
            e.episode_id for e in episodes if np.ptp(e.actions, axis=0).any() and not np.ptp(e.state, axis=0).any()
        ]
        yield from _found("warning", still, "actions change, the proprioception does not", "check the sensors")


def _controllers(episodes: EpisodeSet) -> Iterator[Finding]:
    changes = [np.diff(np.flatnonzero(np.diff(segments(episode.controller)))) for episode in episodes]
    mixed = [e.episode_id for e in episodes if np.ptp(e.controller) > 0]
    flicker = [e.episode_id for e, steps in zip(episodes, changes, strict=True) if (steps < FLICKER_STEPS).any()]
    yield from _found("note", mixed, "the controller changes", "steps before the last takeover carry no outcome")
    yield from _found("warning", flicker, f"control changes within {FLICKER_STEPS} steps", "check the takeover signal")


def _cameras(episodes: EpisodeSet) -> Iterator[Finding]:
    span = np.ptp(episodes.flat_state, axis=0)
    span[span == 0] = np.inf
    most = max(1, round(FROZEN_SECONDS * episodes.fps))
    for camera in episodes.cameras:
        frozen, blank = [], []
        for episode in episodes:
            frames = _thinned(episode.images[camera])
            if (np.ptp(frames.reshape(len(frames), -1, 3), axis=1) <= ONE_COLOUR).all():
                blank.append(episode.episode_id)
            elif _stops(frames, episode, span, most):
                frozen.append(episode.episode_id)
        advice = "check the cable and the recorder"
        yield from _found("error", blank, f"camera {camera!r} shows one colour only", advice)
        what = f"camera {camera!r} shows the same picture for over {most} steps while the robot moves"
        yield from _found("error", frozen, what, advice)


def _thinned(frames: np.ndarray) -> np.ndarray:
    step = max(1, max(frames.shape[1:3]) // 64)
    return frames[:, ::step, ::step].astype(np.int16)


def _stops(frames: np.ndarray, episode: Trajectory, span: np.ndarray, most: int) -> bool:
    """Is there a run of more than `most` steps with one picture, in which the state moves?"""
    same = np.abs(np.diff(frames, axis=0)).max(axis=(1, 2, 3)) <= SAME_PICTURE
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]])))
    for start, stop in edges.reshape(-1, 2):
        moved = np.ptp(episode.state[start : stop + 1], axis=0) / span
        drift = np.abs(frames[stop] - frames[start]).max()  # slow motion is motion
        if stop - start > most and drift <= SAME_PICTURE and moved.size and moved.max() > MOVED:
            return True
    return False
