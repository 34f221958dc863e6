"""Small made-up episodes and datasets for the tests of robo_rl.data."""

import numpy as np

from robo_rl.types import Controller, Outcome, Trajectory

SIZE = 32


def picture(number: int, frame: int, camera: int) -> np.ndarray:
    """A square that moves over a slope: every frame of every episode differs from every other."""
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    image = np.stack([4 * rows + 60, 4 * columns + 60, np.full_like(rows, 40 + 60 * camera)], -1).astype(np.uint8)
    left, top = (2 * frame + 7 * number) % (SIZE - 8), (8 + number) % (SIZE - 8)
    image[top : top + 8, left : left + 8] = (250, 20 * number % 256, 200)
    return image


def episode(number: int, steps: int = 6, cameras: tuple[str, ...] = ("front", "wrist"), **changes) -> Trajectory:
    rng = np.random.default_rng(number)
    values = {
        "episode_id": f"e{number}",
        "instruction": ("push the cube", "lift the cube")[number % 2],
        "images": {
            name: np.stack([picture(number, frame, place) for frame in range(steps + 1)])
            for place, name in enumerate(cameras)
        },
        "state": rng.normal(size=(steps + 1, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
        "controller": np.full(steps, Controller.SCRIPT, np.int8),
        "outcome": Outcome.SUCCESS,
        "fps": 10.0,
        "task": ("push", "lift")[number % 2],
        "policy_id": "expert",
        "seed": 3,
        "index": number,
    }
    return Trajectory(**(values | changes))


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2)))


def nearest(image: np.ndarray, candidates: list[np.ndarray]) -> int:
    return int(np.argmin([np.abs(image.astype(float) - other).mean() for other in candidates]))


def sample_episodes() -> list[Trajectory]:
    """Four episodes: success with reward and progress, failure, a timeout with a correction, an unknown end."""
    mixed = np.array([0, 0, 1, 1, 3, 0, 0, 0], np.int8)
    return [
        episode(0, 6, reward=np.arange(6, dtype=np.float32), true_progress=np.linspace(0, 1, 7, dtype=np.float32)),
        episode(1, 9, outcome=Outcome.FAILURE, note="dropped it", policy_id="model@3"),
        episode(2, 8, outcome=Outcome.TIMEOUT, controller=mixed),
        episode(3, 5, outcome=Outcome.UNKNOWN, instruction="tape ünïcode »x«"),
    ]
