"""The tabletop as a `World`: Cartesian commands, real grasps, sparse success, and ground truth for judges."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from robo_rl.errors import ConfigError, SafetyError
from robo_rl.types import Observation, StepResult
from sims.tabletop.arm import JOINTS, InverseKinematics
from sims.tabletop.config import TabletopConfig
from sims.tabletop.layout import draw_layout
from sims.tabletop.render import painter
from sims.tabletop.scene import CUBE_HALF, FINGER_RANGE, HOME, TIMESTEP, Scene, load_scene
from sims.tabletop.tasks import Moment, Task, pick_task, placed, progress, succeeded, work_left

CONTROL_HZ = 10.0
_TICKS = 2  # inverse kinematics runs at 20 Hz, each time for half of the action
_SUBSTEPS = round(1.0 / (CONTROL_HZ * _TICKS * TIMESTEP))
_START = np.array([-0.10, 0.0, 0.23])  # the gripper's first place, within _START_SPREAD on each axis, m
_START_SPREAD = 0.03
_LOW, _HIGH = np.array([-0.21, -0.29, 0.014]), np.array([0.21, 0.29, 0.33])  # where the gripper may be sent, m
_LEASH = 0.06  # the target is at most this far ahead of the gripper, per axis, m
_FALLEN = -0.03  # z of an object's centre below which it has left the table, m


class TabletopWorld:
    """One episode at a time on the tabletop.

    Actions float32 (4,) in [-1, 1]: dx, dy, dz times `step_m` metres, and the gripper, which opens when positive.
    Proprioception float32 (11,): gripper x, y, z in metres, finger opening in [0, 1], seven joint angles in rad.
    Reward 1 at the step that ends in success, else 0. An object that falls off the table ends the episode.
    """

    action_dim = 4
    state_dim = 4 + JOINTS
    control_hz = CONTROL_HZ

    def __init__(self, config: TabletopConfig | None = None) -> None:
        self.config = config = config or TabletopConfig()
        self.cameras: Sequence[str] = config.cameras
        self.horizon = config.horizon
        self._scene: Scene = load_scene(config.cubes, config.pads, config.bowls)
        self._data = mujoco.MjData(self._scene.model)
        self._solver = InverseKinematics()
        self.begin(0, 0)

    def begin(self, seed: int, index: int) -> None:
        """Reset to initial state `index` of `seed`. Families, and tasks within them, take turns along `index`."""
        if seed < 0 or index < 0:
            raise ConfigError(f"tabletop: seed and index must not be negative, got {seed} and {index}")
        rng = np.random.default_rng([seed, index])
        self.goal: Task = pick_task(self.config, index)
        wording = int(rng.integers(3)) if self.config.paraphrases else 0
        self.task, self.instruction = self.goal.family, self.goal.instruction(wording)
        mujoco.mj_resetData(self._scene.model, self._data)
        self._place_objects(rng)
        self._place_arm(_START + rng.uniform(-_START_SPREAD, _START_SPREAD, 3))
        mujoco.mj_forward(self._scene.model, self._data)
        self._steps = self._held = 0
        self._work_at_start = work_left(self.goal, self.moment())

    def _place_objects(self, rng: np.random.Generator) -> None:
        for name, (x, y, yaw) in draw_layout(self.config, self.goal, rng).items():
            turn = [np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)]
            if name in self._scene.mocap:
                self._data.mocap_pos[self._scene.mocap[name]] = [x, y, 0.0]
            else:
                first = self._scene.cube_qpos[name]
                self._data.qpos[first : first + 7] = [x, y, CUBE_HALF, *turn]

    def _place_arm(self, position: np.ndarray) -> None:
        self._target = position
        self._joints = self._solver.solve(position, HOME, iterations=40)
        self._data.qpos[:JOINTS] = self._data.ctrl[:JOINTS] = self._joints
        finger = self._scene.finger_qpos
        self._data.qpos[finger : finger + 2] = self._data.ctrl[JOINTS] = FINGER_RANGE

    def advance(self, action: np.ndarray) -> StepResult:
        """One control step of 0.1 s with float32 (4,). Raises SafetyError on NaN or a wrong shape."""
        action = np.asarray(action, dtype=np.float64)
        if action.shape != (self.action_dim,) or not np.isfinite(action).all():
            raise SafetyError(f"tabletop: an action must be {self.action_dim} finite numbers, got {action.tolist()}")
        action = np.clip(action, -1.0, 1.0)
        model, data = self._scene.model, self._data
        data.ctrl[JOINTS] = FINGER_RANGE if action[3] > 0 else 0.0
        for _ in range(_TICKS):
            self._move_target(action[:3] * (self.config.step_m / _TICKS))
            mujoco.mj_step(model, data, _SUBSTEPS)
        mujoco.mj_kinematics(model, data)  # mj_step leaves positions one time step behind qpos
        return self._judge()

    def _move_target(self, change: np.ndarray) -> None:
        gripper = self._data.site_xpos[self._scene.grip_site]
        target = np.minimum(np.maximum(self._target + change, _LOW), _HIGH)
        self._target = np.minimum(np.maximum(target, gripper - _LEASH), gripper + _LEASH)
        self._joints = self._solver.solve(self._target, self._joints)
        self._data.ctrl[:JOINTS] = self._joints

    def _judge(self) -> StepResult:
        self._steps += 1
        self._held = self._held + 1 if succeeded(self.goal, self.moment()) else 0
        success = self._held >= self.config.success_hold
        terminated = success or self.fallen()
        return StepResult(
            success=success,
            terminated=terminated,
            truncated=not terminated and self._steps >= self.horizon,
            reward=float(success),
        )

    def observe(self) -> Observation:
        """Draw the cameras."""
        images = {}
        if self.config.cameras:
            brush = painter(self._scene.model, self.config.size)
            images = {camera: brush.draw(self._data, camera) for camera in self.config.cameras}
        return Observation(images=images, state=self.state(), instruction=self.instruction)

    def draw(self, camera: str = "front", size: int | None = None) -> np.ndarray:
        """uint8 (size, size, 3): one picture of this moment, of any size, for people to look at."""
        return painter(self._scene.model, size or self.config.size).draw(self._data, camera)

    def state(self) -> np.ndarray:
        """Proprioception; nothing about objects or the goal."""
        values = np.empty(self.state_dim, dtype=np.float32)
        values[:3] = self._data.site_xpos[self._scene.grip_site]
        values[3] = min(max(self._opening() / (2 * FINGER_RANGE), 0.0), 1.0)
        values[4:] = self._data.qpos[:JOINTS]
        return values

    def _opening(self) -> float:
        finger = self._scene.finger_qpos
        return float(self._data.qpos[finger] + self._data.qpos[finger + 1])

    # Ground truth: for the scripted expert, success and evaluation; a policy never sees it

    def object_position(self, name: str) -> np.ndarray:
        """float64 (3,) centre of "red cube", "yellow pad", "bowl", in metres."""
        if name not in self._scene.body:
            raise ConfigError(f"tabletop: no object {name!r}; there are: {', '.join(self._scene.body)}")
        return self._data.xpos[self._scene.body[name]].copy()

    def object_names(self) -> tuple[str, ...]:
        return tuple(self._scene.body)

    def moment(self) -> Moment:
        """The facts of this moment, copied."""
        return Moment(
            gripper=self._data.site_xpos[self._scene.grip_site].copy(),
            opening=self._opening(),
            closing=bool(self._data.ctrl[JOINTS] < FINGER_RANGE / 2),
            positions={name: self._data.xpos[body].copy() for name, body in self._scene.body.items()},
        )

    def placed(self) -> bool:
        """Whether the cube lies where the task wants it, whatever the hand does."""
        return placed(self.goal, self.moment())

    def fallen(self) -> bool:
        """Whether an object has left the table."""
        return any(self._data.xpos[self._scene.body[name]][2] < _FALLEN for name in self._scene.cube_qpos)

    def true_progress(self) -> float:
        """1 - (work left / work at the start) in [0, 1]; 1 where the task's criterion holds, and only there.

        Work is a rough length of the hand's way (`tasks.work_left`), so progress falls when the arm undoes its work.
        """
        return 0.0 if self.fallen() else progress(self.goal, self.moment(), self._work_at_start)

    def physics_state(self) -> np.ndarray:
        """float64 (N,): positions, velocities, commands and warm starts, to compare two worlds bit by bit."""
        data = self._data
        return np.concatenate([data.qpos, data.qvel, data.ctrl, data.qacc_warmstart, data.mocap_pos.ravel()])

    def close(self) -> None:
        """Nothing to give back: the model and the OpenGL context belong to the process."""
