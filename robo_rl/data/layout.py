"""Where things are in a LeRobotDataset v3 folder, and what our columns are called."""

from __future__ import annotations

import hashlib
from pathlib import Path

VERSION = "v3.0"
INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FILES_PER_CHUNK = 1000  # lerobot's chunks_size
FACTS = "meta/robo_episodes.parquet"  # ours: outcome, seed, index, policy of every episode
CACHE = ".cache/robo_rl"  # ours: decoded frames

IMAGES = "observation.images."
FINAL, CONTROLLER, PROGRESS = "robo.final", "robo.controller", "robo.true_progress"


def camera_name(key: str) -> str:
    """`observation.images.front` -> `front`; `observation.image` of older recordings -> `image`."""
    return key.removeprefix(IMAGES).removeprefix("observation.")


def fingerprint(root: Path) -> str:
    """Hash of everything that was recorded; the same wherever the folder lies."""
    digest = hashlib.blake2b(digest_size=16)
    patterns = ("data/**/*.parquet", "meta/**/*.parquet", "images/**/*.png", "videos/**/*.mp4")
    named = sorted((path.relative_to(root).as_posix(), path) for pattern in patterns for path in root.glob(pattern))
    for name, path in named:
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
