"""Stages of a run: each writes one folder, at once or not at all, and is skipped when it is already there.

A stage's fingerprint covers its own inputs and the fingerprints of the stages it builds on. Work happens
in `<name>.partial`, which becomes `<name>` by a rename at the end; a stage may leave checkpoints there and
find them again after a kill. Stages that do not depend on each other run at the same time, each in its own
process, as many as there are slots.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import queue
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from robo_rl.errors import RoboRLError
from robo_rl.loops.progress import Display
from robo_rl.processes import process_context

WEIGH_EVERY_S = 1.0
Report = Callable[[int, int], None]  # (done, total)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step of a run. `work(folder, report)` must be picklable and fill `folder`."""

    name: str
    work: Callable[[Path, Report], None]
    inputs: Mapping[str, Any]  # plain values: everything the output depends on besides `after`
    after: tuple[str, ...] = ()
    slots: int = 1


@dataclass(kw_only=True)
class RunRecord:
    """What a run took, by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    peak_rss_gb: float = 0.0


def fingerprint(stage: Stage, known: Mapping[str, str]) -> str:
    """Hash of the stage's name, inputs and predecessors."""
    text = json.dumps(
        {"name": stage.name, "inputs": stage.inputs, "after": [known[name] for name in stage.after]},
        sort_keys=True,
        default=str,
    )
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def run_stages(folder: Path, stages: Sequence[Stage], *, slots: int, display: Display) -> RunRecord:
    """Bring `folder/stages` up to date. Raises the first stage's RoboRLError; the others are stopped."""
    root = folder / "stages"
    root.mkdir(parents=True, exist_ok=True)
    record = RunRecord()
    for stage in stages:
        record.fingerprints[stage.name] = fingerprint(stage, record.fingerprints)
    with _locked(folder):
        done: set[str] = set()
        for stage in stages:
            kept = _finished(root / stage.name, record.fingerprints[stage.name])
            if kept is not None:
                done.add(stage.name)
                record.seconds[stage.name] = kept["seconds"]
                record.peak_rss_gb = max(record.peak_rss_gb, kept.get("tree_rss_gb", 0.0))
                record.skipped.append(stage.name)
                display.skipped(stage.name, kept["seconds"])
        _Scheduler(root, [s for s in stages if s.name not in done], done, slots, display, record).run()
    return record


def _finished(folder: Path, wanted: str) -> dict[str, Any] | None:
    try:
        kept = json.loads((folder / "stage.json").read_text())
    except (OSError, ValueError):
        return None
    return kept if kept.get("fingerprint") == wanted else None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RoboRLError(f"{folder}: another run is working in this folder; wait for it or choose --out") from None
        yield


class _Scheduler:
    """Starts stages as their inputs become ready and slots are free."""

    def __init__(
        self, root: Path, waiting: list[Stage], done: set[str], slots: int, display: Display, record: RunRecord
    ) -> None:
        self.root, self.waiting, self.done = root, waiting, done
        self.slots, self.display, self.record = slots, display, record
        self.context: Any = process_context()
        self.messages: Any = self.context.Queue()
        self.running: dict[str, tuple[Stage, Any, float]] = {}
        self.failure: str | None = None
        self.weighed = 0.0

    def run(self) -> None:
        if not self.waiting:
            return
        try:
            while (self.waiting or self.running) and self.failure is None:
                self._start_ready()
                self._listen(0.25)
                self._reap()
                self._weigh()
        finally:
            for _, process, _ in self.running.values():
                _end_tree(process.pid)
        if self.failure is not None:
            raise RoboRLError(self.failure)

    def _start_ready(self) -> None:
        for stage in list(self.waiting):
            used = sum(min(other.slots, self.slots) for other, _, _ in self.running.values())
            if used + min(stage.slots, self.slots) > self.slots:
                continue
            if all(name in self.done for name in stage.after):
                self.waiting.remove(stage)
                target = self.root / stage.name
                arguments = (stage, target, self.record.fingerprints[stage.name], self.messages, os.getpid())
                process = self.context.Process(target=_stage_process, args=arguments, name=stage.name)
                process.start()
                self.running[stage.name] = (stage, process, time.monotonic())
                self.display.started(stage.name)

    def _listen(self, wait: float) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                name, kind, value = self.messages.get(timeout=wait)
                wait = 0.0
                if kind == "progress":
                    self.display.progress(name, *value)
                elif self.failure is None:
                    self.failure = f"stage {name}: {value}"

    def _reap(self) -> None:
        for name, (_, process, started) in list(self.running.items()):
            if process.exitcode is None:
                continue
            del self.running[name]
            kept = _finished(self.root / name, self.record.fingerprints[name])
            if process.exitcode == 0 and kept is not None:
                self.done.add(name)
                self.record.seconds[name] = kept["seconds"]
                self.display.finished(name, time.monotonic() - started)
            else:
                self._listen(0.5)
                self.failure = self.failure or f"stage {name}: its process ended with exit code {process.exitcode}"

    def _weigh(self) -> None:
        if time.monotonic() - self.weighed < WEIGH_EVERY_S:
            return
        self.weighed = time.monotonic()
        total = 0
        with contextlib.suppress(psutil.Error):
            own = psutil.Process()
            for process in [own, *own.children(recursive=True)]:
                total += _memory(process)
        self.record.peak_rss_gb = max(self.record.peak_rss_gb, total / 1e9)


def _memory(process: psutil.Process) -> int:
    """Bytes of a process; pages it shares with others count in proportion, so that a sum is the truth."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def _end_tree(pid: int | None) -> None:
    with contextlib.suppress(psutil.Error):
        tree = psutil.Process(pid)
        members = [*tree.children(recursive=True), tree]
        for process in members:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, alive = psutil.wait_procs(members, timeout=3)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _stage_process(stage: Stage, target: Path, mark: str, messages: Any, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > 0.3:
            last = time.monotonic()
            messages.put((stage.name, "progress", (done, total)))

    try:
        execute(stage, target, mark, report)
    except RoboRLError as error:
        messages.put((stage.name, "failed", str(error)))
        messages.close()
        messages.join_thread()
        sys.exit(2)


def execute(stage: Stage, target: Path, mark: str, report: Report) -> None:
    """Do a stage's work here and now, and make its folder appear under `target` complete."""
    started = time.monotonic()
    partial = target.with_name(target.name + ".partial")
    inputs = partial / "inputs.json"
    if not inputs.exists() or inputs.read_text() != mark:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        inputs.write_text(mark)
    before = 0.0
    with contextlib.suppress(OSError, ValueError):
        before = float((partial / "seconds_so_far").read_text())
    clock = threading.Thread(target=_keep_time, args=(partial, before, started), daemon=True)
    clock.start()
    stage.work(partial, report)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1e6
    facts = {
        "name": stage.name,
        "fingerprint": mark,
        "seconds": round(before + time.monotonic() - started, 3),
        "peak_rss_gb": round(peak, 3),
        "inputs": stage.inputs,
    }
    (partial / "stage.json").write_text(json.dumps(facts, indent=1, default=str))
    inputs.unlink()
    (partial / "seconds_so_far").unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _keep_time(partial: Path, before: float, started: float) -> None:
    """So that the time of a killed attempt is not forgotten."""
    while partial.exists():
        time.sleep(2.0)
        with contextlib.suppress(OSError):
            if (partial / "inputs.json").exists():
                (partial / "seconds_so_far").write_text(str(before + time.monotonic() - started))


def _follow(parent: int) -> None:
    """End this process when the run that started it is gone (killed), so that no orphan keeps writing."""
    while psutil.pid_exists(parent):
        time.sleep(1.0)
    os._exit(1)
