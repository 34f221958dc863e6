"""RobometerJudge: lerobot's Robometer checkpoints as a judge, the same numbers in a fraction of the work.

Robometer (arXiv 2603.02115, METHODS 5) reads K pictures between the start and now, and predicts progress and success
at the last. lerobot (`rewards/robometer/compute_rabc_weights.py`) encodes 4 T pictures for T frames and runs the whole
prompt every time; here each frame is encoded once, and what prompts have in common is run once (`robometer_pass`).
In float32 the results equal lerobot's to 1e-5, which the tests require; lerobot drops the success head, we keep it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.rewards.robometer.modeling_robometer import convert_bins_to_continuous
from lerobot.rewards.robometer.processor_robometer import PROGRESS_PROMPT

from reward_models.lerobot_checkpoint import digest, read_options, write_options
from reward_models.robometer_checkpoint import open_robometer, robometer_encoder
from reward_models.robometer_frames import FrameFeatures
from reward_models.robometer_pass import Episode, RobometerPass, batches, quiet
from reward_models.robometer_rows import frame_rows
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.options import configured
from robo_rl.types import RewardSignal, Trajectory

TYPE = "lerobot_robometer"
DEFAULT_TASK = "perform the task"  # of lerobot's script, for episodes without an instruction
CAMERA_PREFIX = "observation.images."


@dataclass(frozen=True, kw_only=True)
class RobometerJudgeConfig:
    """Which checkpoint, and how it is asked. Raises ConfigError."""

    path: str  # folder with lerobot's config.json and model.safetensors, or a hub id ("lerobot/Robometer-4B")
    revision: str = ""  # of a hub id; "" is the newest
    name: str = "robometer"
    processor: str = ""  # tokenizer and image processor; "" for the checkpoint's base model
    device: str = "cpu"
    dtype: str = ""  # fp32 | bf16 | fp16; "" is the checkpoint's own
    camera: str = ""  # "front"; "" is the checkpoint's image_key
    num_frames: int = 4  # K pictures a prompt, as in lerobot's labelling script
    batch_size: int = 64  # prompts run together; changes speed and memory only

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("lerobot_robometer: path is empty; give a hub id or a folder")
        if not self.name or "@" in self.name:
            raise ConfigError(f"lerobot_robometer: name must be a word without '@', got {self.name!r}")
        if self.num_frames < 2:
            raise ConfigError(f"lerobot_robometer: num_frames must be at least 2, got {self.num_frames}")
        if self.batch_size < 1:
            raise ConfigError(f"lerobot_robometer: batch_size must be at least 1, got {self.batch_size}")


class RobometerJudge:
    """A `Judge`: progress in [0, 1] and success probability of every frame, from one camera."""

    def __init__(self, config: RobometerJudgeConfig) -> None:
        """Opens the checkpoint. Raises ConfigError with what is missing."""
        self.config = config
        self.checkpoint, self.model = open_robometer(
            config.path, revision=config.revision, device=config.device, dtype=config.dtype
        )
        self.encoder = robometer_encoder(self.model.config, config.processor, config.num_frames)
        self.passes = RobometerPass(self.model, self.encoder)
        self.camera = config.camera or self.model.config.image_key.removeprefix(CAMERA_PREFIX)

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> RobometerJudge:
        """From the options of `RobometerJudgeConfig`. Raises ConfigError."""
        return cls(configured(RobometerJudgeConfig, options, f"judge.{TYPE}"))

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of the checkpoint's files and of what it is shown."""
        config = self.config
        shown = (self.camera, config.num_frames, self.model.config.torch_dtype, config.processor)
        return f"{config.name}@{digest(TYPE, self.checkpoint.revision, *shown)}"

    def provenance(self) -> dict[str, str]:
        """Model, prompt, and which frames are looked at."""
        return {
            "type": TYPE,
            "checkpoint": self.config.path,
            "checkpoint_revision": self.config.revision or self.checkpoint.revision,
            "processor": self.encoder.base_model_id,
            "dtype": self.model.config.torch_dtype,
            "camera": self.camera,
            "prompt": PROGRESS_PROMPT,
            "frames": f"linspace(0, t, {self.config.num_frames}) for every frame t",
        }

    # --- judging ---------------------------------------------------------------------------------------

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order; batches are filled across trajectories.

        Raises RewardError naming an episode without the camera, or whose scores are not finite.
        """
        values = [np.empty((len(trajectory) + 1, 2), np.float32) for trajectory in trajectories]
        for trajectory in trajectories:
            self._frames(trajectory)
        if self.model.config.use_multi_image:
            for batch in batches(self._episodes(trajectories), self.config.batch_size):
                found = self._decode(*self.passes.run(batch))
                for place, frame, value in zip(batch.episode, batch.frame, found, strict=True):
                    values[batch.episodes[place].number][frame] = value
        else:
            for number, trajectory in enumerate(trajectories):
                self._score_as_video(trajectory, values[number])
        return [self._signal(t, v) for t, v in zip(trajectories, values, strict=True)]

    def _frames(self, trajectory: Trajectory) -> np.ndarray:
        if self.camera not in trajectory.images:
            raise RewardError(
                f"{self.model_id}: episode {trajectory.episode_id!r} has no camera {self.camera!r}; "
                f"it has: {', '.join(trajectory.images) or 'none'}; set camera: to one of them"
            )
        return trajectory.images[self.camera]

    def _episodes(self, trajectories: Sequence[Trajectory]) -> Iterator[Episode]:
        for number, trajectory in enumerate(trajectories):
            frames = self._frames(trajectory)
            height, width = frames.shape[1:3]
            yield Episode(
                number,
                self.passes.prompt(self._task(trajectory), (height, width), self.config.num_frames),
                FrameFeatures(self.passes.model, self.encoder._processor, frames),
                frame_rows(len(frames), self.config.num_frames),
            )

    def _task(self, trajectory: Trajectory) -> str:
        return trajectory.instruction or self.model.config.default_task or DEFAULT_TASK

    def _decode(self, progress: torch.Tensor, success: torch.Tensor) -> np.ndarray:
        """float32 (R, 2): progress and success, as lerobot makes them of the heads' outputs."""
        progress, success = progress.float().cpu(), success.float().cpu()
        if self.model.config.use_discrete_progress:
            progress = convert_bins_to_continuous(progress)
        both = torch.stack([progress.reshape(-1).clamp(0.0, 1.0), success.reshape(-1).sigmoid()], dim=1)
        return both.numpy()

    @torch.inference_mode()
    def _score_as_video(self, trajectory: Trajectory, values: np.ndarray) -> None:
        """Checkpoints that read the pictures as one video merge them in pairs; this is lerobot's own way."""
        frames = self._frames(trajectory)
        rows = frame_rows(len(frames), self.config.num_frames)
        for first in range(0, len(rows), self.config.batch_size):
            samples = [(frames[row], self._task(trajectory)) for row in rows[first : first + self.config.batch_size]]
            with quiet():
                made = self.encoder.encode_samples(samples)
            encoded = {n: v.to(self.config.device) if isinstance(v, torch.Tensor) else v for n, v in made.items()}
            progress, success = self.model._compute_rbm_logits(encoded)
            values[first : first + len(samples)] = self._decode(progress[:, -1], success[:, -1])

    def _signal(self, trajectory: Trajectory, values: np.ndarray) -> RewardSignal:
        try:
            return RewardSignal(
                episode_id=trajectory.episode_id,
                model_id=self.model_id,
                progress=np.ascontiguousarray(values[:, 0]),
                success_prob=np.ascontiguousarray(values[:, 1]),
            )
        except DataError as error:
            raise RewardError(f"{error}; the model's parameters or its dtype cannot be used") from None

    # --- storage -----------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write `config.json`: the options and the `model_id` they meant. The checkpoint itself is not copied."""
        write_options(folder, TYPE, self.model_id, dataclasses.asdict(self.config), ("path", "processor"))

    @classmethod
    def load(cls, folder: Path | str) -> RobometerJudge:
        """Open what `save` wrote. Raises DataError when the folder is damaged or its checkpoint has changed."""
        return read_options(folder, TYPE, cls.from_config)
