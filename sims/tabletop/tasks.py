"""The tasks: what is asked, when it is done, and how much is left to do.

Left and right are those of the front camera's picture. Positions are in metres in the world's frame: x away from the
robot, y to the right in the front picture, z up, the table's top at z = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sims.tabletop.config import TabletopConfig
from sims.tabletop.scene import CUBE_HALF, PAD_HALF

WORDINGS: dict[str, tuple[str, ...]] = {
    "bowl": ("put the {cube} in the {goal}", "place the {cube} into the {goal}", "drop the {cube} in the {goal}"),
    "pad": ("put the {cube} on the {goal}", "place the {cube} onto the {goal}", "move the {cube} to the {goal}"),
    "push": ("push the {cube} to the {goal}", "slide the {cube} to the {goal} edge", "push the {cube} {goal}"),
    "stack": (
        "stack the {cube} on the {goal}",
        "put the {cube} on top of the {goal}",
        "place the {cube} on the {goal}",
    ),
}
PUSH_LINE = 0.222  # |y| of a cube's centre from which it counts as pushed to the edge
CARRY_HEIGHT = 0.13  # of the gripper while it carries
RELEASED = 0.058  # finger opening in metres from which nothing is held
CLOSED = 0.02  # finger opening below which the fingers are closed on nothing
CLEAR = 0.06  # distance from cube to gripper at which the hand has left it
BEHIND = CUBE_HALF + 0.045  # where a push starts: distance of the gripper from the cube's centre
_GRASP_WORK = 0.05  # closing or opening the fingers takes as long as moving this far
_FREE_HEIGHT = 0.155  # of a cube on its way: rising to here is work done, going higher is not
_UNFINISHED = 0.97  # progress is below this until the criterion holds


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do: a family, the cube to move, and where to (a pad, the bowl, a cube, "left" or "right")."""

    family: str
    cube: str
    goal: str

    @property
    def side(self) -> float:
        """-1 left, +1 right: the direction of a push along y."""
        return -1.0 if self.goal == "left" else 1.0

    def instruction(self, wording: int = 0) -> str:
        forms = WORDINGS[self.family]
        return forms[wording % len(forms)].format(cube=self.cube, goal=self.goal)


@dataclass(frozen=True, slots=True)
class Moment:
    """The privileged facts of one moment."""

    gripper: np.ndarray  # float64 (3,), between the fingertips
    opening: float  # distance between the fingers, m, 0 to 0.08
    closing: bool  # the fingers are commanded to close
    positions: Mapping[str, np.ndarray]  # object -> float64 (3,), its centre

    def holds(self, cube: str) -> bool:
        """Whether the cube is between fingers that press on it."""
        apart = np.abs(self.positions[cube] - self.gripper)
        inside = apart[0] < 0.028 and apart[1] < 0.02 and apart[2] < 0.03
        return bool(self.closing and inside and 1.6 * CUBE_HALF < self.opening < RELEASED)


def all_tasks(config: TabletopConfig) -> dict[str, list[Task]]:
    """Every task of each family that the configuration's objects allow."""
    goals = {"bowl": config.bowls, "pad": config.pads, "push": ("left", "right"), "stack": config.cubes}
    return {
        family: [Task(family, cube, goal) for cube in config.cubes for goal in goals[family] if goal != cube]
        for family in config.tasks
    }


def pick_task(config: TabletopConfig, index: int) -> Task:
    """The task of episode `index`: families take turns, and within a family its tasks do."""
    tasks = all_tasks(config)
    family = config.tasks[index % len(config.tasks)]
    return tasks[family][(index // len(config.tasks)) % len(tasks[family])]


def resting_place(task: Task, moment: Moment) -> np.ndarray:
    """float64 (3,): where the cube's centre should come to rest."""
    if task.family == "push":
        return np.array([moment.positions[task.cube][0], task.side * (PUSH_LINE + 0.01), CUBE_HALF])
    goal = moment.positions[task.goal]
    height = {"bowl": 0.006 + CUBE_HALF, "pad": CUBE_HALF, "stack": goal[2] + 2 * CUBE_HALF}[task.family]
    return np.array([goal[0], goal[1], height])


def placed(task: Task, moment: Moment) -> bool:
    """Whether the cube lies where the task wants it, whatever the hand does."""
    cube, rest = moment.positions[task.cube], resting_place(task, moment)
    across = cube[:2] - rest[:2]
    match task.family:
        case "bowl":
            return bool(np.hypot(*across) < 0.042 and cube[2] < rest[2] + 0.015)
        case "pad":
            return bool(np.abs(across).max() < PAD_HALF - 0.01 and cube[2] < rest[2] + 0.006)
        case "stack":
            return bool(np.hypot(*across) < 0.026 and abs(cube[2] - rest[2]) < 0.008)
    return bool(task.side * cube[1] > PUSH_LINE and abs(cube[2] - CUBE_HALF) < 0.01)


def succeeded(task: Task, moment: Moment) -> bool:
    """The task's criterion at this moment: the cube is in place, let go and clear of the hand.

    A push wants closed fingers instead: a cube that was gripped and carried to the edge does not count.
    """
    if not placed(task, moment):
        return False
    if task.family == "push":
        return moment.opening < CLOSED
    apart = float(np.linalg.norm(moment.gripper - moment.positions[task.cube]))
    return moment.opening > RELEASED and apart > CLEAR


def work_left(task: Task, moment: Moment) -> float:
    """Metres the hand has still to go, at a rough guess; closing or opening the fingers counts as a short way.

    It falls along a good execution, rises when the hand goes back or the cube is dropped, and is continuous but
    for grasping, losing and placing a cube.
    """
    if task.family == "push":
        return _push_work(task, moment)
    cube, rest = moment.positions[task.cube], resting_place(task, moment)
    held = moment.holds(task.cube)
    if placed(task, moment) and not held:
        apart = float(np.linalg.norm(moment.gripper - cube))
        opening = max(0.0, RELEASED - moment.opening) / RELEASED * _GRASP_WORK
        return opening + max(0.0, CLEAR - apart)
    across = float(np.hypot(*(cube[:2] - rest[:2])))
    height = max(rest[2], _FREE_HEIGHT * min(1.0, across / 0.08))  # no need to rise for the last centimetres
    carry = max(0.0, height - cube[2]) + across + max(height, cube[2]) - rest[2] + _GRASP_WORK + CLEAR
    if held:
        return carry
    return carry + _reach(moment.gripper, cube) + _GRASP_WORK


def _reach(gripper: np.ndarray, target: np.ndarray) -> float:
    """The way to a point that must be come upon from above."""
    across = float(np.hypot(*(gripper[:2] - target[:2])))
    height = target[2] + 0.08 * min(1.0, across / 0.06)
    return max(0.0, height - gripper[2]) + across + abs(max(gripper[2], height) - target[2])


def _push_work(task: Task, moment: Moment) -> float:
    cube = moment.positions[task.cube]
    left = max(0.0, PUSH_LINE - task.side * cube[1])
    fingers = max(0.0, moment.opening - CLOSED)
    if left == 0.0:
        return fingers
    ahead = task.side * (cube[1] - moment.gripper[1])
    beside = abs(cube[0] - moment.gripper[0])
    if 0.0 < ahead < 1.3 * BEHIND and beside < CUBE_HALF and moment.gripper[2] < 2 * CUBE_HALF:
        return left + fingers + max(0.0, ahead - 2 * CUBE_HALF)
    start = np.array([cube[0], cube[1] - task.side * BEHIND, CUBE_HALF])
    return left + fingers + _reach(moment.gripper, start) + BEHIND - 2 * CUBE_HALF


def progress(task: Task, moment: Moment, work_at_start: float) -> float:
    """1 - work left / work at the start, in [0, 1]; 1 where the criterion holds, and only there."""
    if succeeded(task, moment):
        return 1.0
    return float(np.clip(1.0 - work_left(task, moment) / work_at_start, 0.0, 1.0) * _UNFINISHED)
