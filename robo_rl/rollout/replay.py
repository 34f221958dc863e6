"""Re-simulate a recorded episode, to see it with larger images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from robo_rl.errors import DataError
from robo_rl.rollout.group import MakeWorld, outcome_of
from robo_rl.rollout.settings import Disturbance, DisturbanceNoise
from robo_rl.types import Observation, Outcome, Trajectory, World


def replay(
    make_world: MakeWorld,
    trajectory: Trajectory,
    *,
    disturbance: Disturbance | None = None,
    tolerance: float = 1e-4,
) -> Trajectory:
    """The same episode with the frames of `make_world()`: same physics, any cameras and image size.

    `disturbance` must be the one the episode was recorded with, if its actions are commands; the noise is a
    function of (seed, index) and is drawn again. Raises DataError where instruction, states (largest
    difference `tolerance`) or outcome are not those recorded: then the world is not the one it was.
    """
    world = make_world()
    try:
        observations, outcome = _simulate(world, trajectory, disturbance)
    finally:
        world.close()
    states = np.stack([observation.state for observation in observations])
    _check(trajectory, states, observations[0].instruction, outcome, tolerance)
    cameras = observations[0].images
    return replace(trajectory, images={name: np.stack([o.images[name] for o in observations]) for name in cameras})


def _simulate(
    world: World, trajectory: Trajectory, disturbance: Disturbance | None
) -> tuple[list[Observation], Outcome]:
    noise = None
    if disturbance is not None and not disturbance.record_executed:
        noise = DisturbanceNoise(disturbance, trajectory.seed, trajectory.index, world.action_dim)
    world.begin(trajectory.seed, trajectory.index)
    observations, outcome = [_copied(world.observe())], None
    for step, action in enumerate(trajectory.actions, start=1):
        if outcome is not None:
            break  # too early: `_check` says so
        result = world.advance(action if noise is None else noise.apply(action))
        outcome = outcome_of(result, steps=step, horizon=world.horizon)
        observations.append(_copied(world.observe()))
    return observations, outcome or Outcome.UNKNOWN


def _copied(observation: Observation) -> Observation:
    images = {camera: np.array(frame) for camera, frame in observation.images.items()}
    return replace(observation, images=images, state=np.array(observation.state))


def _check(trajectory: Trajectory, states: np.ndarray, instruction: str, outcome: Outcome, tolerance: float) -> None:
    where = f"episode {trajectory.episode_id!r} (seed {trajectory.seed}, index {trajectory.index})"
    if instruction != trajectory.instruction:
        raise DataError(f"{where}: recorded for {trajectory.instruction!r}, the world says {instruction!r}")
    if states.shape[1] != trajectory.state.shape[1]:
        raise DataError(f"{where}: recorded states have {trajectory.state.shape[1]} numbers, not {states.shape[1]}")
    difference = np.abs(states - trajectory.state[: len(states)]).max(axis=1)
    bad = np.flatnonzero(~(difference <= tolerance))
    if len(bad):
        raise DataError(
            f"{where}: the replay leaves the recording at frame {bad[0]} (difference {difference[bad[0]]:.3g}); "
            "replay in the world that recorded it, with the disturbance it was recorded with"
        )
    if len(states) < len(trajectory.state):
        raise DataError(
            f"{where}: the replay ended after {len(states) - 1} steps ({outcome.value}), "
            f"the recording has {len(trajectory)}; replay in the world that recorded it"
        )
    # An episode stopped from outside (abort, unknown) may end anywhere.
    if trajectory.outcome not in (Outcome.ABORT, Outcome.UNKNOWN) and outcome is not trajectory.outcome:
        raise DataError(f"{where}: recorded outcome {trajectory.outcome.value}, replayed {outcome.value}")
