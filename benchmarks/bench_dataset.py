"""Writing and reading episodes: robo_rl.data beside lerobot's own writer and reader.

    python benchmarks/bench_dataset.py [--episodes 20] [--steps 50] [--size 64]

Two cameras with moving squares over noise-free slopes; one core. lerobot writes images (its faster mode for small
frames) and video. CPU and wall time a frame (both cameras together), bytes a frame, and the loss of quality.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", HF_HUB_OFFLINE="1", SVT_LOG="0")

import numpy as np

from robo_rl.data import read_episodes, write_episodes
from robo_rl.types import Controller, Outcome, Trajectory

CAMERAS = ("front", "wrist")


def made_up(number: int, steps: int, size: int) -> Trajectory:
    """An episode of a few coloured squares on a table that tilts slowly."""
    rng = np.random.default_rng(number)
    rows, columns = np.mgrid[0:size, 0:size]
    images = {}
    for camera in CAMERAS:
        frames = np.empty((steps + 1, size, size, 3), np.uint8)
        places, speeds = rng.uniform(0, size * 0.8, (4, 2)), rng.normal(0, size / 60, (4, 2))
        colours = rng.integers(30, 255, (4, 3))
        for frame in range(steps + 1):
            frames[frame] = np.stack([100 + rows // 2, 90 + columns // 3, 80 + (rows + frame) // 4], -1)
            for place, speed, colour in zip(places, speeds, colours, strict=True):
                top, left = ((place + speed * frame) % (size * 0.8)).astype(int)
                frames[frame, top : top + size // 6, left : left + size // 6] = colour
        images[camera] = frames
    return Trajectory(
        episode_id=f"episode-{number}",
        instruction="put the red cube into the bowl",
        images=images,
        state=rng.normal(size=(steps + 1, 11)).astype(np.float32),
        actions=rng.uniform(-1, 1, (steps, 4)).astype(np.float32),
        controller=np.full(steps, Controller.SCRIPT, np.int8),
        outcome=Outcome.SUCCESS,
        fps=10.0,
    )


def write_with_lerobot(root: Path, episodes: list[Trajectory], *, video: bool) -> None:
    """The same rows and cameras, by lerobot's documented calls."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    size = episodes[0].images["front"].shape[1:]
    kind = "video" if video else "image"
    features: dict[str, Any] = {
        f"observation.images.{c}": {"dtype": kind, "shape": size, "names": ["height", "width", "channels"]}
        for c in CAMERAS
    }
    features["observation.state"] = {"dtype": "float32", "shape": (11,), "names": None}
    features["action"] = {"dtype": "float32", "shape": (4,), "names": None}
    data = LeRobotDataset.create("local/bench", fps=10, features=features, root=root, use_videos=video)
    for episode in episodes:
        for frame in range(len(episode) + 1):
            data.add_frame(
                {f"observation.images.{c}": episode.images[c][frame] for c in CAMERAS}
                | {
                    "observation.state": episode.state[frame],
                    "action": episode.actions[min(frame, len(episode) - 1)],
                    "task": episode.instruction,
                }
            )
        data.save_episode()
    data.finalize()


def measured(work: Callable[[], object], frames: int) -> dict[str, float]:
    """CPU (all threads and child processes that ended) and wall milliseconds a frame."""
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    work()
    return {
        "cpu_ms": (sum(os.times()[:4]) - cpu) / frames * 1e3,
        "wall_ms": (time.perf_counter() - wall) / frames * 1e3,
    }


def size_of(root: Path) -> int:
    return sum(p.stat().st_size for p in root.rglob("*") if p.is_file() and ".cache" not in p.parts)


def loss(root: Path, episodes: list[Trajectory]) -> float:
    """Peak signal to noise ratio of what is read back, dB."""
    errors = [
        np.mean((after.images[c].astype(np.float64) - before.images[c]) ** 2)
        for before, after in zip(episodes, read_episodes(root), strict=False)
        for c in CAMERAS
    ]
    return float(10 * np.log10(255**2 / max(float(np.mean(errors)), 1e-9)))


def read_with_lerobot(root: Path, count: int) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = LeRobotDataset("local/bench", root=root, video_backend="pyav")
    for index in np.random.default_rng(0).integers(0, len(data), count):
        data[int(index)]


def read_with_us(root: Path, count: int) -> None:
    episodes = read_episodes(root)
    for index in np.random.default_rng(0).integers(0, episodes.num_frames, count):
        for camera in CAMERAS:
            episodes.gather(camera, np.array([index]))


def compare(folder: Path, episodes: list[Trajectory]) -> dict[str, dict[str, float]]:
    """Each way of writing, then random reading of single frames with both cameras."""
    frames = sum(len(e) + 1 for e in episodes)
    write_episodes(folder / "warm", episodes[:1])  # imports and first allocations are nobody's cost
    write_with_lerobot(folder / "warm-lerobot", episodes[:1], video=True)
    ways: dict[str, Callable[[Path], None]] = {
        "robo_rl": lambda root: write_episodes(root, episodes),
        "lerobot images": lambda root: write_with_lerobot(root, episodes, video=False),
        "lerobot video": lambda root: write_with_lerobot(root, episodes, video=True),
    }
    rows: dict[str, dict[str, float]] = {}
    for name, write in ways.items():
        root = folder / name.replace(" ", "-")
        rows[f"write: {name}"] = measured(lambda write=write, root=root: write(root), frames)  # type: ignore[misc]
        rows[f"write: {name}"] |= {"bytes": size_of(root) / frames, "psnr_db": loss(root, episodes)}
    ours = folder / "robo_rl"
    shutil.rmtree(ours / ".cache")
    rows["first reading: robo_rl"] = measured(lambda: read_episodes(ours), frames)
    rows["random frame: robo_rl"] = measured(lambda: read_with_us(ours, 2000), 2000)
    rows["random frame: lerobot, our video"] = measured(lambda: read_with_lerobot(ours, 200), 200)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.getLogger("lerobot.utils.import_utils").setLevel(logging.CRITICAL)
    episodes = [made_up(number, options.steps, options.size) for number in range(options.episodes)]
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(Path(folder), episodes)
    for name, row in rows.items():
        print(f"{name:34s}" + "".join(f"  {key} {value:9.3f}" for key, value in row.items()))
    for other in ("images", "video"):
        ratio = rows[f"write: lerobot {other}"]["cpu_ms"] / rows["write: robo_rl"]["cpu_ms"]
        print(f"writing: {ratio:.1f} times less CPU time than lerobot's {other}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
