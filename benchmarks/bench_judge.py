"""How long the compact judge takes: fitting, scoring, one frame of a stream. One thread, synthetic videos.

    python benchmarks/bench_judge.py [--episodes 300] [--frames 40] [--steps 300]

Times do not depend on what the videos show, so noise with a moving square will do.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from reward_models.compact import CompactJudge
from reward_models.fit import FitConfig, fit
from robo_rl.nets import ConvTrunk
from robo_rl.types import Outcome, Trajectory

CAMERAS = ("front", "wrist")
COLOURS = ("red", "green", "blue")


def video(number: int, frames: int) -> Trajectory:
    """A square wanders over noise; every second episode is a success."""
    rng = np.random.default_rng(number)
    images = {}
    for camera in CAMERAS:
        pixels = np.broadcast_to(rng.integers(0, 60, (64, 64, 3), np.uint8), (frames, 64, 64, 3)).copy()
        for frame in range(frames):
            place = 4 + round(40 * frame / frames)
            pixels[frame, place : place + 10, place : place + 10, number % 3] = 250
        images[camera] = pixels
    return Trajectory(
        episode_id=f"bench-{number}",
        instruction=f"put the {COLOURS[number % 3]} cube in the bowl",
        images=images,
        state=np.zeros((frames, 4), np.float32),
        actions=np.zeros((frames - 1, 4), np.float32),
        controller=np.zeros(frames - 1, np.int8),
        outcome=Outcome.SUCCESS if number % 2 else Outcome.TIMEOUT,
        fps=10.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--steps", type=int, default=FitConfig().steps)
    options = parser.parse_args()
    torch.set_num_threads(1)
    episodes = [video(number, options.frames) for number in range(options.episodes)]
    total = options.episodes * options.frames

    judge = CompactJudge(seed=0)
    judge.init_trunk({camera: ConvTrunk(judge.config.channels).state_dict() for camera in CAMERAS})
    began, busy = time.perf_counter(), time.process_time()
    result = fit(judge, episodes, FitConfig(steps=options.steps), seed=0)
    fitting, fitting_cpu = time.perf_counter() - began, time.process_time() - busy
    began, busy = time.perf_counter(), time.process_time()
    judge.score(episodes)
    scoring, scoring_cpu = time.perf_counter() - began, time.process_time() - busy
    stream = judge.stream(episodes[0].instruction)
    frame = {camera: pixels[0] for camera, pixels in episodes[0].images.items()}
    began = time.perf_counter()
    for _ in range(100):
        stream.append(frame)
    streaming = (time.perf_counter() - began) / 100

    size = sum(p.numel() for p in judge.network.parameters())
    print(
        f"{size / 1e6:.2f} M parameters; {options.episodes} episodes, {total} frames, {len(CAMERAS)} cameras, 1 thread"
    )
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in result.seconds.items())
    print("         wall      processor")
    print(f"fit      {fitting:7.1f} s {fitting_cpu:7.1f} s   ({options.steps} steps; {parts})")
    print(f"score    {scoring:7.1f} s {scoring_cpu:7.1f} s   ({total / scoring:.0f} frames/s)")
    print(f"stream   {1e3 * streaming:7.2f} ms a frame")


if __name__ == "__main__":
    main()
