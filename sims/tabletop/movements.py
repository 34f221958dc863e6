"""The expert's movements: phases that follow each other, and are left again when the world is not as they need it.

A phase gives a target for the gripper and a command for the fingers. An attentive movement looks at the facts of each
moment, so it recovers from disturbances; a blind one (a planned failure) goes through its phases whatever happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from sims.tabletop.failures import Script
from sims.tabletop.scene import CUBE_HALF
from sims.tabletop.tasks import BEHIND, CARRY_HEIGHT, CLOSED, PUSH_LINE, RELEASED, Moment, Task, placed, resting_place
from sims.tabletop.world import TabletopWorld

OPEN, CLOSE = 1.0, -1.0
_BESIDE = 0.052  # how far beside the cube a missed grasp or push is, m
_PATIENCE = 15  # steps after which a phase that does not get where it wants moves on


@dataclass(frozen=True, slots=True)
class Manner:
    """How an episode is done: what varies between good demonstrations."""

    speed: float  # longest command of a step
    hover: float  # height above the cube from which the hand comes down, m
    carry: float  # height at which it carries, m
    grasp_offset: np.ndarray  # float64 (2,), m
    place_offset: np.ndarray  # float64 (2,), m

    @staticmethod
    def draw(speed: float, jitter: float, rng: np.random.Generator) -> Manner:
        low = max(0.1, speed * (1.0 - 0.25 * jitter))
        return Manner(
            speed=float(rng.uniform(low, speed)),
            hover=0.09 + jitter * float(rng.uniform(-0.01, 0.02)),
            carry=CARRY_HEIGHT + jitter * float(rng.uniform(-0.01, 0.015)),
            grasp_offset=jitter * rng.uniform(-0.004, 0.004, 2),
            place_offset=jitter * rng.uniform(-0.006, 0.006, 2),
        )


class Movement(Protocol):
    """Gives the gripper's next target (float64 (3,), m) and the fingers' command (> 0 opens)."""

    happened: set[str]  # mistakes made so far

    def next(self, moment: Moment) -> tuple[np.ndarray, float]: ...


def start_movement(world: TabletopWorld, script: Script, manner: Manner) -> Movement:
    """The movement for the world's task, with the script's mistakes."""
    task, happened = world.goal, set[str]()
    spot = None
    if script.has("wrong_object"):
        others = [cube for cube in world.config.cubes if cube not in (task.cube, task.goal)]
        others = others or [cube for cube in world.config.cubes if cube != task.cube]
        if others:
            other = others[int(script.choice * len(others))]
            task = Task(task.family, other, task.cube if task.goal == other else task.goal)
            happened.add("wrong_object")
    if script.has("wrong_goal"):
        task, spot = _other_goal(world, task, script.choice)
        happened.add("wrong_goal")
    lure = None
    if script.has("detour"):
        names = [name for name in world.object_names() if name != task.cube]
        lure = names[int(script.choice * len(names))] if names else None
    kind = Push if task.family == "push" else PickAndPlace
    return kind(task, script, manner, happened, lure=lure, spot=spot)


def _other_goal(world: TabletopWorld, task: Task, choice: float) -> tuple[Task, np.ndarray | None]:
    """The same cube to another goal, or to a bare spot of the table where there is none."""
    if task.family == "push":
        return replace(task, goal="left" if task.goal == "right" else "right"), None
    places = [*world.config.bowls, *world.config.pads]
    goals = [Task("bowl" if name == "bowl" else "pad", task.cube, name) for name in places if name != task.goal]
    if goals:
        return goals[int(choice * len(goals))], None
    goal = world.object_position(task.goal)
    side = -1.0 if goal[1] > 0 else 1.0
    return task, np.array([goal[0] * 0.5, goal[1] + side * 0.15, CUBE_HALF])


class PickAndPlace:
    """hover, descend, close, lift, carry, lower, open, retreat, rest; with an undo also return and put_down."""

    def __init__(
        self,
        task: Task,
        script: Script,
        manner: Manner,
        happened: set[str],
        *,
        lure: str | None = None,
        spot: np.ndarray | None = None,
    ) -> None:
        self.happened = happened
        self._task, self._script, self._manner = task, script, manner
        self._lure, self._spot = lure, spot
        self._phase, self._age = "hover", 0
        self._fingers = OPEN
        self._undo = script.has("undo")
        self._beside = script.has("miss") or script.has("regrasp")
        self._origin: np.ndarray = np.zeros(3)  # where the cube was taken from
        self._point: np.ndarray = np.zeros(3)  # where the fingers close
        self._last_opening = 1.0

    def next(self, moment: Moment) -> tuple[np.ndarray, float]:
        before = self._phase
        if not self._script.blind:
            self._notice(moment)
        target, arrived = getattr(self, f"_{self._phase}")(moment)
        self._last_opening = moment.opening
        self._age = 0 if self._phase != before else self._age + 1
        if arrived is not None and self._phase == before:
            self._enter(arrived)
        return target, self._fingers

    def _slack(self) -> float:
        """Tolerances grow while a phase lasts: a disturbed hand may never be as near as an undisturbed one."""
        return 1.0 + 0.12 * self._age

    def _enter(self, phase: str) -> None:
        self._phase, self._age = phase, 0

    def _notice(self, moment: Moment) -> None:
        """Leave a phase whose ground has gone: start again from above the cube, or let go of a placed one."""
        held, done = moment.holds(self._task.cube), placed(self._task, moment)
        if self._phase in ("lift", "carry", "lower", "return", "put_down") and not held:
            self._enter("retreat" if done else "hover")
        elif self._phase in ("retreat", "rest") and not done:
            self._enter("hover")

    # Phases: each gives a target and the name of the next phase, or None to go on

    def _hover(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        self._fingers = OPEN
        if self._lure is not None:
            target = moment.positions[self._lure] + [0.0, 0.0, self._manner.hover + 0.02]
            self.happened.add("detour")
            if np.hypot(*(target - moment.gripper)[:2]) < 0.05 or self._age > _PATIENCE:
                self._lure = None
            return target, None
        cube = moment.positions[self._task.cube]
        target = cube + np.array([*self._grasp_offset(), self._manner.hover])
        across = float(np.hypot(*(target - moment.gripper)[:2]))
        if across > 0.03 and moment.gripper[2] < cube[2] + 0.055:
            return np.array([*moment.gripper[:2], target[2]]), None  # first up, so as not to sweep cubes away
        return target, "descend" if across < 0.02 else None

    def _grasp_offset(self) -> np.ndarray:
        return np.array([self._script.side * _BESIDE, 0.0]) if self._beside else self._manner.grasp_offset

    def _descend(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        cube = moment.positions[self._task.cube]
        target = np.array([*(cube[:2] + self._grasp_offset()), max(cube[2], 0.02)])
        off = np.abs(target - moment.gripper)
        if off[:2].max() > 0.06 and not self._script.blind:
            return target, "hover"
        arrived = off[:2].max() < 0.012 * self._slack() and off[2] < 0.01 * self._slack()
        if arrived or self._age > _PATIENCE:
            self._point, self._origin = target, cube.copy()
            return target, "close"
        target[2] += self._manner.hover * _funnel(off[:2].max())
        return target, None

    def _close(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        self._fingers = CLOSE
        still = abs(moment.opening - self._last_opening) < 0.003
        if self._age < 1 or not still:
            return self._point, None
        if self._beside and self._script.has("miss"):
            self.happened.add("miss")
        elif self._beside:
            self.happened.add("regrasp")
            self._beside = False
            return self._point, "rise"
        return self._point, "lift"

    def _lift(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        target = np.array([*self._point[:2], self._manner.carry])
        high = moment.gripper[2] > self._manner.carry - 0.04 or self._age > _PATIENCE
        if high and self._undo and self._script.puts_down:
            self._undo = False
            self.happened.add("undo")
            return target, "put_down"
        return target, "carry" if high else None

    def _carry(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        goal = self._above_goal(moment, self._manner.carry)
        whole = float(np.hypot(*(goal - self._origin)[:2]))
        across = float(np.hypot(*(goal - moment.gripper)[:2]))
        here = max((1.0 - self._script.fraction) * whole, 0.12)  # so far from the goal that the cube misses it
        if self._script.has("drop") and "drop" not in self.happened and across < here:
            self.happened.add("drop")
            return moment.gripper, "drop"
        if across < (1.0 - self._script.fraction) * whole:
            if self._undo:
                self._undo = False
                self.happened.add("undo")
                return goal, "return"
            if self._script.has("stop_short"):
                self.happened.add("stop_short")
                return moment.gripper, "rest"
        return goal, "lower" if across < 0.012 * self._slack() or self._age > 2 * _PATIENCE else None

    def _drop(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        """Lets go without moving, so that the cube falls straight down, and then goes on as if it had it."""
        self._fingers = OPEN
        return moment.gripper, "carry" if self._age >= 3 else None

    def _return(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        target = np.array([*self._origin[:2], self._manner.carry])
        return target, "carry" if np.linalg.norm(target - moment.gripper) < 0.03 or self._age > _PATIENCE else None

    def _put_down(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        target = np.array([*self._point[:2], self._origin[2] + 0.004])
        if abs(moment.gripper[2] - target[2]) < 0.012 or self._age > _PATIENCE:
            return target, "let_go"
        return target, None

    def _let_go(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        self._fingers = OPEN
        if moment.opening > RELEASED or self._age > _PATIENCE:
            return moment.gripper, "rise"
        return moment.gripper, None

    def _rise(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        target = np.array([*moment.gripper[:2], self._origin[2] + self._manner.hover + 0.02])
        return target, "hover" if target[2] - moment.gripper[2] < 0.03 or self._age > _PATIENCE else None

    def _rest_point(self, moment: Moment) -> np.ndarray:
        return self._spot if self._spot is not None else resting_place(self._task, moment)

    def _above_goal(self, moment: Moment, height: float) -> np.ndarray:
        """The gripper's place that brings the cube over the goal."""
        rest = self._rest_point(moment)
        correction = np.zeros(2)
        if moment.holds(self._task.cube):
            correction = (moment.gripper - moment.positions[self._task.cube])[:2]
        return np.array([*(rest[:2] + self._place_offset() + correction), max(height, rest[2] + 0.06)])

    def _place_offset(self) -> np.ndarray:
        return self._manner.place_offset * (0.4 if self._task.family == "stack" else 1.0)

    def _lower(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        clearance = 0.022 if self._task.family == "bowl" and self._spot is None else 0.003
        target = self._above_goal(moment, 0.0)
        target[2] = self._rest_point(moment)[2] + clearance
        if moment.holds(self._task.cube):
            target[2] += moment.gripper[2] - moment.positions[self._task.cube][2]
        off = moment.gripper - target
        across = float(np.hypot(*off[:2]))
        if (across < min(0.01 * self._slack(), 0.018) and off[2] < 0.008 * self._slack()) or self._age > _PATIENCE:
            self._point = target
            return target, "open"
        target[2] += 0.05 * _funnel(across)
        return target, None

    def _open(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        self._fingers = OPEN
        return self._point, "retreat" if moment.opening > RELEASED or self._age > 3 else None

    def _retreat(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        self._fingers = OPEN
        done = placed(self._task, moment)
        over = moment.positions[self._task.cube] if done else self._point  # straight up, fingers clear of the cube
        target = np.array([*over[:2], self._rest_point(moment)[2] + 0.10])
        return target, "rest" if target[2] - moment.gripper[2] < 0.015 or self._age > _PATIENCE else None

    def _rest(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        return moment.gripper, None


def _funnel(across: float) -> float:
    """Share of the height to keep while the hand is `across` metres beside where it goes down: 0 to 1."""
    return min(1.0, max(0.0, (across - 0.015) / 0.03))


class Push:
    """over, down, push, rest: closed fingers come down behind the cube and drive it to the edge."""

    def __init__(
        self,
        task: Task,
        script: Script,
        manner: Manner,
        happened: set[str],
        *,
        lure: str | None = None,
        spot: np.ndarray | None = None,
    ) -> None:
        self.happened = happened
        self._task, self._script, self._manner = task, script, manner
        self._lure = lure
        self._phase, self._age = "over", 0
        self._undo = script.has("undo")
        self._beside = script.has("miss") or script.has("regrasp")
        self._line = 0.0  # x along which a push that misses goes
        self._origin: np.ndarray = np.zeros(3)
        self._away: np.ndarray = np.zeros(3)

    def next(self, moment: Moment) -> tuple[np.ndarray, float]:
        before = self._phase
        if self._phase == "rest" and not self._script.blind and not placed(self._task, moment):
            self._phase = "over"
        target, arrived = getattr(self, f"_{self._phase}")(moment)
        if arrived is not None:
            self._phase = arrived
        self._age = 0 if self._phase != before else self._age + 1
        return target, CLOSE

    def _start(self, moment: Moment, height: float) -> np.ndarray:
        """The place behind the cube (beside that, for a miss) at a height."""
        cube = moment.positions[self._task.cube]
        x = cube[0] + (self._script.side * _BESIDE if self._beside else self._manner.grasp_offset[0])
        return np.array([x, cube[1] - self._task.side * BEHIND, height])

    def _over(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        if self._lure is not None:
            target = moment.positions[self._lure] + [0.0, 0.0, self._manner.hover + 0.02]
            self.happened.add("detour")
            if np.hypot(*(target - moment.gripper)[:2]) < 0.05 or self._age > _PATIENCE:
                self._lure = None
            return target, None
        target = self._start(moment, self._manner.hover)
        across = float(np.hypot(*(target - moment.gripper)[:2]))
        if across > 0.03 and moment.gripper[2] < 0.065:
            return np.array([*moment.gripper[:2], target[2]]), None
        return target, "down" if across < 0.015 else None

    def _down(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        target = self._start(moment, CUBE_HALF)
        if (moment.gripper[2] - target[2] < 0.012 and moment.opening < 1.5 * CLOSED) or self._age > _PATIENCE:
            self._origin, self._line = moment.positions[self._task.cube], target[0]
            return target, "push"
        return target, None

    def _push(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        side, cube = self._task.side, moment.positions[self._task.cube]
        end = side * (PUSH_LINE + 0.012 - CUBE_HALF - 0.018)
        x = self._line if self._beside else cube[0] + 0.8 * (cube[0] - self._line)
        target = np.array([x, end, CUBE_HALF])
        gone = side * (moment.gripper[1] - self._origin[1]) + BEHIND
        share = gone / max(PUSH_LINE - side * self._origin[1] + BEHIND - CUBE_HALF, 0.02)
        if self._beside:
            return self._push_beside(target, share)
        if self._script.has("drop") or self._script.has("stop_short"):
            if share > 0.7 * self._script.fraction:
                self.happened.add("stop_short")
                return moment.gripper, "rest"
        elif self._undo and share > self._script.fraction:
            self._undo = False
            self.happened.add("undo")
            self._away = moment.gripper - [0.0, side * 0.06, 0.0]
            return self._away, "back"
        if not self._script.blind and self._lost(moment):
            return target, "over"
        return target, "rest" if placed(self._task, moment) or self._age > 3 * _PATIENCE else None

    def _push_beside(self, target: np.ndarray, share: float) -> tuple[np.ndarray, str | None]:
        if self._script.has("miss"):
            self.happened.add("miss")
            return target, "rest" if share > 0.95 or self._age > 2 * _PATIENCE else None
        self.happened.add("regrasp")
        if share > self._script.fraction or self._age > _PATIENCE // 2:
            self._beside = False
            return target, "over"
        return target, None

    def _lost(self, moment: Moment) -> bool:
        cube = moment.positions[self._task.cube]
        ahead = self._task.side * (cube[1] - moment.gripper[1])
        return bool(ahead < 0.0 or abs(cube[0] - moment.gripper[0]) > 0.03)

    def _back(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        """Away from the cube and up, as if to begin again."""
        target = np.array([*self._away[:2], self._manner.hover + 0.05])
        return target, "over" if np.linalg.norm(target - moment.gripper) < 0.02 or self._age > _PATIENCE else None

    def _rest(self, moment: Moment) -> tuple[np.ndarray, str | None]:
        return moment.gripper, None
