"""One causal pass over an episode, beside lerobot's Robometer labelling (four frames a prompt, a prompt a frame).

    python benchmarks/bench_one_pass.py [--device cuda] [--sizes 256x4,512x6] [--episodes 2] [--frames 60]

The same random Qwen3-VL backbones, the same dataset on disk, reading and decoding included. The outputs are not alike:
the question is what a judge costs that is fitted to one pass. Three ways of it: everything seen (no window),
a window of 16 frames, and a stream that takes one frame at a time.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import warnings
from pathlib import Path

import bench_lerobot_judges as today
import numpy as np
import tiny_models
import torch
import transformers
from lerobot.configs.rewards import RewardModelConfig
from lerobot.rewards.robometer import RobometerRewardModel
from lerobot.rewards.robometer.processor_robometer import PROGRESS_PROMPT

from reward_models.judge import CausalConfig, CausalJudge
from reward_models.lerobot_robometer import RobometerJudge, RobometerJudgeConfig
from robo_rl.data import read_episodes, write_episodes


def one_pass(vlm: Path, device: str, window: int) -> CausalJudge:
    backbone = {"type": "vlm", "path": str(vlm), "device": device, "cameras": ["front"], "language": "none"}
    return CausalJudge(CausalConfig(backbone=backbone | {"window": window}, objectives={"progress": {}}))


def streamed(judge: CausalJudge, root: Path) -> np.ndarray:
    """Every frame appended alone, as beside a running robot."""
    values = []
    for episode in read_episodes(root):
        stream = judge.stream(episode.instruction)
        pixels = episode.images["front"]
        values += [stream.append({"front": pixels[t]})[0]["progress"][0] for t in range(len(pixels))]
    return np.array(values, np.float32)


def compare(options: argparse.Namespace, folder: Path, width: int, layers: int) -> None:
    """lerobot's labelling and ours, on one backbone."""
    device = options.device
    vlm = today.build_vlm(folder / f"vlm-{width}", width, layers)
    checkpoint = today.build_robometer(folder / f"robometer-{width}", vlm)
    config = RewardModelConfig.from_pretrained(checkpoint)
    config.pretrained_path, config.device = str(checkpoint), device
    theirs = RobometerRewardModel.from_pretrained(str(checkpoint), config=config)
    encoder = RobometerJudge(RobometerJudgeConfig(path=str(checkpoint), device=device)).encoder
    whole, near = one_pass(vlm, device, 0), one_pass(vlm, device, 16)
    for name, frames, count in (("warm", 4, 1), ("data", options.frames, options.episodes)):
        root = folder / f"{name}-{width}"
        write_episodes(root, [today.video(n, frames, options.pixels) for n in range(count)])
        lerobot = today.robometer_of_lerobot(checkpoint, root, folder / "out.parquet", device, theirs, encoder)
        ours = {
            "one pass, all frames": today.measured(
                today.Clock(device),
                lambda root=root: today.scored(whole, root, today.Clock(device)),
                whole.network.backbone.model,
            ),
            "one pass, window 16": today.measured(
                today.Clock(device),
                lambda root=root: today.scored(near, root, today.Clock(device)),
                near.network.backbone.model,
            ),
            "stream, window 16": today.measured(
                today.Clock(device), lambda root=root: streamed(near, root), near.network.backbone.model
            ),
        }
    total = len(lerobot.values)
    print(
        f"\n{options.episodes} episodes of {options.frames} frames, {options.pixels} x {options.pixels}, "
        f"language model {width} x {layers}, {device}"
    )
    print(f"lerobot, Robometer     {total / lerobot.wall:8.1f} frames/s")
    for name, run in ours.items():
        print(f"{name:22} {total / run.wall:8.1f} frames/s   ratio {lerobot.wall / run.wall:6.1f}")
    difference = np.abs(ours["one pass, window 16"].values - ours["stream, window 16"].values).max()
    print(f"largest difference between the pass and the stream: {difference:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default="256x4,512x6", help="width x layers of the language models")
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--pixels", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", message="`max_length` is ignored")
    transformers.utils.logging.disable_progress_bar()
    tiny_models.WORDS += [PROGRESS_PROMPT, *today.TASKS]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes.split(","):
            compare(options, Path(folder), *map(int, size.split("x")))
    print(f"\n{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
