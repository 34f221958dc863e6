"""What a rollout records, how it is disturbed, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robo_rl.errors import ConfigError

ACTOR_STREAM, DISTURBANCE_STREAM = 0, 1


def episode_rng(seed: int, index: int, stream: int) -> np.random.Generator:
    """The generator of one purpose (`stream`) in episode `index` of `seed`; equal in every process."""
    return np.random.default_rng([seed, index, stream])


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordConfig:
    """What a collected trajectory holds besides states, actions and rewards.

    With `every_step` the cameras are drawn at all T + 1 observations and stored. Without it the
    trajectory has no frames, and worlds are drawn only where the actor needs to see.
    """

    every_step: bool = True
    cameras: tuple[str, ...] | None = None  # None: every camera the world draws
    true_progress: bool = False  # the simulator's ground truth, to evaluate judges
    episode_prefix: str = ""  # an episode's id is "{prefix}-{seed}-{index}"; empty: the actor's policy_id

    def __post_init__(self) -> None:
        if self.cameras is not None and not self.cameras:
            raise ConfigError("record.cameras is empty; name at least one camera, or set every_step=False")


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbance:
    """Time-correlated noise on the executed action: n[0] = s e[0], n[t] = c n[t-1] + s sqrt(1 - c^2) e[t].

    `scale` s is the stationary standard deviation, one number or one an action dimension; `correlation`
    c is in [0, 1). The executed action is clipped to [-1, 1]. The trajectory keeps the command, so
    that a learner sees the correction and not the disturbance (DART, Laskey et al. 2017), unless
    `record_executed`. The noise is a function of (seed, index) only.
    """

    scale: float | tuple[float, ...]
    correlation: float = 0.8
    record_executed: bool = False

    def __post_init__(self) -> None:
        scale = np.atleast_1d(np.asarray(self.scale, dtype=float))
        if not (np.isfinite(scale).all() and (scale >= 0).all()):
            raise ConfigError(f"disturbance.scale must be finite and not negative, got {self.scale}")
        if not 0.0 <= self.correlation < 1.0:
            raise ConfigError(f"disturbance.correlation must be in [0, 1), got {self.correlation}")


class DisturbanceNoise:
    """The noise of one episode, one draw a step."""

    def __init__(self, disturbance: Disturbance, seed: int, index: int, action_dim: int) -> None:
        scale = np.asarray(disturbance.scale, dtype=float)
        if scale.ndim and scale.shape != (action_dim,):
            raise ConfigError(f"disturbance.scale has {scale.size} entries, but actions have {action_dim} dimensions")
        self._scale, self._correlation = scale, disturbance.correlation
        self._rng = episode_rng(seed, index, DISTURBANCE_STREAM)
        self._action_dim = action_dim
        self._value: np.ndarray | None = None

    def apply(self, command: np.ndarray) -> np.ndarray:
        """float32 (A,) command -> float32 (A,) executed action in [-1, 1]."""
        fresh = self._rng.standard_normal(self._action_dim) * self._scale
        if self._value is None:
            self._value = fresh
        else:
            self._value = self._correlation * self._value + np.sqrt(1.0 - self._correlation**2) * fresh
        return np.clip(command + self._value, -1.0, 1.0).astype(np.float32)


@dataclass(slots=True)
class Timings:
    """Seconds of one worker's time, by what it did."""

    inference: float = 0.0
    physics: float = 0.0
    rendering: float = 0.0
    total: float = 0.0


@dataclass(slots=True)
class RolloutStats:
    """Throughput of a rollout; complete when it has been read to its end.

    `seconds` is wall time from the first request on, with the start of the workers and the time the
    reader took. The shares are of the workers' busy time; `idle_share` is of all their time after start-up.
    """

    episodes: int = 0
    steps: int = 0
    aborted: int = 0
    workers: int = 0
    seconds: float = 0.0
    startup_seconds: float = 0.0
    inference_share: float = 0.0
    physics_share: float = 0.0
    rendering_share: float = 0.0
    idle_share: float = 0.0

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    def update(self, busy: Timings, *, seconds: float, startup_seconds: float) -> None:
        """Set the times from the workers' summed timings."""
        self.seconds, self.startup_seconds = seconds, startup_seconds
        if busy.total > 0:
            self.inference_share = busy.inference / busy.total
            self.physics_share = busy.physics / busy.total
            self.rendering_share = busy.rendering / busy.total
        available = max(self.workers, 1) * (seconds - startup_seconds)
        self.idle_share = min(1.0, max(0.0, 1.0 - busy.total / available)) if available > 0 else 0.0
