"""A small sound dataset whose numbers mean something: a hand that moves in a plane, a gripper that opens and shuts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robo_rl.types import Controller, Outcome, Trajectory

STEPS, EPISODES, SIZE, FPS = 30, 10, 32, 10.0
STEP = 0.1  # metres that an action of 1 moves the hand


def walk(number: int, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Actions (T, 3): dx, dy, gripper; and states (T + 1, 3): x, y, opening, which an action changes at once."""
    rng = np.random.default_rng(number)
    actions = np.empty((steps, 3), np.float32)
    actions[:, :2] = rng.uniform(-1, 1, (steps, 2))
    closed = (np.arange(steps) // 7 + number) % 2
    actions[:, 2] = np.where(closed, -1.0, 1.0)
    place = np.concatenate([np.zeros((1, 2)), np.cumsum(STEP * actions[:, :2], axis=0)])
    opening = np.concatenate([[0.02], np.where(closed, 0.0, 0.04)])
    return actions, np.column_stack([place, opening]).astype(np.float32)


def film(number: int, frames: int, camera: int) -> np.ndarray:
    """A bright square that jumps over a slope of colour."""
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    slope = np.stack([4 * rows + 60, 4 * columns + 60, np.full_like(rows, 40 + 90 * camera)], -1).astype(np.uint8)
    images = np.repeat(slope[None], frames, axis=0)
    for frame in range(frames):
        left, top = (3 * frame + 7 * number) % (SIZE - 8), (5 * frame + 8 + number) % (SIZE - 8)
        images[frame, top : top + 8, left : left + 8] = (250, 20 * number % 256, 200)
    return images


def sound(number: int, steps: int = STEPS, *, pictures: bool = False, **changes: Any) -> Trajectory:
    actions, state = walk(number, steps)
    cameras = {"front": film(number, steps + 1, 0), "wrist": film(number, steps + 1, 1)} if pictures else {}
    values: dict[str, Any] = {
        "episode_id": f"e{number}",
        "instruction": ("push the cube", "lift the cube")[number % 2],
        "images": cameras,
        "state": state,
        "actions": actions,
        "controller": np.full(steps, Controller.POLICY, np.int8),
        "outcome": Outcome.SUCCESS if number % 4 < 2 else Outcome.FAILURE,
        "fps": FPS,
        "task": ("push", "lift")[number % 2],
        "seed": 3,
        "index": number,
    }
    return Trajectory(**(values | changes))


def dataset(*, pictures: bool = False) -> list[Trajectory]:
    return [sound(number, pictures=pictures) for number in range(EPISODES)]


def changed(episodes: list[Trajectory], number: int, **changes: Any) -> list[Trajectory]:
    """The same, but for one episode."""
    return [replace(one, **changes) if place == number else one for place, one in enumerate(episodes)]


# --- on disk ----------------------------------------------------------------------------------------------------


def edit_json(root: Path, name: str, change: Callable[[dict], object]) -> None:
    path = root / name
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def edit_column(path: Path, key: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the plain column `key` of a parquet file."""
    table = pq.read_table(path)
    values = np.array(table[key].to_pylist())
    column = pa.array(change(values).tolist(), table.schema.field(key).type)
    pq.write_table(table.set_column(table.column_names.index(key), key, column), path)


def data_file(root: Path) -> Path:
    (path,) = (root / "data").rglob("*.parquet")
    return path


def episodes_file(root: Path) -> Path:
    (path,) = (root / "meta" / "episodes").rglob("*.parquet")
    return path
