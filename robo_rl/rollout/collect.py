"""Run episodes of a world with an actor: trajectories to learn from, or results to compare."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from robo_rl.errors import ConfigError, RoboRLError
from robo_rl.rollout.frames import LocalFrames
from robo_rl.rollout.group import EpisodeRecord, GroupResult, GroupRunner, MakeActor, MakeWorld
from robo_rl.rollout.pool import WorkerPool, single_torch_thread
from robo_rl.rollout.settings import Disturbance, RecordConfig, RolloutStats, Timings
from robo_rl.types import EpisodeResult, Outcome, Trajectory

Progress = Callable[[int, int], None]
MAX_ABORT_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class _Finished:
    """One episode in the parent; no trajectory where the world failed before its first step."""

    record: EpisodeRecord
    trajectory: Trajectory | None


class Rollout:
    """Trajectories in the order of the indices, as an iterator to be read once; `stats` grows as it is read.

    Worker processes start at the first request and end with the last, on an error, on `close()`, or when
    the iterator is dropped.
    """

    def __init__(self, episodes: Iterator[_Finished], stats: RolloutStats) -> None:
        self._episodes = episodes
        self.stats = stats

    def __iter__(self) -> Iterator[Trajectory]:
        return self

    def __next__(self) -> Trajectory:
        while True:
            trajectory = next(self._episodes).trajectory
            if trajectory is not None:
                return trajectory

    def close(self) -> None:
        """End the workers without reading the rest."""
        self._episodes.close()  # type: ignore[attr-defined]


def collect(  # noqa: PLR0913  one keyword a decision, each with a default that works
    make_world: MakeWorld,
    make_actor: MakeActor,
    *,
    seed: int,
    indices: Sequence[int],
    workers: int = 0,
    group_size: int = 8,
    record: RecordConfig | None = None,
    disturbance: Disturbance | None = None,
    progress: Progress | None = None,
    max_abort_share: float = MAX_ABORT_SHARE,
) -> Rollout:
    """Run the episodes `indices` of `seed` and give their trajectories, in the order of `indices`.

    Groups of `group_size` consecutive indices are stepped in lockstep, each by one worker, with one
    batched call of the actor for the group's running episodes. Results are a function of
    (seed, indices, group_size) and not of `workers`. `workers=0` runs in this process.

    `make_world` and `make_actor` are called inside every worker and must be picklable (a frozen dataclass
    with `__call__`, or a module's function) unless `workers=0`. `record=None` draws nothing that the actor
    does not need. `progress(done, total)` is called after each group.

    A world that raises is rebuilt; its episode is kept up to there as `Outcome.ABORT` with the reason in
    `note` (left out if it had no step). More aborts than max(1, max_abort_share * len(indices)) raise
    RoboRLError, and so does the death of a worker. An actor's error is raised as it is.
    """
    stats = RolloutStats()
    episodes = _run(
        make_world,
        make_actor,
        _Plan(seed, tuple(indices), workers, group_size, record, disturbance, max_abort_share),
        stats,
        progress,
    )
    return Rollout(episodes, stats)


def evaluate(
    make_world: MakeWorld,
    make_actor: MakeActor,
    *,
    seed: int,
    indices: Sequence[int],
    workers: int = 0,
    group_size: int = 8,
    progress: Progress | None = None,
    max_abort_share: float = MAX_ABORT_SHARE,
) -> list[EpisodeResult]:
    """Run the episodes without keeping frames: one result an index, in order.

    `EpisodeResult.extra` has "outcome", "policy_id", "note" and "reward" (the sum). An aborted episode counts as
    no success and says so in its outcome. `seconds` is the worker's time for the episode.
    """
    plan = _Plan(seed, tuple(indices), workers, group_size, None, None, max_abort_share)
    return [_result(done.record) for done in _run(make_world, make_actor, plan, RolloutStats(), progress)]


@dataclass(frozen=True, slots=True)
class _Plan:
    seed: int
    indices: tuple[int, ...]
    workers: int
    group_size: int
    record: RecordConfig | None
    disturbance: Disturbance | None
    max_abort_share: float

    def __post_init__(self) -> None:
        if not self.indices:
            raise ConfigError("rollout: indices is empty; give at least one episode index")
        if min(self.indices) < 0 or len(set(self.indices)) != len(self.indices):
            raise ConfigError("rollout: indices must be different and not negative")
        if self.seed < 0:
            raise ConfigError(f"rollout: seed must not be negative, got {self.seed}")
        if self.group_size < 1:
            raise ConfigError(f"rollout: group_size must be at least 1, got {self.group_size}")
        if self.workers < 0:
            raise ConfigError(f"rollout: workers must not be negative, got {self.workers}")

    @property
    def groups(self) -> list[tuple[int, ...]]:
        return [self.indices[i : i + self.group_size] for i in range(0, len(self.indices), self.group_size)]


def _run(
    make_world: MakeWorld, make_actor: MakeActor, plan: _Plan, stats: RolloutStats, progress: Progress | None
) -> Iterator[_Finished]:
    settings = {"seed": plan.seed, "record": plan.record, "disturbance": plan.disturbance}
    book = _Book(plan, stats, progress)
    if plan.workers:
        payload = _pickled(make_world, make_actor, len(plan.groups[0]), settings)
        pool = WorkerPool(payload, plan.groups, workers=plan.workers, seed=plan.seed)
        stats.workers = pool.num_workers
        yield from pool.run(book.enter)
        return
    runner = GroupRunner(make_world, make_actor, buffer=(buffer := LocalFrames()), **settings)  # type: ignore[arg-type]
    try:
        runner.prepare(len(plan.groups[0]))
        for indices in plan.groups:
            with single_torch_thread():
                result = runner.run(indices)
            yield from book.enter(result, buffer.views(result.frames) if result.frames else {})
    finally:
        runner.close()


def _pickled(make_world: MakeWorld, make_actor: MakeActor, group_size: int, settings: Mapping[str, object]) -> bytes:
    for name, make in (("make_world", make_world), ("make_actor", make_actor)):
        try:
            pickle.dumps(make)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"rollout: {name} cannot be sent to a worker process ({error}); "
                "use a module's function or a frozen dataclass with __call__, or workers=0"
            ) from error
    return pickle.dumps((make_world, make_actor, group_size, dict(settings)))


class _Book:
    """Takes in finished groups: copies frames, counts, and stops a run that fails too often."""

    def __init__(self, plan: _Plan, stats: RolloutStats, progress: Progress | None) -> None:
        self._plan, self._stats, self._progress = plan, stats, progress
        self._busy = Timings()
        self._started = perf_counter()
        self._startup = -1.0
        self._reasons: list[str] = []

    def enter(self, result: GroupResult, frames: Mapping[str, np.ndarray]) -> list[_Finished]:
        """The group's episodes; frames are copied once."""
        finished = [_Finished(record, to_trajectory(record, frames, self._plan)) for record in result.records]
        for record in result.records:
            self._stats.episodes += 1
            self._stats.steps += len(record.actions)
            if record.outcome is Outcome.ABORT:
                self._stats.aborted += 1
                self._reasons.append(f"index {record.index} {record.note}")
        self._time(result.timings)
        if self._progress is not None:
            self._progress(self._stats.episodes, len(self._plan.indices))
        if self._stats.aborted > max(1.0, self._plan.max_abort_share * len(self._plan.indices)):
            raise RoboRLError(
                f"rollout: {self._stats.aborted} of {self._stats.episodes} episodes aborted (seed {self._plan.seed}), "
                f"more than {self._plan.max_abort_share:.0%} of {len(self._plan.indices)}; first: {self._reasons[0]}"
            )
        return finished

    def _time(self, timings: Timings) -> None:
        for name in ("inference", "physics", "rendering", "total"):
            setattr(self._busy, name, getattr(self._busy, name) + getattr(timings, name))
        seconds = perf_counter() - self._started
        if self._startup < 0:  # the first group has just ended: what came before it was start-up
            self._startup = max(0.0, seconds - timings.total)
        self._stats.update(self._busy, seconds=seconds, startup_seconds=self._startup)


def to_trajectory(record: EpisodeRecord, frames: Mapping[str, np.ndarray], plan: _Plan) -> Trajectory | None:
    """The trajectory of a finished episode, its frames copied; None without a single step."""
    if len(record.actions) == 0:
        return None
    prefix = (plan.record.episode_prefix if plan.record else "") or record.policy_id
    images = {}
    if record.recorded:
        images = {camera: view[record.slot, : len(record.state)].copy() for camera, view in frames.items()}
    return Trajectory(
        episode_id=f"{prefix}-{plan.seed}-{record.index:05d}",
        instruction=record.instruction,
        images=images,
        state=record.state,
        actions=record.actions,
        controller=np.full(len(record.actions), record.controller, dtype=np.int8),
        outcome=record.outcome,
        fps=record.fps,
        task=record.task,
        policy_id=record.policy_id,
        seed=plan.seed,
        index=record.index,
        reward=record.reward,
        true_progress=record.true_progress,
        note=record.note,
    )


def _result(record: EpisodeRecord) -> EpisodeResult:
    return EpisodeResult(
        task=record.task,
        index=record.index,
        success=record.outcome is Outcome.SUCCESS,
        steps=len(record.actions),
        seconds=record.seconds,
        extra={
            "outcome": record.outcome.value,
            "policy_id": record.policy_id,
            "note": record.note,
            "reward": float(record.reward.sum()),
        },
    )
