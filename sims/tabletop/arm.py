"""Inverse kinematics of the arm: damped least squares with the gripper pointing straight down."""

from __future__ import annotations

import mujoco
import numpy as np

from sims.tabletop.scene import HOME, load_arm

JOINTS = 7
_DOWN = np.array([0.0, 1.0, 0.0, 0.0])  # orientation of the grip site, as a quaternion w x y z
_DAMPING = 1e-3
_POSTURE = 0.05  # share of the way to HOME that the null space goes in an iteration


class InverseKinematics:
    """Joint angles that bring the grip site to a position. Keeps a scratch MjData; no state between calls."""

    def __init__(self) -> None:
        self._model = load_arm()
        self._data = mujoco.MjData(self._model)
        self._site = self._model.site("grip").id
        self._jac_pos = np.zeros((3, self._model.nv))
        self._jac_rot = np.zeros((3, self._model.nv))
        self._jac = np.zeros((6, JOINTS))
        self._error = np.zeros(6)
        self._quat = np.zeros(4)
        self._turn = np.zeros(4)
        self._low = self._model.jnt_range[:JOINTS, 0] + 0.01
        self._high = self._model.jnt_range[:JOINTS, 1] - 0.01

    def solve(self, position: np.ndarray, start: np.ndarray, iterations: int = 2) -> np.ndarray:
        """float64 (7,) joint angles in rad, from (7,) `start`, for the grip site at (3,) `position` in metres.

        Each iteration: n + J^T (J J^T + damping I)^-1 (e - J n), n the null-space pull to HOME.
        """
        joints = self._data.qpos[:JOINTS]
        joints[:] = start
        for _ in range(iterations):
            self._linearise(position)
            jac = self._jac
            square = jac @ jac.T
            square.flat[:: 6 + 1] += _DAMPING
            move = (HOME - joints) * _POSTURE
            move += jac.T @ np.linalg.solve(square, self._error - jac @ move)
            joints[:] = np.minimum(np.maximum(joints + move, self._low), self._high)
        return joints.copy()

    def _linearise(self, position: np.ndarray) -> None:
        model, data = self._model, self._data
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_jacSite(model, data, self._jac_pos, self._jac_rot, self._site)
        self._jac[:3] = self._jac_pos[:, :JOINTS]
        self._jac[3:] = self._jac_rot[:, :JOINTS]
        np.subtract(position, data.site_xpos[self._site], out=self._error[:3])
        mujoco.mju_mat2Quat(self._quat, data.site_xmat[self._site])
        mujoco.mju_negQuat(self._quat, self._quat)
        mujoco.mju_mulQuat(self._turn, _DOWN, self._quat)
        mujoco.mju_quat2Vel(self._error[3:], self._turn, 1.0)
