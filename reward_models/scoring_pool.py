"""Score one dataset in several processes of a machine. Each opens the judge itself and takes group after group."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from reward_models.journal import Say
from reward_models.score_summary import GroupReport, ScoreSummary
from reward_models.scoring import Progress, Work, divide, judge_facts, run, score_group
from robo_rl.errors import RewardError, RoboRLError
from robo_rl.types import RewardModel

Load = Callable[[], RewardModel]  # opens the judge; must be picklable


def score_in_processes(
    load: Load,
    work: Work,
    *,
    workers: int,
    context: Any,
    progress_callback: Progress | None = None,
    say: Say = print,
) -> ScoreSummary:
    """`score_dataset` in `workers` processes of a multiprocessing `context`; the table is the same, byte by byte.

    Every process holds a judge of its own. Raises as `score_dataset`, and RewardError when a process dies.
    """
    with _Pool(load, work, workers, context) as pool:
        facts = pool.facts()
        return run(work, facts, pool.score, progress_callback, say, processes=workers)


@dataclass(frozen=True)
class _Answer:
    """Of a worker: what it did, or the mistake that it met."""

    facts: dict[str, str] | None = None
    report: GroupReport | None = None
    error: RoboRLError | None = None


def _serve(pipe: Connection, load: Load, work: Work) -> None:
    """A worker: None asks for the judge's facts, a number for the scores of a group; ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    judge, facts, division = None, {}, divide(work)  # type: Any, dict[str, str], list[list[int]]
    while True:
        try:
            group = pipe.recv()
        except EOFError:
            return
        try:
            if judge is None:
                judge = load()
                facts = judge_facts(judge)
            done = None if group is None else score_group(judge, work, division, group, facts)
            answer = _Answer(facts=facts, report=done)
        except RoboRLError as error:
            answer = _Answer(error=error)
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return


class _Pool:
    def __init__(self, load: Load, work: Work, workers: int, context: Any) -> None:
        self.pipes: dict[Connection, Any] = {}
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, load, work), daemon=True)
            process.start()
            theirs.close()
            self.pipes[ours] = process

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """Groups that are being scored are given up; the journal has all that are done."""
        for pipe, process in self.pipes.items():
            pipe.close()
            process.terminate()
        for process in self.pipes.values():
            process.join()

    def facts(self) -> dict[str, str]:
        """What the first worker says of its judge."""
        first = next(iter(self.pipes))
        first.send(None)
        self._facts = self._answer(first).facts or {}
        return self._facts

    def score(self, groups: Sequence[int]) -> Iterator[GroupReport]:
        """Reports in the order in which groups are done."""
        waiting = list(reversed(groups))
        busy: set[Connection] = set()
        for pipe in self.pipes:
            if waiting:
                pipe.send(waiting.pop())
                busy.add(pipe)
        while busy:
            for ready in wait(list(busy)):
                pipe = next(pipe for pipe in busy if pipe is ready)
                answer = self._answer(pipe)
                if answer.facts != self._facts:
                    raise RewardError(
                        f"the judge is another one in each process ({answer.facts}, {self._facts}): its files alone do "
                        "not decide it; save it to a folder first"
                    )
                if answer.report is not None:
                    yield answer.report
                busy.discard(pipe)
                if waiting:
                    pipe.send(waiting.pop())
                    busy.add(pipe)

    def _answer(self, pipe: Connection) -> _Answer:
        try:
            answer: _Answer = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self.pipes[pipe]
            process.join()
            raise RewardError(
                f"a scoring process ended with code {process.exitcode}, killed perhaps for want of memory; the same "
                "command goes on, with fewer --workers if need be"
            ) from None
        if answer.error is not None:
            raise answer.error
        return answer
