"""An actor that moves at random: a floor for comparisons, and experience without purpose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robo_rl.errors import ConfigError
from robo_rl.types import Controller, Observation, World


class RandomActor:
    """Smooth random actions for any world.

    Each dimension is a uniform random walk on [-1, 1]: a[t+1] = s a[t] + (1 - s) u, u uniform on [-1, 1]; a[0] = u.
    With smoothness s = 0 every action is independent and uniform.
    """

    policy_id = "random"
    controller = Controller.POLICY
    needs_images = False

    def __init__(self, smoothness: float = 0.7, chunk: int = 1) -> None:
        if not 0.0 <= smoothness < 1.0:
            raise ConfigError(f"random actor: smoothness must be in [0, 1), got {smoothness}")
        if chunk < 1:
            raise ConfigError(f"random actor: chunk must be at least 1, got {chunk}")
        self._smoothness, self._chunk = smoothness, chunk
        self._rngs: list[np.random.Generator] = []
        self._last: list[np.ndarray] = []

    def begin(self, worlds: Sequence[World], rngs: Sequence[np.random.Generator]) -> None:
        self._rngs = list(rngs)
        self._last = [rng.uniform(-1.0, 1.0, world.action_dim) for world, rng in zip(worlds, rngs, strict=True)]

    def act(self, slots: Sequence[int], observations: Sequence[Observation]) -> np.ndarray:
        """float32 (len(slots), chunk, A)."""
        return np.stack([[self._next(slot) for _ in range(self._chunk)] for slot in slots]).astype(np.float32)

    def _next(self, slot: int) -> np.ndarray:
        action, rng = self._last[slot], self._rngs[slot]
        fresh = rng.uniform(-1.0, 1.0, action.shape)
        self._last[slot] = self._smoothness * action + (1.0 - self._smoothness) * fresh
        return action

    def note(self, slot: int) -> str:
        return ""
