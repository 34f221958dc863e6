"""Where objects stand at the start: reachable, apart, and with room for the fingers."""

from __future__ import annotations

import numpy as np

from sims.tabletop.config import TabletopConfig
from sims.tabletop.scene import BOWL_RADIUS, CUBE_HALF
from sims.tabletop.tasks import BEHIND, PUSH_LINE, Task

_AREA_X, _AREA_Y = (-0.13, 0.13), (-0.17, 0.17)
_BOWL_X, _BOWL_Y = (-0.10, 0.10), (-0.15, 0.15)
_YAW = 0.25  # rad: the fingers do not turn, so cubes are nearly square to them
_MIN_PUSH = 0.10  # m
_APART = {  # least distance between centres, m
    frozenset(("cube",)): 0.095,
    frozenset(("pad",)): 0.11,
    frozenset(("cube", "pad")): 0.085,
    frozenset(("cube", "bowl")): 0.132,
    frozenset(("pad", "bowl")): 0.125,
}


def draw_layout(config: TabletopConfig, task: Task, rng: np.random.Generator) -> dict[str, tuple[float, float, float]]:
    """Object -> x, y, yaw. Draws until everything is apart and, for a push, the cube's way is free."""
    names = [*config.bowls, *config.pads, *config.cubes]
    while True:
        places = _draw_apart(names, rng, config.spread)
        if places is not None and (task.family != "push" or _way_is_free(task, places)):
            break
    yaw = rng.uniform(-_YAW, _YAW, len(names))
    return {name: (*places[name], float(turn)) for name, turn in zip(names, yaw, strict=True)}


def _draw_apart(names: list[str], rng: np.random.Generator, spread: float) -> dict[str, tuple[float, float]] | None:
    """One try: each object where the earlier ones leave room, or None when it finds no room."""
    places: dict[str, tuple[float, float]] = {}
    for name in names:
        xs, ys = (_BOWL_X, _BOWL_Y) if name == "bowl" else (_AREA_X, _AREA_Y)
        for _ in range(30):
            x, y = spread * float(rng.uniform(*xs)), spread * float(rng.uniform(*ys))
            if all(np.hypot(x - u, y - v) > _APART[_pair(name, other)] for other, (u, v) in places.items()):
                places[name] = (x, y)
                break
        else:
            return None
    return places


def _pair(one: str, other: str) -> frozenset[str]:
    return frozenset((one.split()[-1], other.split()[-1]))


def _way_is_free(task: Task, places: dict[str, tuple[float, float]]) -> bool:
    """No solid object between the cube and the edge, none where the hand comes down, and some way to go."""
    x, y = places[task.cube]
    if PUSH_LINE - task.side * y < _MIN_PUSH:
        return False
    for name, (u, v) in places.items():
        if name == task.cube or name.endswith("pad"):
            continue
        radius = BOWL_RADIUS if name == "bowl" else 1.42 * CUBE_HALF
        ahead = task.side * (v - y)
        if ahead > -(BEHIND + radius + 0.03) and abs(u - x) < radius + CUBE_HALF + 0.02:
            return False
    return True
