"""The library's scripted experts as an actor, with the faults of a human operator if asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robo_rl.errors import ConfigError
from robo_rl.types import Controller, Observation, World
from sims.meta_world.library import experts, quiet_library
from sims.meta_world.world import MetaWorldWorld

PAUSE_STEPS = (3, 9)  # control steps, from and below
DETOUR_STEPS = (3, 9)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetaWorldExpertConfig:
    """Calling it builds the expert, so it serves as the rollout's `make_actor`.

    In each step that is not already part of one, a pause starts with probability `hesitation` (the hand stands still,
    3 to 8 steps) and else a detour with probability `detour` (the hand goes in a random direction, 3 to 8 steps).
    The gripper keeps doing what it did. Raises ConfigError for what is not a probability.
    """

    hesitation: float = 0.0
    detour: float = 0.0

    def __post_init__(self) -> None:
        for name in ("hesitation", "detour"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"metaworld expert: {name} must be in [0, 1], got {getattr(self, name)}")

    def __call__(self) -> MetaWorldExpert:
        return MetaWorldExpert(self)


@dataclass(slots=True)
class _Slot:
    """What the expert knows of one episode."""

    world: MetaWorldWorld
    rng: np.random.Generator
    policy: Any
    gripper: float = 0.0
    left: int = 0  # steps of the present pause or detour to come
    motion: np.ndarray | None = None  # float32 (3,) of a detour
    paused: int = 0
    strayed: int = 0


class MetaWorldExpert:
    """One action a call (k = 1), from the simulator's privileged state: it needs no images."""

    policy_id = "metaworld-expert"
    controller = Controller.SCRIPT
    needs_images = False

    def __init__(self, config: MetaWorldExpertConfig | None = None) -> None:
        self.config = config or MetaWorldExpertConfig()
        self._experts = experts()
        self._slots: list[_Slot] = []

    def begin(self, worlds: Sequence[World], rngs: Sequence[np.random.Generator]) -> None:
        self._slots = []
        for world, rng in zip(worlds, rngs, strict=True):
            if not isinstance(world, MetaWorldWorld):
                raise ConfigError(f"the Meta-World expert plays Meta-World only, not {type(world).__name__}")
            self._slots.append(_Slot(world, rng, self._experts[world.task]()))

    def act(self, slots: Sequence[int], observations: Sequence[Observation]) -> np.ndarray:
        """float32 (len(slots), 1, 4); the observations are not looked at."""
        with quiet_library():
            return np.stack([self._one(self._slots[slot])[None] for slot in slots])

    def note(self, slot: int) -> str:
        """How many steps were not the expert's own."""
        it = self._slots[slot]
        parts = [f"hesitated for {it.paused} steps"] * bool(it.paused)
        parts += [f"strayed for {it.strayed} steps"] * bool(it.strayed)
        return ", ".join(parts)

    def _one(self, it: _Slot) -> np.ndarray:
        if it.left == 0:
            self._maybe_err(it)
        if it.left > 0:
            it.left -= 1
            still = it.motion is None
            it.paused, it.strayed = it.paused + still, it.strayed + (not still)
            motion = np.zeros(3, np.float32) if it.motion is None else it.motion
            return np.append(motion, np.float32(it.gripper)).astype(np.float32)
        action = np.clip(it.policy.get_action(it.world.privileged_state()), -1.0, 1.0).astype(np.float32)
        it.gripper = float(action[3])
        return action

    def _maybe_err(self, it: _Slot) -> None:
        draw = it.rng.random()
        if draw < self.config.hesitation:
            it.left, it.motion = int(it.rng.integers(*PAUSE_STEPS)), None
        elif draw < self.config.hesitation + self.config.detour:
            direction = it.rng.standard_normal(3)
            it.left = int(it.rng.integers(*DETOUR_STEPS))
            it.motion = (direction / np.abs(direction).max()).astype(np.float32)
