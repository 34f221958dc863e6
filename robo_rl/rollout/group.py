"""One group of episodes stepped in lockstep by one process.

The batch given to the actor holds the group's running episodes and nothing else, so what happens is a
function of (seed, indices of the group) and of nothing that depends on timing or on other groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from robo_rl.errors import ConfigError, RoboRLError, SafetyError
from robo_rl.rollout.frames import FrameBuffer, FrameSpec
from robo_rl.rollout.settings import (
    ACTOR_STREAM,
    Disturbance,
    DisturbanceNoise,
    RecordConfig,
    Timings,
    episode_rng,
)
from robo_rl.types import Actor, Observation, Outcome, StepResult, World

MakeWorld = Callable[[], World]
MakeActor = Callable[[], Actor]


@dataclass(kw_only=True, slots=True)
class EpisodeRecord:
    """One finished episode without its frames. T may be 0 where the world failed before its first step."""

    slot: int  # row of the frame buffer
    index: int
    task: str
    instruction: str
    state: np.ndarray  # float32 (T+1, S); (0,) if nothing was observed
    actions: np.ndarray  # float32 (T, A)
    reward: np.ndarray  # float32 (T,)
    true_progress: np.ndarray | None  # float32 (T+1,)
    outcome: Outcome
    fps: float
    policy_id: str
    controller: int
    note: str
    recorded: bool  # the frame buffer's row `slot` holds T + 1 frames
    seconds: float  # the worker's time, shared among the group's episodes by their steps


@dataclass(slots=True)
class GroupResult:
    """What one group did."""

    records: list[EpisodeRecord]
    timings: Timings
    frames: FrameSpec | None  # None: no frames were recorded


@dataclass(slots=True)
class _Episode:
    """One episode under way."""

    slot: int
    index: int
    world: World
    noise: DisturbanceNoise | None
    task: str = ""
    instruction: str = ""
    fps: float = 1.0
    member: int = -1  # its place in the list the actor was given
    observation: Observation | None = None
    states: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)
    outcome: Outcome | None = None
    note: str = ""


class GroupRunner:
    """Owns the worlds and the actor of one process; worlds are built when first needed and kept."""

    def __init__(
        self,
        make_world: MakeWorld,
        make_actor: MakeActor,
        *,
        seed: int,
        record: RecordConfig | None,
        disturbance: Disturbance | None,
        buffer: FrameBuffer,
    ) -> None:
        self._make_world = make_world
        self._worlds: list[World | None] = []
        self._actor = make_actor()
        self._seed = seed
        self._record = record
        self._disturbance = disturbance
        self._buffer = buffer
        self._recording = record is not None and record.every_step
        self._timings = Timings()
        self._spec: FrameSpec | None = None
        self._views: dict[str, np.ndarray] = {}

    def prepare(self, size: int) -> None:
        """Build the worlds of a group of `size` now, so that their cost is start-up and not an episode's."""
        for slot in range(size):
            self._world(slot)

    def run(self, indices: Sequence[int]) -> GroupResult:
        """Run the episodes of one group to their ends.

        An actor's error is raised; a world's error aborts its episode only, and the world is rebuilt.
        """
        started, self._timings, self._spec, self._views = perf_counter(), Timings(), None, {}
        episodes = [self._begin(slot, index) for slot, index in enumerate(indices)]
        running = [episode for episode in episodes if episode.outcome is None]
        if running:
            self._start_actor(running)
        for episode in running:
            self._look(episode, draw=self._recording or self._actor.needs_images)
        running = [episode for episode in running if episode.outcome is None]
        while running:
            self._play_chunk(running, self._decide(running))
            running = [episode for episode in running if episode.outcome is None]
        self._timings.total = perf_counter() - started
        return GroupResult([self._finish(e, episodes) for e in episodes], self._timings, self._spec)

    def close(self) -> None:
        """Close every world."""
        for slot, world in enumerate(self._worlds):
            if world is not None:
                self._worlds[slot] = None
                world.close()

    # Beginning

    def _world(self, slot: int) -> World:
        while len(self._worlds) <= slot:
            self._worlds.append(None)
        world = self._worlds[slot]
        if world is None:
            world = self._worlds[slot] = self._make_world()
        return world

    def _begin(self, slot: int, index: int) -> _Episode:
        world = self._world(slot)
        noise = None
        if self._disturbance is not None:
            noise = DisturbanceNoise(self._disturbance, self._seed, index, world.action_dim)
        episode = _Episode(slot, index, world, noise)

        def begin() -> None:
            world.begin(self._seed, index)
            episode.task, episode.instruction, episode.fps = world.task, world.instruction, world.control_hz

        self._physics(episode, "begin", begin)
        return episode

    def _start_actor(self, running: Sequence[_Episode]) -> None:
        for member, episode in enumerate(running):
            episode.member = member
        rngs = [episode_rng(self._seed, episode.index, ACTOR_STREAM) for episode in running]
        self._infer(running, lambda: self._actor.begin([episode.world for episode in running], rngs))

    # Looking

    def _look(self, episode: _Episode, *, draw: bool) -> None:
        """Append the observation of this moment; draw only when asked to."""
        world = episode.world

        def look() -> Observation:
            if draw:
                return world.observe()
            return Observation(images={}, state=world.state(), instruction=episode.instruction)

        observation = self._call(episode, "observe", look, "rendering" if draw else "physics")
        if observation is None:
            return
        state = np.array(observation.state, dtype=np.float32)
        if not np.isfinite(state).all():
            self._abort(episode, "observe", "the state is not finite")
            return
        if self._record is not None and self._record.true_progress:
            value = self._physics(episode, "true_progress", world.true_progress)
            if value is None:
                return
            episode.progress.append(value)
        if self._recording:
            self._store(episode, observation)
        episode.observation = observation
        episode.states.append(state)

    def _store(self, episode: _Episode, observation: Observation) -> None:
        if not self._views:
            self._spec = self._frame_spec(observation, self._record.cameras if self._record else None)
            self._views = dict(self._buffer.views(self._spec))
        row = len(episode.states)
        for camera, view in self._views.items():
            frame = observation.images[camera]
            if frame.shape != view.shape[2:] or frame.dtype != np.uint8:
                raise ConfigError(
                    f"episode index {episode.index}: camera {camera!r} gave {frame.dtype} {frame.shape}; "
                    f"every episode of a group must have frames of uint8 {view.shape[2:]}"
                )
            view[episode.slot, row] = frame

    def _frame_spec(self, observation: Observation, cameras: tuple[str, ...] | None) -> FrameSpec:
        names = cameras or tuple(observation.images)
        unknown = [name for name in names if name not in observation.images]
        if unknown or not names:
            known = ", ".join(observation.images) or "none"
            raise ConfigError(f"record: the world draws no camera {unknown or 'at all'}; it draws: {known}")
        horizon = max(world.horizon for world in self._worlds if world is not None)
        shapes = tuple((name, observation.images[name].shape) for name in names)
        return FrameSpec(len(self._worlds), horizon + 1, shapes)

    # Deciding and stepping

    def _decide(self, running: Sequence[_Episode]) -> np.ndarray:
        """Ask the actor: float32 (len(running), k, A), clipped to [-1, 1]."""
        slots = [episode.member for episode in running]
        observations = [episode.observation for episode in running if episode.observation is not None]
        chunk = np.asarray(self._infer(running, lambda: self._actor.act(slots, observations)), dtype=np.float32)
        wanted = (len(running), running[0].world.action_dim)
        if chunk.ndim != 3 or (chunk.shape[0], chunk.shape[2]) != wanted or chunk.shape[1] < 1:
            raise ConfigError(
                f"{self._actor.policy_id}: act gave actions of shape {chunk.shape}; "
                f"({wanted[0]}, k, {wanted[1]}) with k >= 1 was due"
            )
        bad = np.flatnonzero(~np.isfinite(chunk).all(axis=(1, 2)))
        if len(bad):
            episode = running[bad[0]]
            raise SafetyError(
                f"{self._actor.policy_id}: an action is not finite "
                f"(seed {self._seed}, index {episode.index}, step {len(episode.actions)})"
            )
        return np.clip(chunk, -1.0, 1.0)

    def _play_chunk(self, deciders: Sequence[_Episode], chunk: np.ndarray) -> None:
        last = chunk.shape[1] - 1
        for step in range(chunk.shape[1]):
            for row, episode in enumerate(deciders):
                if episode.outcome is not None:
                    continue
                self._advance(episode, chunk[row, step])
                if episode.outcome is Outcome.ABORT:
                    continue
                decision_next = step == last and episode.outcome is None
                self._look(episode, draw=self._recording or (decision_next and self._actor.needs_images))

    def _advance(self, episode: _Episode, command: np.ndarray) -> None:
        executed = command if episode.noise is None else episode.noise.apply(command)
        result = self._physics(episode, "advance", lambda: episode.world.advance(executed))
        if result is None:
            return
        keep_executed = self._disturbance is not None and self._disturbance.record_executed
        episode.actions.append(np.array(executed if keep_executed else command))
        episode.rewards.append(result.reward)
        episode.outcome = outcome_of(result, steps=len(episode.actions), horizon=episode.world.horizon)

    # Ending

    def _finish(self, episode: _Episode, group: Sequence[_Episode]) -> EpisodeRecord:
        # After an abort the last action may have no observation that follows it; it is left out.
        steps = max(0, min(len(episode.actions), len(episode.states) - 1))
        all_steps = sum(len(e.actions) for e in group)
        share = len(episode.actions) / all_steps if all_steps else 1.0 / len(group)
        said = self._actor.note(episode.member) if episode.member >= 0 else ""
        progress = None
        if self._record is not None and self._record.true_progress:
            progress = np.asarray(episode.progress[: steps + 1], dtype=np.float32)
        return EpisodeRecord(
            slot=episode.slot,
            index=episode.index,
            task=episode.task,
            instruction=episode.instruction,
            state=np.asarray(episode.states[: steps + 1], dtype=np.float32),
            actions=np.asarray(episode.actions[:steps], dtype=np.float32),
            reward=np.asarray(episode.rewards[:steps], dtype=np.float32),
            true_progress=progress,
            outcome=episode.outcome or Outcome.UNKNOWN,
            fps=episode.fps,
            policy_id=self._actor.policy_id,
            controller=int(self._actor.controller),
            note="; ".join(part for part in (episode.note, said) if part),
            recorded=self._recording,
            seconds=share * self._timings.total,
        )

    # Calls into worlds and the actor

    def _physics(self, episode: _Episode, what: str, call: Callable[[], Any]) -> Any:
        return self._call(episode, what, call, "physics")

    def _call(self, episode: _Episode, what: str, call: Callable[[], Any], kind: str) -> Any:
        """The result, or None after the episode was aborted because the world raised."""
        started = perf_counter()
        try:
            return call()
        except ConfigError:
            raise  # would happen again in every episode
        except Exception as error:  # noqa: BLE001  a world may fail in any way; the run goes on without it
            self._abort(episode, what, f"{type(error).__name__}: {error}")
            return None
        finally:
            setattr(self._timings, kind, getattr(self._timings, kind) + perf_counter() - started)

    def _abort(self, episode: _Episode, what: str, reason: str) -> None:
        episode.outcome = Outcome.ABORT
        episode.note = f"aborted in {what} after {len(episode.actions)} steps: {reason}"
        self._worlds[episode.slot] = None  # rebuilt when the slot is next used
        try:
            episode.world.close()
        except Exception as error:  # noqa: BLE001  a broken world may not even close
            episode.note += f" (and close failed: {type(error).__name__}: {error})"

    def _infer(self, running: Sequence[_Episode], call: Callable[[], Any]) -> Any:
        started = perf_counter()
        try:
            return call()
        except RoboRLError:
            raise
        except Exception as error:
            where = ", ".join(str(episode.index) for episode in running)
            raise RoboRLError(
                f"{self._actor.policy_id} failed (seed {self._seed}, indices {where}): {type(error).__name__}: {error}"
            ) from error
        finally:
            self._timings.inference += perf_counter() - started


def outcome_of(result: StepResult, *, steps: int, horizon: int) -> Outcome | None:
    """How a step ended its episode, None while it goes on."""
    if result.success:
        return Outcome.SUCCESS
    if result.terminated:
        return Outcome.FAILURE
    if result.truncated or steps >= horizon:
        return Outcome.TIMEOUT
    return None
