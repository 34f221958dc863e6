"""Robometer and TOPReward over a dataset: lerobot's own labelling functions, and robo_rl's judges, in one run.

    python benchmarks/bench_lerobot_judges.py [--device cuda] [--sizes 256x4,512x6] [--episodes 2] [--frames 60]

Both sides start from a LeRobotDataset on disk and end with a progress of every frame: reading and decoding, preparing
pictures and prompts, vision tower, language model. The models are random, with Qwen3-VL's architecture, its published
budgets of pixels, and a tokenizer that needs about a token a word; they are loaded before the clock starts.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import pyarrow.parquet as pq
import tiny_models
import torch
import transformers
from lerobot.configs.rewards import RewardModelConfig
from lerobot.datasets import LeRobotDataset
from lerobot.rewards.robometer import RobometerConfig, RobometerRewardModel
from lerobot.rewards.robometer import compute_rabc_weights as robometer_script
from lerobot.rewards.robometer.processor_robometer import PROGRESS_PROMPT
from lerobot.rewards.topreward import TOPRewardConfig, TOPRewardModel
from lerobot.rewards.topreward import compute_rabc_weights as topreward_script

from reward_models import robometer_frames, robometer_pass, topreward, topreward_pass
from reward_models.lerobot_robometer import RobometerJudge, RobometerJudgeConfig
from reward_models.topreward import TOPRewardJudge, TOPRewardJudgeConfig
from robo_rl.data import read_episodes, write_episodes
from robo_rl.types import Outcome, Trajectory

PARTS = ("decode", "prepare", "vision", "language")
KEY = "observation.images.front"
TASKS = ("pick up the blue cube and place it in the bowl", "put the red cube on the green pad")


@dataclass
class Clock:
    """Seconds by part of the work; with a GPU, each part waits until it has finished."""

    device: str
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = self.now()
        yield
        self.seconds[name] += self.now() - began

    def now(self) -> float:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return run


@dataclass
class Run:
    """One side's result."""

    wall: float
    busy: float  # processor time
    parts: dict[str, float]
    values: np.ndarray  # every frame of the dataset in order


def measured(clock: Clock, work: Callable[[], np.ndarray], model: Any) -> Run:
    """Run it with the model's two halves on the clock. `model` is a Qwen3VLModel."""
    with (
        patch.object(model.visual, "forward", clock.timed("vision", model.visual.forward)),
        patch.object(model.language_model, "forward", clock.timed("language", model.language_model.forward)),
    ):
        began, busy = clock.now(), time.process_time()
        values = work()
        return Run(clock.now() - began, time.process_time() - busy, clock.seconds, values)


class TimedDataset:
    """lerobot's dataset, with its reading on the clock."""

    def __init__(self, root: Path, clock: Clock) -> None:
        with clock.part("decode"):
            self.inner = LeRobotDataset("local/bench", root=root, video_backend="pyav")
        self.clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __getitem__(self, index: int) -> Any:
        with self.clock.part("decode"):
            return self.inner[index]


def written(path: str | Path) -> np.ndarray:
    return np.asarray(pq.read_table(path)["progress_sparse"], np.float32)


# --- Robometer ----------------------------------------------------------------------------------------


def robometer_of_lerobot(checkpoint: Path, root: Path, out: Path, device: str, model: Any, encoder: Any) -> Run:
    """`compute_robometer_progress`, with what it would fetch from the hub already at hand."""
    clock = Clock(device)
    with (
        patch.object(robometer_script, "LeRobotDataset", lambda *_, **__: TimedDataset(root, clock)),
        patch.object(robometer_script, "RobometerConfig", lambda **_: model.config),
        patch.object(robometer_script.RobometerRewardModel, "from_pretrained", lambda *_, **__: model),
        patch.object(robometer_script, "RobometerEncoderProcessorStep", lambda **_: clock.timed("prepare", encoder)),
    ):
        return measured(
            clock,
            lambda: written(
                robometer_script.compute_robometer_progress("local/bench", str(checkpoint), str(out), device)
            ),
            model.model.model,
        )


def robometer_of_ours(judge: RobometerJudge, root: Path, device: str) -> Run:
    clock = Clock(device)
    with (
        patch.object(robometer_frames, "prepare", clock.timed("prepare", robometer_frames.prepare)),
        patch.object(
            robometer_pass.RobometerPass,
            "_make_prompt",
            clock.timed("prepare", robometer_pass.RobometerPass._make_prompt).__get__(judge.passes),
        ),
    ):
        return measured(clock, lambda: scored(judge, root, clock), judge.passes.model)


def scored(judge: Any, root: Path, clock: Clock) -> np.ndarray:
    with clock.part("decode"):
        episodes = read_episodes(root)
    return np.concatenate([signal.progress for signal in judge.score(episodes)])


# --- TOPReward ----------------------------------------------------------------------------------------


def topreward_of_lerobot(root: Path, out: Path, device: str, model: Any) -> Run:
    """`compute_topreward_progress`, with the model already loaded."""
    clock = Clock(device)
    made = topreward_script.TOPRewardEncoderProcessorStep
    with (
        patch.object(topreward_script, "LeRobotDataset", lambda *_, **__: TimedDataset(root, clock)),
        patch.object(topreward_script, "TOPRewardConfig", lambda **_: model.config),
        patch.object(topreward_script, "TOPRewardModel", lambda *_: model),
        patch.object(topreward_script, "TOPRewardEncoderProcessorStep", lambda **k: clock.timed("prepare", made(**k))),
    ):
        return measured(
            clock,
            lambda: written(
                topreward_script.compute_topreward_progress("local/bench", output_path=str(out), device=device)
            ),
            model.model.model,
        )


def topreward_of_ours(judge: TOPRewardJudge, root: Path, device: str) -> Run:
    clock = Clock(device)
    with (
        patch.object(topreward_pass, "resize", clock.timed("prepare", topreward_pass.resize)),
        patch.object(topreward_pass, "patches", clock.timed("prepare", topreward_pass.patches)),
        patch.object(topreward, "read_text", clock.timed("prepare", topreward.read_text)),
    ):
        return measured(clock, lambda: scored(judge, root, clock), judge.model.model)


# --- models and data ----------------------------------------------------------------------------------


def build_vlm(folder: Path, width: int, layers: int) -> Path:
    """A random Qwen3-VL: `width` and `layers` of the language model, half of that in the vision tower."""
    base = tiny_models.tiny("qwen3_vl", folder.parent / "tiny")
    config = transformers.AutoConfig.from_pretrained(base)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = width, 3 * width, layers
    text.head_dim, text.num_attention_heads, text.num_key_value_heads = 32, width // 32, width // 64
    text.rope_parameters["mrope_section"] = [8, 4, 4]
    text.max_position_embeddings = 32768
    vision.hidden_size, vision.intermediate_size, vision.num_heads = width // 2, 2 * width, width // 64
    vision.depth, vision.out_hidden_size, vision.deepstack_visual_indexes = layers // 2 + 2, width, [0, 1, 2]
    torch.manual_seed(0)
    model = transformers.Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.ndim >= 2):
            parameter.mul_(2.0)
    model.save_pretrained(folder)
    processor = transformers.AutoProcessor.from_pretrained(base)
    processor.video_processor.size = {"shortest_edge": 4096, "longest_edge": 25165824}  # as published
    processor.save_pretrained(folder)
    return folder


def build_robometer(folder: Path, vlm: Path) -> Path:
    config = RobometerConfig(
        pretrained_path=None, device="cpu", base_model_id=str(vlm), torch_dtype="float32", image_key=KEY
    )
    torch.manual_seed(1)
    RobometerRewardModel(config).save_pretrained(folder)
    return folder


def video(number: int, frames: int, size: int) -> Trajectory:
    """A square wanders over a pattern; what it shows does not matter for the time."""
    rng = np.random.default_rng(number)
    ground = rng.integers(40, 200, (size // 8, size // 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    pixels = np.broadcast_to(ground, (frames, size, size, 3)).copy()
    for frame in range(frames):
        place = round((size - size // 4) * frame / frames)
        pixels[frame, place : place + size // 4, place : place + size // 4] = (250, 30, 60)
    return Trajectory(
        episode_id=f"bench-{number}",
        instruction=TASKS[number % 2],
        images={"front": pixels},
        state=np.zeros((frames, 4), np.float32),
        actions=np.zeros((frames - 1, 4), np.float32),
        controller=np.zeros(frames - 1, np.int8),
        outcome=Outcome.SUCCESS,
        fps=10.0,
    )


def report(title: str, theirs: Run, ours: Run) -> None:
    frames = len(theirs.values)
    print(f"\n{title}")
    print("           frames/s    wall     cpu   " + "".join(f"{part:>10}" for part in (*PARTS, "other")))
    for name, run in (("lerobot", theirs), ("robo_rl", ours)):
        shares = [run.parts[part] / run.wall for part in PARTS]
        shares.append(1 - sum(shares))
        row = "".join(f"{share:>9.0%} " for share in shares)
        print(f"{name:8} {frames / run.wall:10.1f} {run.wall:7.2f} s {run.busy:6.2f} s {row}")
    print(
        f"ratio {theirs.wall / ours.wall:.1f} (processor time {theirs.busy / ours.busy:.1f}); "
        f"largest difference of progress {np.abs(theirs.values - ours.values).max():.1e}"
    )


def compare(options: argparse.Namespace, folder: Path, width: int, layers: int) -> None:
    """Both judges with one backbone."""
    device = options.device
    vlm = build_vlm(folder / f"vlm-{width}", width, layers)
    checkpoint = build_robometer(folder / f"robometer-{width}", vlm)
    robometer = RobometerJudge(RobometerJudgeConfig(path=str(checkpoint), device=device))
    top = TOPRewardJudge(TOPRewardJudgeConfig(path=str(vlm), device=device, normalise="episode"))
    their_config = RewardModelConfig.from_pretrained(checkpoint)
    their_config.pretrained_path, their_config.device = str(checkpoint), device
    theirs = RobometerRewardModel.from_pretrained(str(checkpoint), config=their_config)
    their_top = TOPRewardModel(TOPRewardConfig(vlm_name=str(vlm), device=device, image_key=KEY)).to(device).eval()

    def run(root: Path, out: Path) -> tuple[Run, Run, Run, Run]:
        return (
            robometer_of_lerobot(checkpoint, root, out, device, theirs, robometer.encoder),
            robometer_of_ours(robometer, root, device),
            topreward_of_lerobot(root, out, device, their_top),
            topreward_of_ours(top, root, device),
        )

    for name, frames, count in (("warm", 4, 1), ("data", options.frames, options.episodes)):
        root = folder / f"{name}-{width}"
        write_episodes(root, [video(n, frames, options.pixels) for n in range(count)])
        results = run(root, folder / "progress.parquet")
    what = (
        f"{options.episodes} episodes of {options.frames} frames, {options.pixels} x {options.pixels}, "
        f"language model {width} x {layers}, {device}"
    )
    report(f"Robometer, {what}", results[0], results[1])
    report(f"TOPReward, {what}", results[2], results[3])


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
    config = TOPRewardConfig(device="cpu")
    tiny_models.WORDS += [PROGRESS_PROMPT, config.prompt_prefix, config.prompt_suffix_template, *TASKS]
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes.split(","):
            compare(options, Path(folder), *map(int, size.split("x")))


if __name__ == "__main__":
    main()
