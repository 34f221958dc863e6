"""What episodes are called, what they are told, how they end, how long they are, which of them are copies."""

from __future__ import annotations

import string
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from robo_rl.data.damage import instruction_fault
from robo_rl.data.doctor_finding import Finding, found
from robo_rl.data.doctor_scan import LATE, Scan
from robo_rl.types import Outcome

SHORT_STEPS = 8  # one action chunk
FEW_EPISODES = 5
FLICKER_STEPS = 3  # nobody takes over for less
TIMES_AS_LONG = 4.0  # as the median episode, or as short: an outlier
EARLY_SECONDS = 2.0  # a success that is recorded for longer than this after it happened
SPACES = str.maketrans(string.punctuation, " " * len(string.punctuation))
_GENERIC = """task|the task|a task|do|do it|do the task|do task|perform the task|perform task|complete the task
finish the task|test|testing|demo|demonstration|default|untitled|unknown|todo|tbd|placeholder|instruction
task description|single task|my task|new task|dummy task|example task|record|recording|episode|xxx|foo|bar|n a|na"""
GENERIC = frozenset(_GENERIC.replace("\n", "|").split("|"))


def examine_meta(scan: Scan) -> Iterator[Finding]:
    yield from _clock(scan)
    yield from _outcomes(scan)
    yield from _contradictions(scan)
    yield from _instructions(scan)
    yield from _texts(scan)
    yield from _lengths(scan)
    yield from _copies(scan)
    if not scan.is_unactuated:
        yield from _controllers(scan)
    if not scan.recording.cameras:
        yield from found("no-camera", "note", "dataset", "there are no cameras", "a judge needs pictures")


def _clock(scan: Scan) -> Iterator[Finding]:
    fps = scan.recording.fps
    if not 1 <= fps <= 120:
        what, advice = f"recorded at {fps:g} fps", "check `fps` in meta/info.json"
        yield from found("strange-fps", "warning", "dataset", what, advice)
    if "timestamp" not in scan.columns:
        what = "there are no timestamps"
        yield from found("no-timestamps", "warning", "dataset", what, "record them; lerobot needs them")
        return
    late = [number for number in scan.episodes if not scan.episodes[number].late < LATE]
    steps = [scan.episodes[number].step for number in late if np.isfinite(scan.episodes[number].step)]
    evidence = {"frames_off": max((scan.episodes[number].late for number in late), default=0.0)}
    advice = "lerobot looks frames up by time; write frame number / fps"
    if len(late) == len(scan.episodes) and steps and np.median(steps) > 0:
        rate = float(1 / np.median(steps))
        if abs(rate - fps) > 0.02 * fps:
            evidence["timestamps_fps"] = rate
            advice = f"they tell of {rate:.4g} fps, meta/info.json of {fps:g}: one of the two is wrong"
    what = "timestamps are not frame number / fps"
    yield from found("bad-timestamps", "error", map(scan.name, late), what, advice, **evidence)
    wrong = [scan.name(number) for number, one in scan.episodes.items() if not one.frame_index]
    what = "frame_index does not count 0, 1, 2, ..."
    yield from found("bad-frame-index", "error", wrong, what, "number the rows of an episode from 0")


def _outcomes(scan: Scan) -> Iterator[Finding]:
    outcomes = [scan.facts[number].outcome for number in scan.good]
    counts = {str(outcome): count for outcome, count in sorted(Counter(outcomes).items())}
    unknown = outcomes.count(Outcome.UNKNOWN)
    if unknown:
        what = f"{unknown} of {len(outcomes)} episodes have no outcome"
        # plain recordings of demonstrations have none: nothing is wrong with them
        severity = "note" if unknown == len(outcomes) and not scan.is_ours else "warning"
        advice = "label them, or only imitate them"
        yield from found("no-outcome", severity, "dataset", what, advice, outcomes=counts)
    labels = {outcome.label for outcome in outcomes} - {None}
    by_policy = any(scan.episodes[number].by_policy for number in scan.good)
    if labels == {0.0}:
        advice = "check the success criterion or the policy"
        yield from found("no-success", "warning", "dataset", "no episode succeeded", advice, outcomes=counts)
    if labels == {1.0} and by_policy:
        advice = "a judge needs failures to learn from"
        yield from found("all-success", "note", "dataset", "every episode succeeded", advice, outcomes=counts)


def _contradictions(scan: Scan) -> Iterator[Finding]:
    """Outcomes, `next.success`, `next.done` and rewards that tell different stories."""
    against, early, rewarded = [], [], []
    late = max(2, round(EARLY_SECONDS * scan.recording.fps))
    sparse = all(scan.episodes[n].sparse for n in scan.good) and any(scan.episodes[n].reward == 1 for n in scan.good)
    for number in scan.good:
        one, facts = scan.episodes[number], scan.facts[number]
        length = int(scan.recording.lengths[number])
        success = None if one.success is None else one.success >= 0
        if success is not None and facts.outcome.label is not None and success != (facts.outcome is Outcome.SUCCESS):
            against.append(number)
        if one.done is not None and 0 <= one.done < length - 1 - late:
            early.append(number)
        if success and sparse and facts.has_reward and one.reward == 0:
            rewarded.append(number)
    what = "the outcome and next.success contradict each other"
    said = {scan.name(n): str(scan.facts[n].outcome) for n in against[:50]}
    advice = "label these episodes again, in one place"
    yield from found("outcome-contradicts", "error", map(scan.name, against), what, advice, outcomes=said)
    what = f"next.done is set more than {late} rows before the end"
    advice = "cut the episode there, or correct the flag: what follows counts as after the end"
    yield from found("early-done", "warning", map(scan.name, early), what, advice)
    what = "next.success is set, but there is no reward"
    advice = "rewards of 0 and 1 should mark the success as elsewhere in the dataset"
    yield from found("reward-contradicts", "warning", map(scan.name, rewarded), what, advice)


def _instructions(scan: Scan) -> Iterator[Finding]:
    tasks = Counter(scan.facts[number].task or scan.facts[number].instruction for number in scan.good)
    for task, count in sorted(tasks.items()):
        if count < FEW_EPISODES:
            what = f"{count} episode{'s' * (count > 1)}"
            yield from found(
                "few-episodes", "note", f"task {task!r}", what, "its results will be uncertain; record more"
            )
    by_text: dict[str, list[int]] = defaultdict(list)
    for number in scan.good:
        by_text[scan.facts[number].instruction].append(number)
    empty = [scan.name(number) for number in scan.good if instruction_fault(scan.facts[number].instruction)]
    advice = "a language-conditioned policy needs one, a judge too"
    yield from found("no-instruction", "warning", empty, "no instruction", advice)
    usable = {text: numbers for text, numbers in by_text.items() if not instruction_fault(text)}
    generic = sorted(text for text in usable if plain(text) in GENERIC)
    if generic:
        at = [scan.name(number) for text in generic for number in usable[text]]
        what = f"the instruction {generic[0]!r} says nothing about the task"
        advice = "say what is to be done with what: policy and judge read it"
        yield from found("generic-instruction", "warning", sorted(at), what, advice, instructions=generic)
    untidy = sorted(text for text in usable if text != " ".join(text.split()))
    if untidy:
        at = [scan.name(number) for text in untidy for number in usable[text]]
        what = f"white space around or within the instruction {untidy[0]!r}"
        advice = "a tokenizer sees another text: trim it"
        yield from found("untidy-instruction", "warning", sorted(at), what, advice, instructions=untidy[:50])
    same: dict[str, list[str]] = defaultdict(list)
    for text in usable:
        same[plain(text)].append(text)
    for texts in same.values():
        if len(texts) > 1:
            what = f"{len(texts)} spellings of one instruction: {', '.join(map(repr, sorted(texts)[:3]))}"
            advice = "they count as different tasks: take one spelling"
            yield from found(
                "instruction-spellings", "warning", "dataset", what, advice, instructions=sorted(texts)[:50]
            )
    shared: dict[str, set[str]] = defaultdict(set)
    for number in scan.good:
        shared[scan.facts[number].instruction].add(scan.facts[number].task)
    for text, names in sorted(shared.items()):
        if len(names) > 1 and text in usable:
            what = f"{len(names)} tasks have the instruction {text!r}"
            advice = "nothing tells a policy which one is meant: give each its own"
            yield from found("shared-instruction", "warning", "dataset", what, advice, tasks=sorted(names)[:50])


def plain(text: str) -> str:
    """Without case, punctuation and superfluous white space."""
    return " ".join(text.lower().translate(SPACES).split())


def _texts(scan: Scan) -> Iterator[Finding]:
    """meta/tasks.parquet, meta/episodes and task_index have to agree: lerobot trusts the first, others the second."""
    tasks, rows = scan.recording.tasks, scan.recording.rows
    if not tasks:
        what = "meta/tasks.parquet is missing or has no tasks"
        yield from found("no-tasks", "error", "meta/tasks.parquet", what, "lerobot cannot open the dataset without it")
        return
    wrong = []
    for number, one in scan.episodes.items():
        named = [str(text) for text in rows[number].get("tasks") or []]
        several = one.task == -1 and len(named) > 1
        if one.task is not None and not several and tasks.get(one.task) not in named:
            wrong.append(number)
    what = "task_index leads to another instruction than meta/episodes"
    said = {scan.name(n): [tasks.get(scan.episodes[n].task or 0), *(rows[n].get("tasks") or [])] for n in wrong[:50]}
    advice = "make meta/tasks.parquet, meta/episodes and task_index agree"
    yield from found("task-mismatch", "error", map(scan.name, wrong), what, advice, instructions=said)
    again = [text for text, count in Counter(tasks.values()).items() if count > 1]
    if again:
        what = f"{again[0]!r} is listed twice"
        yield from found("duplicate-task", "warning", "meta/tasks.parquet", what, "give each task one number")


def _lengths(scan: Scan) -> Iterator[Finding]:
    steps = {number: int(scan.recording.lengths[number]) - 1 for number in scan.good}
    short = [scan.name(number) for number, count in steps.items() if count < SHORT_STEPS]
    advice = "remove them, or check the recording"
    yield from found("short-episode", "warning", short, f"fewer than {SHORT_STEPS} steps", advice)
    if len(steps) < 5:
        return
    logs = np.log(np.array(list(steps.values()), dtype=np.float64))
    middle = np.median(logs)
    spread = 1.4826 * np.median(np.abs(logs - middle))  # robust standard deviation
    limit = max(np.log(TIMES_AS_LONG), 4.0 * spread)
    odd = [n for n, value in zip(steps, logs, strict=True) if abs(value - middle) > limit and steps[n] >= SHORT_STEPS]
    what = f"much longer or shorter than the median of {np.exp(middle):.0f} steps"
    evidence = {"median": float(np.exp(middle)), "steps": [steps[n] for n in odd[:50]]}
    advice = "a recording that was not stopped, or was cut off: look at it"
    yield from found("odd-length", "warning", map(scan.name, odd), what, advice, **evidence)


def _copies(scan: Scan) -> Iterator[Finding]:
    double = [name for name, count in Counter(map(scan.name, scan.good)).items() if count > 1]
    yield from found("same-id", "error", double, "several episodes have this id", "give each its own")
    if scan.is_unactuated:
        return
    first: dict[bytes, int] = {}
    again = [number for number in scan.good if first.setdefault(scan.episodes[number].digest, number) != number]
    what = "the same actions and states as an earlier episode"
    pairs = {scan.name(n): scan.name(first[scan.episodes[n].digest]) for n in again[:50]}
    yield from found("duplicate-episode", "error", map(scan.name, again), what, "remove the copies", copies=pairs)


def leakage(scan: Scan, other: Scan, root: Path) -> Iterator[Finding]:
    """Episodes that are in both datasets, and rollouts that began in the same state of the same simulator."""
    if scan.is_unactuated or other.is_unactuated:
        what = "recordings without actions are not compared"
        yield from found("not-compared", "note", str(root), what, "compare the videos by hand")
        return
    theirs = {other.episodes[number].digest: other.name(number) for number in other.good}
    shared = [number for number in scan.good if scan.episodes[number].digest in theirs]
    pairs = {scan.name(n): theirs[scan.episodes[n].digest] for n in shared[:50]}
    what = f"also in {root}"
    advice = "train and test have to be apart: remove them from one"
    yield from found("leaked-episode", "error", map(scan.name, shared), what, advice, copies=pairs)
    if not (scan.is_ours and other.is_ours):
        return

    def begins(one: Scan, number: int) -> tuple[str, int, int]:
        facts = one.facts[number]
        return facts.task, facts.seed, facts.index

    known = {begins(other, number) for number in other.good}
    same = [n for n in scan.good if begins(scan, n) in known and n not in shared]
    what = f"began in the same initial state (task, seed, index) as an episode of {root}"
    advice = "results on one tell less about the other; take another seed"
    yield from found("same-initial-state", "warning", map(scan.name, same), what, advice)


def _controllers(scan: Scan) -> Iterator[Finding]:
    mixed = [scan.name(number) for number in scan.good if scan.episodes[number].mixed]
    flicker = [scan.name(number) for number in scan.good if 0 < scan.episodes[number].flicker < FLICKER_STEPS]
    advice = "steps before the last takeover carry no outcome"
    yield from found("mixed-control", "note", mixed, "the controller changes", advice)
    what = f"control changes within {FLICKER_STEPS} steps"
    yield from found("flickering-control", "warning", flicker, what, "check the takeover signal")
