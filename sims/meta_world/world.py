"""Meta-World v3 as a `World`: control steps without drawing, initial states by (seed, index) only.

Departures from the library, all deliberate:
- A control step repeats its action `action_repeat` simulator steps of 80 Hz.
- The policy gets images and four numbers of proprioception; the library's 39 numbers hold the object and the
  goal, so only the scripted expert sees them (`privileged_state`).
- `info["success"]` may hold for one step and be lost in the next (a puck that passes through its goal): here it must
  hold at the end of `success_hold` control steps in a row, and then ends the episode. The library counts a single step
  and goes on.
- The random vector of an episode is drawn from (seed, index), and a reset runs twice with it, so that what it measures
  is what it has placed and not what the episode before it left (bit for bit, checked on all fifty tasks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robo_rl.errors import ConfigError, SafetyError
from robo_rl.types import Observation, StepResult
from sims.meta_world.library import environments, quiet_library
from sims.meta_world.render import CAMERAS, mark_goal, painter
from sims.meta_world.tasks import INSTRUCTIONS

SIMULATOR_HZ = 80.0
LONGEST = 500  # simulator steps the library allows in an episode
DEFAULT_TASKS = ("reach-v3", "push-v3", "drawer-open-v3", "button-press-topdown-v3", "door-open-v3")


@dataclass(frozen=True, kw_only=True, slots=True)
class MetaWorldConfig:
    """Calling it builds the world, so it serves as the rollout's `make_world`.

    Episode `index` plays `tasks[index % len(tasks)]`. Frames are uint8 (size, size, 3).
    Raises ConfigError for an unknown task or camera, or limits the library cannot keep.
    """

    tasks: tuple[str, ...] = DEFAULT_TASKS
    size: int = 64
    cameras: tuple[str, ...] = ("corner2", "gripperPOV")
    action_repeat: int = 2  # 80 Hz / 2: control at 40 Hz
    horizon: int = 100  # control steps
    success_hold: int = 2  # control steps

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigError("metaworld.tasks is empty; name at least one task, such as 'reach-v3'")
        for kind, names, known in (("task", self.tasks, INSTRUCTIONS), ("camera", self.cameras, CAMERAS)):
            for name in names:
                if name not in known:
                    raise ConfigError(f"metaworld: unknown {kind} {name!r}; there are: {', '.join(sorted(known))}")
        for name in ("size", "action_repeat", "horizon", "success_hold"):
            if getattr(self, name) < 1:
                raise ConfigError(f"metaworld.{name} must be at least 1, got {getattr(self, name)}")
        if self.horizon * self.action_repeat > LONGEST:
            raise ConfigError(
                f"metaworld: horizon {self.horizon} x action_repeat {self.action_repeat} is more than the {LONGEST} "
                f"simulator steps the library allows; use a horizon of at most {LONGEST // self.action_repeat}"
            )

    def __call__(self) -> MetaWorldWorld:
        return MetaWorldWorld(self)


class MetaWorldWorld:
    """One Meta-World episode at a time. Actions (4,): dx, dy, dz of the hand, gripper effort (> 0 closes).

    A full action moves the hand's target by 1 cm a simulator step. Proprioception (4,): hand x, y, z in metres,
    gripper opening in [0, 1].
    """

    action_dim = 4
    state_dim = 4

    def __init__(self, config: MetaWorldConfig) -> None:
        environments()  # a missing package is said now, not in the first episode
        self.config = config
        self.cameras: Sequence[str] = config.cameras
        self.control_hz = SIMULATOR_HZ / config.action_repeat
        self.horizon = config.horizon
        self.task = config.tasks[0]
        self.instruction = INSTRUCTIONS[self.task]
        self._env: Any = None
        self._observation = np.zeros(39)
        self._reward = self._first_reward = 0.0
        self._steps = self._held = 0

    def begin(self, seed: int, index: int) -> None:
        """Reset to initial state `index` of `seed`: positions of objects and goal, the hand at its start."""
        self.close()
        self.task = self.config.tasks[index % len(self.config.tasks)]
        self.instruction = INSTRUCTIONS[self.task]
        self._env = _take(self.task)
        with quiet_library():
            self._observation = _reset(self._env, np.random.default_rng([seed, index]))
            mark_goal(self._env)
            self._reward = float(self._env.evaluate_state(self._observation, np.zeros(4, np.float32))[0])
        self._first_reward = self._reward
        self._steps = self._held = 0

    def advance(self, action: np.ndarray) -> StepResult:
        """`action_repeat` simulator steps with float32 (4,). Raises SafetyError on a wrong shape or NaN."""
        env = self._playing()
        action = np.asarray(action, dtype=np.float32)
        if action.shape != (4,) or not np.isfinite(action).all():
            raise SafetyError(f"metaworld: an action must be 4 finite numbers, got {action.tolist()}")
        action = np.clip(action, -1.0, 1.0)
        for _ in range(self.config.action_repeat):
            self._observation, reward, _, _, info = env.step(action)
        self._reward = float(reward)
        self._steps += 1
        self._held = self._held + 1 if info["success"] else 0
        success = self._held >= self.config.success_hold
        return StepResult(
            success=success,
            terminated=success,
            truncated=not success and self._steps >= self.horizon,
            reward=self._reward,
        )

    def observe(self) -> Observation:
        """Draw the cameras."""
        env = self._playing()
        brush = painter(self.task, self.config.size, env.model)
        images = {camera: brush.draw(env.model, env.data, camera) for camera in self.config.cameras}
        return Observation(images=images, state=self.state(), instruction=self.instruction)

    def state(self) -> np.ndarray:
        """Hand x, y, z and gripper opening; nothing about objects or the goal."""
        self._playing()
        return self._observation[:4].astype(np.float32)

    def privileged_state(self) -> np.ndarray:
        """The library's float64 (39,): hand, objects, the same one step before, goal. For the scripted expert only."""
        self._playing()
        return self._observation.copy()

    def true_progress(self) -> float:
        """(r - r0) / (10 - r0) in [0, 1] with the library's dense reward r of 0 to 10, r0 at the start; 1 while
        the success criterion holds. Not monotone, and uneven between tasks: it ranks moments of one task."""
        if self._held:
            return 1.0
        room = 10.0 - self._first_reward
        return float(np.clip((self._reward - self._first_reward) / room, 0.0, 1.0)) if room > 1e-6 else 0.0

    def close(self) -> None:
        """Give the simulator back to the process."""
        if self._env is not None:
            _FREE.setdefault(self.task, []).append(self._env)
            self._env = None

    def _playing(self) -> Any:
        if self._env is None:
            raise ConfigError("metaworld: begin(seed, index) comes before anything else")
        return self._env


# Building a task takes 0.2 s and 20 MB, and a state never depends on what was played before it, so the
# worlds of one process share their simulators: task -> those nobody plays.
_FREE: dict[str, list[Any]] = {}


def _take(task: str) -> Any:
    free = _FREE.setdefault(task, [])
    return free.pop() if free else _build(task)


def _build(task: str) -> Any:
    with quiet_library():
        env = environments()[task]()
    env._set_task_called = True  # we set the random vector ourselves, below
    env.seeded_rand_vec = True
    # The expert needs the goal in its observation. The space is cached and clips observations.
    env._partially_observable = False
    env.__dict__.pop("sawyer_observation_space", None)
    return env


def _reset(env: Any, rng: np.random.Generator) -> np.ndarray:
    """float64 (39,), a function of the task and `rng` only.

    A reset places objects and then measures distances, in some tasks before it has placed them. As in the library's
    own benchmarks, a second pass with the frozen vector measures what the first has placed.
    """
    from gymnasium.envs.mujoco import MujocoEnv

    env._np_random = rng
    env._freeze_rand_vec = False
    MujocoEnv.reset(env)
    env._freeze_rand_vec = True
    env.curr_path_length = 0
    observation, _ = MujocoEnv.reset(env)
    env._prev_obs = observation[:18].copy()
    observation[18:36] = env._prev_obs
    return observation.astype(np.float64)
