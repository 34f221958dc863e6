"""Worker processes that run groups of episodes, and the parent's side of them.

Parent and worker speak over a pipe; frames lie in one piece of shared memory a worker. A worker waits
after each group until the parent has copied the frames out, so one arena is enough.

    worker -> parent   ("ready",)  ("arena", nbytes)  ("attached",)  ("group", result)  ("error", kind, text, trace)
    parent -> worker   ("run", indices)  ("arena", name)  None to stop
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import shared_memory
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import numpy as np

from robo_rl import errors
from robo_rl.errors import RoboRLError
from robo_rl.processes import process_context
from robo_rl.rollout.frames import FrameSpec, create_shared
from robo_rl.rollout.group import GroupResult, GroupRunner

Episode = TypeVar("Episode")
Assemble = Callable[[GroupResult, Mapping[str, np.ndarray]], Sequence[Episode]]

# One core a worker: threads of eight libraries on the same cores cost more than they bring.
WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "LP_NUM_THREADS": "0"}


@contextlib.contextmanager
def single_torch_thread() -> Iterator[None]:
    """One torch thread inside, if torch is loaded: sums are then added in the same order in every process."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _bytes_of(memory: shared_memory.SharedMemory) -> memoryview:
    if memory.buf is None:
        raise RoboRLError(f"the shared memory {memory.name} is closed")
    return memory.buf


# The worker's side


class SharedFrames:
    """The worker's arena; the parent creates it, so that it is gone even when the worker is killed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._spec: FrameSpec | None = None
        self._memory: shared_memory.SharedMemory | None = None
        self._views: dict[str, np.ndarray] = {}

    def views(self, spec: FrameSpec) -> dict[str, np.ndarray]:
        if spec != self._spec:
            self._connection.send(("arena", spec.nbytes))
            _, name = self._connection.recv()
            self._memory = shared_memory.SharedMemory(name=name)
            self._connection.send(("attached",))
            self._spec, self._views = spec, spec.views(_bytes_of(self._memory))
        return self._views


def run_worker(connection: Connection, payload: bytes) -> None:
    """Main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    try:
        make_world, make_actor, group_size, settings = pickle.loads(payload)
        runner = GroupRunner(make_world, make_actor, buffer=SharedFrames(connection), **settings)
        runner.prepare(group_size)
        connection.send(("ready",))
        while (message := connection.recv()) is not None:
            with single_torch_thread():
                result = runner.run(message[1])
            connection.send(("group", result))
        runner.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    except Exception as error:  # noqa: BLE001  told to the parent, which raises it
        kind = type(error).__name__ if isinstance(error, RoboRLError) else ""
        text = str(error) if kind else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            connection.send(("error", kind, text, traceback.format_exc()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a library's clean-up at exit (GL contexts, arenas still viewed) must not hang or complain


# The parent's side


@dataclass(slots=True)
class _Worker:
    number: int
    process: BaseProcess
    connection: Connection
    group: int | None = None  # what it is running
    ready: bool = False
    memory: shared_memory.SharedMemory | None = None
    named: bool = False  # the arena's name still exists


class WorkerPool:
    """Hands groups to worker processes and gives their episodes back in order.

    Groups are handed out as workers become free, at most `2 * workers` ahead of the reader, so what is
    held in memory is bounded however slow the reader is.
    """

    def __init__(self, payload: bytes, groups: Sequence[Sequence[int]], *, workers: int, seed: int) -> None:
        self._payload, self._groups, self._seed = payload, groups, seed
        self._workers: list[_Worker] = []
        self._count = min(workers, len(groups))
        self._next = 0  # the next group to hand out

    @property
    def num_workers(self) -> int:
        return self._count

    @property
    def all_ready(self) -> bool:
        return bool(self._workers) and all(worker.ready for worker in self._workers)

    def run(self, assemble: Assemble[Episode]) -> Iterator[Episode]:
        """The episodes that `assemble` makes of each group, in order; `assemble` must copy what it keeps."""
        finished: dict[int, Sequence[Episode]] = {}
        try:
            self._start()
            for number in range(len(self._groups)):
                while number not in finished:
                    self._serve(finished, assemble, number, timeout=None)
                for episode in finished.pop(number):
                    yield episode
                    self._serve(finished, assemble, number, timeout=0.0)
        except BaseException:
            self._end(patience=0.0)
            raise
        self._end(patience=5.0)

    def _start(self) -> None:
        context = process_context()
        with _inherited_by_workers():
            for number in range(self._count):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=run_worker, args=(theirs, self._payload), name=f"rollout-{number}", daemon=True
                )
                process.start()
                theirs.close()
                self._workers.append(_Worker(number, process, ours))

    def _serve(self, finished: dict[int, Any], assemble: Assemble[Any], reading: int, timeout: float | None) -> None:
        """Answer every worker that waits, then hand out groups; blocks up to `timeout` for the first."""
        self._hand_out(reading)
        busy = [worker for worker in self._workers if worker.group is not None or not worker.ready]
        by_handle: dict[Any, _Worker] = {}
        for worker in busy:
            by_handle[worker.connection] = by_handle[worker.process.sentinel] = worker
        answered = {id(by_handle[handle]): by_handle[handle] for handle in wait(list(by_handle), timeout)}
        for worker in answered.values():
            self._answer(worker, finished, assemble)
        self._hand_out(reading)

    def _hand_out(self, reading: int) -> None:
        for worker in self._workers:
            within_window = self._next < min(len(self._groups), reading + 2 * self._count)
            if worker.ready and worker.group is None and within_window:
                worker.group, self._next = self._next, self._next + 1
                self._send(worker, ("run", tuple(self._groups[worker.group])))

    def _answer(self, worker: _Worker, finished: dict[int, Any], assemble: Assemble[Any]) -> None:
        try:
            message = worker.connection.recv() if worker.connection.poll() else None
        except (EOFError, ConnectionResetError):
            message = None
        if message is None:
            raise self._death(worker)
        match message:
            case ("ready",):
                worker.ready = True
            case ("arena", nbytes):
                self._drop_arena(worker)
                worker.memory, worker.named = create_shared(nbytes), True
                self._send(worker, ("arena", worker.memory.name))
            case ("attached",):
                self._forget_name(worker)
            case ("group", result):
                views = self._views(worker, result)
                try:
                    finished[self._free(worker)] = assemble(result, views)
                finally:
                    views.clear()  # or a raised error's traceback would keep the arena from closing
            case ("error", kind, text, trace):
                raise self._worker_error(worker, kind, text, trace)

    def _free(self, worker: _Worker) -> int:
        """The number of the group the worker has just finished."""
        group, worker.group = worker.group, None
        if group is None:
            raise RoboRLError(f"rollout worker {worker.number} answered without having been asked")
        return group

    def _views(self, worker: _Worker, result: GroupResult) -> dict[str, np.ndarray]:
        if result.frames is None or worker.memory is None:
            return {}
        return result.frames.views(_bytes_of(worker.memory))

    def _send(self, worker: _Worker, message: Any) -> None:
        try:
            worker.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(worker) from None

    # Errors

    def _where(self, worker: _Worker) -> str:
        if worker.group is None:
            return "while it started"
        indices = ", ".join(str(index) for index in self._groups[worker.group])
        return f"while it ran the episodes with seed {self._seed} and index {indices}"

    def _death(self, worker: _Worker) -> RoboRLError:
        worker.process.join(5.0)
        code = worker.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += ", perhaps for want of memory"
        hint = ""
        if worker.group is None:
            hint = "; its own message is above (a script that starts workers needs `if __name__ == '__main__':`)"
        return RoboRLError(f"rollout worker {worker.number} died ({how}) {self._where(worker)}{hint}")

    def _worker_error(self, worker: _Worker, kind: str, text: str, trace: str) -> RoboRLError:
        error_type = getattr(errors, kind, None) if kind else None
        if error_type is None:
            error: RoboRLError = RoboRLError(f"rollout worker {worker.number} failed {self._where(worker)}: {text}")
        else:
            error = error_type(text)
        error.add_note(f"In worker {worker.number}:\n{trace}")
        return error

    # Ending

    def _end(self, *, patience: float) -> None:
        """Let the workers stop within `patience` seconds, then end them."""
        for worker in self._workers:
            if patience > 0:
                with contextlib.suppress(OSError):
                    worker.connection.send(None)
        for worker in self._workers:
            if patience > 0:
                worker.process.join(patience)
            if worker.process.is_alive():
                worker.process.terminate()
        for worker in self._workers:
            worker.process.join(2.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
            worker.process.close()
            self._drop_arena(worker)
        self._workers = []

    def _forget_name(self, worker: _Worker) -> None:
        """Both sides have mapped the arena: without a name it cannot outlive them."""
        if worker.memory is not None and worker.named:
            worker.memory.unlink()
            worker.named = False

    def _drop_arena(self, worker: _Worker) -> None:
        self._forget_name(worker)
        if worker.memory is not None:
            worker.memory.close()
            worker.memory = None


@contextlib.contextmanager
def _inherited_by_workers() -> Iterator[None]:
    """Environment and signal mask that a process started inside inherits.

    The environment must be set before the worker imports numpy; SIGINT is held back until the worker
    ignores it, or Ctrl-C during its imports would print a traceback.
    """
    before = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update(WORKER_ENVIRONMENT)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
