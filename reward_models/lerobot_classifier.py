"""Checkpoints of lerobot's reward classifier (HIL-SERL, arXiv 2410.21845) as judges; frames are batched.

The classifier looks at single frames and says whether they show success. Two ways of feeding it are in use in lerobot:
`lerobot-train` normalises pictures with the statistics of the training data, and keeps these beside the parameters;
`RewardClassifierProcessorStep`, which rewards a running robot, hands over pictures in [0, 1] as they are. The first
is the default here (`stats: ""`), the second is `stats: none`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.rewards.classifier.configuration_classifier import RewardClassifierConfig
from lerobot.rewards.classifier.modeling_classifier import Classifier
from torch import Tensor

from reward_models.lerobot_checkpoint import (
    Normaliser,
    digest,
    load_parameters,
    open_checkpoint,
    read_options,
    write_options,
)
from reward_models.maps import frame_batches
from robo_rl.data.layout import camera_name
from robo_rl.errors import ConfigError, RewardError
from robo_rl.types import RewardSignal, Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierOptions:
    """Which checkpoint, and how it is read. Raises ConfigError."""

    path: str  # checkpoint folder or hub id
    revision: str = ""  # of a hub id
    encoder: str = ""  # folder of the vision model whose architecture it has; "": the one that config.json names
    allow_code: bool = False  # lerobot runs code of the encoder's repository where it has some
    stats: str | Mapping[str, Any] = ""  # "": as in training; a dataset's folder; "none": pictures in [0, 1]
    device: str = "cpu"
    batch: int = 64  # frames that go through the classifier together
    name: str = "classifier"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ConfigError(f"lerobot_classifier: batch must be positive, got {self.batch}")


class ClassifierJudge:
    """Success probability of every frame, that of `Classifier.predict` to rounding.

    `progress` is not measured by this model. It is E[reward] / (K - 1) over the K classes, which lerobot numbers by
    their reward: with two classes the probability of success itself, with more the expected reward, scaled [O]. It
    is low all the way and rises at the end; do not read it as a share of the task. `success_prob` is the probability
    of the highest class.
    """

    def __init__(self, options: ClassifierOptions) -> None:
        self.options = options
        self.checkpoint = open_checkpoint(
            options.path, RewardClassifierConfig, revision=options.revision, device=options.device
        )
        self.config: RewardClassifierConfig = self.checkpoint.config
        self.keys = tuple(key for key in self.config.input_features if key.startswith("observation.image"))
        if len(self.keys) != self.config.num_cameras:
            raise ConfigError(
                f"{options.path}: config.json says num_cameras={self.config.num_cameras}, but names {len(self.keys)} "
                f"pictures: {', '.join(self.keys) or 'none'}"
            )
        self.cameras = tuple(camera_name(key) for key in self.keys)
        self._choose_encoder()
        self.normalise = Normaliser(self.checkpoint, self.keys, options.stats)
        self.model = load_parameters(Classifier, self.checkpoint).eval()

    def _choose_encoder(self) -> None:
        options, config = self.options, self.config
        encoder = options.encoder or config.model_name
        if options.encoder and not Path(encoder).is_dir():
            raise ConfigError(f"{encoder}: no such folder of a vision model")
        if not Path(encoder).is_dir() and not options.allow_code:
            raise ConfigError(
                f"{options.path}: lerobot opens its encoder {encoder!r} with code from that repository; say "
                "allow_code: true if you trust it, or give encoder: a folder"
            )
        config.model_name = encoder

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> ClassifierJudge:
        """As a YAML file describes it."""
        return cls(ClassifierOptions(**options))

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of the checkpoint's files and of the statistics."""
        return f"{self.options.name}@{digest(self.checkpoint.revision, self.normalise.plain())}"

    def provenance(self) -> dict[str, str]:
        """Checkpoint, encoder and how pictures are normalised."""
        return {
            "checkpoint": self.options.path,
            "checkpoint_revision": self.options.revision or self.checkpoint.revision,
            "encoder": self.config.model_name,
            "cameras": ",".join(self.cameras),
            "normalised": "yes" if self.normalise.statistics else "no",
            "progress": "probability of success" if self.config.num_classes == 2 else "expected reward",
        }

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order. Raises RewardError naming an episode that cannot be scored."""
        model_id, parts, signals = self.model_id, [], []  # type: str, list[Tensor], list[RewardSignal]
        for number, rows, frames in frame_batches(trajectories, self.cameras, self.options.batch):
            episode = trajectories[number]
            self._check(episode, frames)
            parts.append(self._probabilities(frames))
            if rows.stop == len(episode) + 1:
                signals.append(self._signal(episode, torch.cat(parts), model_id))
                parts = []
        return signals

    def _check(self, episode: Trajectory, frames: Mapping[str, Tensor]) -> None:
        for key, camera in zip(self.keys, self.cameras, strict=True):
            size, wanted = tuple(frames[camera].shape[1:3]), tuple(self.config.input_features[key].shape[-2:])
            if size != wanted:
                raise RewardError(
                    f"episode {episode.episode_id!r}: frames of camera {camera!r} are {size}, but {self.options.path} "
                    f"was trained on {wanted}; resize the dataset"
                )

    @torch.inference_mode()
    def _probabilities(self, frames: Mapping[str, Tensor]) -> Tensor:
        """camera -> uint8 (n, H, W, 3) to probabilities of the classes (n, K)."""
        pictures = []
        for key, camera in zip(self.keys, self.cameras, strict=True):
            picture = frames[camera].permute(0, 3, 1, 2).contiguous().float() / 255.0  # as lerobot reads them
            pictures.append(self.normalise(key, picture.to(self.options.device)))
        p = self.model.predict(pictures).probabilities
        return torch.stack([1.0 - p, p], 1) if self.config.num_classes == 2 else p

    def _signal(self, episode: Trajectory, p: Tensor, model_id: str) -> RewardSignal:
        classes = torch.linspace(0.0, 1.0, p.shape[1], device=p.device)
        return RewardSignal(
            episode_id=episode.episode_id,
            model_id=model_id,
            progress=(p @ classes).clamp(0.0, 1.0).cpu().numpy().astype(np.float32),
            success_prob=p[:, -1].cpu().numpy().astype(np.float32),
        )

    # --- storage ---------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write `config.json`: where the checkpoint is, and the statistics themselves. The checkpoint stays there."""
        kept = dataclasses.asdict(self.options) | {"stats": self.normalise.plain() or "none"}
        write_options(folder, "lerobot_classifier", self.model_id, kept, ("path", "encoder"))

    @classmethod
    def load(cls, folder: Path | str) -> ClassifierJudge:
        """Open a judge. Raises DataError for a damaged folder or a checkpoint that changed, ConfigError for a
        missing one."""
        return read_options(folder, "lerobot_classifier", cls.from_config)
