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
FACTS = "meta/robo_episodes.parquet"  # ours: outcome, seed, index, policy of every episode
CACHE = ".cache/robo_rl"  # ours: decoded frames

IMAGES = "observation.images."
FINAL, CONTROLLER, PROGRESS = "robo.final", "robo.controller", "robo.true_progress"


def fingerprint(root: Path) -> str:
    """Hash of everything that was recorded; the same wherever the folder lies."""
    digest = hashlib.blake2b(digest_size=16)
    files = sorted([*root.glob("data/**/*.parquet"), *root.glob("videos/**/*.mp4"), *root.glob("meta/**/*.parquet")])
    for path in files:
        digest.update(path.relative_to(root).as_posix().encode())
        with path.open("rb") as handle:
            for block in iter(lambda: handle.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()
