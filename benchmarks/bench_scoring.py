"""Memory and speed of scoring a dataset as it grows: `robo-rl reward score`, and the way of lerobot's scripts.

    python benchmarks/bench_scoring.py [--frames 50] [--size 96] [--repeat 3]

lerobot 0.6.1 (`lerobot/rewards/robometer/compute_rabc_weights.py`) reads an episode frame by frame, stacks it as
float32, asks its reward model for 32 frames at a time, collects numbers in lists and writes once, at the end. Here the
same loop asks our compact judge for the whole episode, so that only the way of reading, holding and writing differs.
Each run is a process of its own that has not seen the dataset before, and decodes it; a second run of ours would not
have to. Both must give the same progress. Speed counts processor time without imports.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from robo_rl.types import Outcome, Trajectory

GROWTH = ((8, 1), (80, 1), (1, 8), (1, 80))  # (episodes, times as long): ten times as many, ten times as long


def videos(count: int, frames: int, size: int) -> Iterator[Trajectory]:
    """A square wanders over a gradient."""
    ramp = np.broadcast_to(np.linspace(30, 120, size, dtype=np.uint8)[:, None, None], (size, size, 3))
    for number in range(count):
        pixels = np.broadcast_to(ramp, (frames, size, size, 3)).copy()
        for frame in range(frames):
            place = round((size - 16) * ((frame / 37 + number / 7) % 1))
            pixels[frame, place : place + 16, size // 3 : size // 3 + 16, number % 3] = 250
        yield Trajectory(
            episode_id=f"bench-{number}",
            instruction="put the cube in the bowl",
            images={"front": pixels},
            state=np.zeros((frames, 2), np.float32),
            actions=np.zeros((frames - 1, 2), np.float32),
            controller=np.zeros(frames - 1, np.int8),
            outcome=Outcome.UNKNOWN,
            fps=10.0,
        )


def ours(root: Path, judge: Path, out: Path) -> None:
    """What `robo-rl reward score` does."""
    from reward_models.compact import CompactJudge
    from reward_models.scoring import Work, score_dataset
    from robo_rl.data import read_episodes

    score_dataset(CompactJudge.load(judge), Work(episodes=read_episodes(root), out=out), say=lambda text: None)


def lerobots(root: Path, judge_folder: Path, out: Path) -> None:
    """The loop of lerobot's script, with our judge in place of its model."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from reward_models.compact import CompactJudge

    judge, dataset = CompactJudge.load(judge_folder), LeRobotDataset("local/bench", root=root, video_backend="pyav")
    columns: dict[str, list] = {name: [] for name in ("index", "episode_index", "frame_index", "progress_sparse")}
    for number in range(dataset.num_episodes):
        facts = dataset.meta.episodes[number]
        start, end = int(facts["dataset_from_index"]), int(facts["dataset_to_index"])
        stacked = torch.stack([dataset[start + n]["observation.images.front"] for n in range(end - start)])
        images = (stacked.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).numpy()
        episode = next(videos(1, 2, 8))
        count = len(images)
        shown = Trajectory(
            episode_id=str(number),
            instruction=dataset[start]["task"],
            images={"front": images},
            state=np.zeros((count, 2), np.float32),
            actions=np.zeros((count - 1, 2), np.float32),
            controller=np.zeros(count - 1, np.int8),
            outcome=episode.outcome,
            fps=episode.fps,
        )
        progress = judge.score([shown])[0].progress
        for local in range(count):
            columns["index"].append(start + local)
            columns["episode_index"].append(number)
            columns["frame_index"].append(local)
            columns["progress_sparse"].append(float(progress[local]))
    pq.write_table(pa.table(columns), out)


def child(way: str, root: Path, judge: Path, out: Path) -> None:
    """One run in this process; prints seconds and peak memory."""
    import torch

    from reward_models.score_summary import peak_memory

    torch.set_num_threads(1)
    work = {"ours": ours, "lerobot": lerobots}[way]
    import reward_models.compact
    import reward_models.scoring  # noqa: F401  importing is not scoring

    if way == "lerobot":
        import lerobot.datasets.lerobot_dataset  # noqa: F401
    began, busy = time.perf_counter(), time.process_time()
    before = peak_memory()
    work(root, judge, out)
    spent = (time.perf_counter() - began, time.process_time() - busy)
    print(json.dumps({"seconds": spent[0], "cpu": spent[1], "peak": peak_memory(), "imports": before}))


def measure(way: str, root: Path, judge: Path, out: Path) -> dict[str, float]:
    out.unlink(missing_ok=True)
    shutil.rmtree(root / ".cache", ignore_errors=True)
    given = [sys.executable, __file__, "--child", way, str(root), str(judge), str(out)]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    import pyarrow.parquet as pq

    from reward_models.compact import CompactJudge, CompactJudgeConfig
    from robo_rl.data import write_episodes

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--frames", type=int, default=50, help="of the shortest episodes")
    parser.add_argument("--size", type=int, default=96, help="pixels, height and width")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, 1 thread; frames of {options.size} x {options.size} pixels, one camera")
    print("                                 peak memory, MB           frames/s (processor)")
    print("episodes x frames              ours  lerobot's way     ours  lerobot's way   ratio (spread)")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        CompactJudge(CompactJudgeConfig(cameras=("front",)), seed=0).save(folder / "judge")
        for episodes, longer in GROWTH:
            root, frames = folder / f"data-{episodes}-{longer}", options.frames * longer
            write_episodes(root, videos(episodes, frames, options.size))
            runs: dict[str, list[dict[str, float]]] = {"ours": [], "lerobot": []}
            for _ in range(options.repeat):
                for way, found in runs.items():
                    found.append(measure(way, root, folder / "judge", folder / f"{way}.parquet"))
            one, other = (pq.read_table(folder / f"{way}.parquet")["progress_sparse"].to_numpy() for way in runs)
            if np.abs(one - other).max() > 1e-5:
                raise SystemExit(f"the scores differ by {np.abs(one - other).max()}")
            total = episodes * frames
            peak = {way: statistics.median(run["peak"] for run in found) / 1e6 for way, found in runs.items()}
            rate = {way: [total / run["cpu"] for run in found] for way, found in runs.items()}
            ratios = [a / b for a, b in zip(rate["ours"], rate["lerobot"], strict=True)]
            print(
                f"{episodes:4} x {frames:<20} {peak['ours']:8.0f} {peak['lerobot']:14.0f} "
                f"{statistics.median(rate['ours']):8.0f} {statistics.median(rate['lerobot']):14.0f} "
                f"{statistics.median(ratios):7.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], *map(Path, sys.argv[3:6]))
    else:
        main()
