"""Checkpoints of lerobot's SARM (arXiv 2509.25358, METHODS 5) as judges: the same progress, each frame encoded once.

SARM looks at a window of frames around the one that it judges, so it is no causal judge: what it says of a frame
depends on up to n_obs_steps / 2 * frame_gap later ones. lerobot encodes every frame of every window anew, one
window at a time; here frames go through CLIP once and windows are batched. The frames of rewinding that only
training uses are left out: lerobot masks them when it judges. With one stage the stage model has nothing to say and
is not run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.rewards.sarm.configuration_sarm import SARMConfig
from lerobot.rewards.sarm.modeling_sarm import SARMRewardModel
from lerobot.rewards.sarm.sarm_utils import normalize_stage_tau, pad_state_to_max_dim
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from reward_models.hub import Source, load_dual_encoder
from reward_models.lerobot_checkpoint import (
    Normaliser,
    as_tensor,
    digest,
    load_parameters,
    open_checkpoint,
    read_options,
    write_options,
)
from reward_models.maps import require_cameras
from robo_rl.data.layout import camera_name
from robo_rl.errors import ConfigError, RewardError
from robo_rl.types import RewardSignal, Trajectory

CLIP = "openai/clip-vit-base-patch32"  # the model that lerobot trains SARM with
HEADS = {"sparse": ("sparse",), "dense": ("dense",), "both": ("sparse", "dense")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SARMOptions:
    """Which checkpoint, and how it is read. Raises ConfigError."""

    path: str  # checkpoint folder or hub id
    revision: str = ""  # of a hub id
    clip: str = CLIP  # folder or hub id
    clip_revision: str = ""
    # Normalisation of the robot's state: "" as in training, the folder of a dataset (lerobot's own script takes
    # that of the dataset that is judged), or "none".
    stats: str | Mapping[str, Any] = ""
    head: str = "sparse"  # which head is `progress`: sparse | dense | both (sparse, and dense in `extra`)
    camera: str = ""  # "": the one that the checkpoint was trained on
    device: str = "cpu"
    clip_batch: int = 64  # frames that go through CLIP together
    batch: int = 128  # windows that go through SARM together
    name: str = "sarm"

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise ConfigError(f"lerobot_sarm: head must be one of {', '.join(HEADS)}, got {self.head!r}")
        if self.clip_batch < 1 or self.batch < 1:
            raise ConfigError(
                f"lerobot_sarm: clip_batch and batch must be positive, got {self.clip_batch}, {self.batch}"
            )


class SARMJudge:
    """Progress of every frame as `lerobot.rewards.sarm.compute_rabc_weights` computes it, to rounding.

    `extra` has the likeliest stage and its probability at every frame (`stage_sparse`, `stage_confidence_sparse`,
    the same of `dense`) where the head has several stages. There is no success head, and progress is no probability.
    """

    def __init__(self, options: SARMOptions) -> None:
        self.options = options
        self.checkpoint = open_checkpoint(options.path, SARMConfig, revision=options.revision, device=options.device)
        self.config: SARMConfig = self.checkpoint.config
        self.heads = HEADS[options.head]
        if "dense" in self.heads and not self.config.uses_dual_heads:
            raise ConfigError(
                f"{options.path}: head={options.head}, but it was trained in mode {self.config.annotation_mode}, "
                "without a dense head; use head: sparse"
            )
        self.camera = options.camera or camera_name(self.config.image_key)
        self.clip = load_dual_encoder(Source(path=options.clip, revision=options.clip_revision, device=options.device))
        width = self.clip.model.config.projection_dim
        if width != self.config.image_dim:
            raise ConfigError(
                f"{options.clip}: its features have {width} numbers, but {options.path} was trained with "
                f"{self.config.image_dim}; give the CLIP model of its training"
            )
        self.normalise = Normaliser(self.checkpoint, (self.config.state_key,), options.stats)
        self.model = load_parameters(SARMRewardModel, self.checkpoint).eval()
        self._texts: dict[str, Tensor] = {}

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> SARMJudge:
        """As a YAML file describes it."""
        return cls(SARMOptions(**options))

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of both models' files and of what decides the scores besides."""
        asked = (self.options.head, self.camera, self.normalise.plain())
        return f"{self.options.name}@{digest(self.checkpoint.revision, self.clip.revision, *asked)}"

    def provenance(self) -> dict[str, str]:
        """Checkpoint, CLIP, head and window."""
        config, options = self.config, self.options
        return {
            "checkpoint": options.path,
            "checkpoint_revision": options.revision or self.checkpoint.revision,
            "clip": options.clip,
            "clip_revision": self.clip.revision,
            "head": options.head,
            "camera": self.camera,
            "window": f"{config.n_obs_steps + 1} frames, {config.frame_gap} apart",
            "annotation_mode": config.annotation_mode,
            "causal": "no",
        }

    # --- judging -------------------------------------------------------------------------------------------

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order. Raises RewardError naming an episode that cannot be scored."""
        model_id = self.model_id
        return [self._score(episode, model_id) for episode in trajectories]

    @torch.inference_mode()
    def _score(self, episode: Trajectory, model_id: str) -> RewardSignal:
        require_cameras(episode, (self.camera,))
        state = self._state(episode)
        features = torch.cat(list(self._encode(episode.images[self.camera])))
        text = self._text(episode.instruction)
        parts: list[dict[str, Tensor]] = []
        for first in range(0, len(features), self.options.batch):
            frames = torch.arange(first, min(first + self.options.batch, len(features)))
            rows = self._windows(frames, len(features))
            parts.append(self._judge(features[rows], text.expand(len(rows), -1), state[rows]))
        read = {key: torch.cat([part[key] for part in parts]).float().cpu().numpy() for key in parts[0]}
        return RewardSignal(
            episode_id=episode.episode_id,
            model_id=model_id,
            progress=read.pop(f"progress_{self.heads[0]}"),
            extra=read,
        )

    def _windows(self, frames: Tensor, length: int) -> Tensor:
        """Frames that lie around each of (n,): int64 (n, 1 + n_obs_steps), held at the ends of the episode."""
        offsets = torch.tensor(self.config.observation_delta_indices[: 1 + self.config.n_obs_steps])
        return (frames[:, None] + offsets).clamp(0, length - 1)

    def _encode(self, images: np.ndarray) -> Iterator[Tensor]:
        """CLIP features of frames uint8 (N, H, W, 3), some at a time: (n, image_dim)."""
        for first in range(0, len(images), self.options.clip_batch):
            pictures = [Image.fromarray(np.asarray(i)) for i in images[first : first + self.options.clip_batch]]
            inputs = self.clip.processor(images=pictures, return_tensors="pt").to(self.options.device)
            yield as_tensor(self.clip.model.get_image_features(**inputs))

    def _text(self, instruction: str) -> Tensor:
        if instruction not in self._texts:
            inputs = self.clip.processor.tokenizer([instruction], return_tensors="pt", padding=True, truncation=True)
            self._texts[instruction] = as_tensor(self.clip.model.get_text_features(**inputs.to(self.options.device)))
        return self._texts[instruction]

    def _state(self, episode: Trajectory) -> Tensor:
        """Normalised and padded: float32 (T + 1, max_state_dim)."""
        key, width = self.config.state_key, episode.state.shape[1]
        wanted = self.normalise.width(key)
        if width == 0 or (wanted is not None and wanted != width):
            raise RewardError(
                f"episode {episode.episode_id!r}: the state has {width} numbers, but {self.options.path} was trained "
                f"with {'at least one' if wanted is None else wanted}"
            )
        state = self.normalise(key, torch.from_numpy(np.array(episode.state)))
        return pad_state_to_max_dim(state, self.config.max_state_dim).to(self.options.device)

    def _judge(self, images: Tensor, text: Tensor, state: Tensor) -> dict[str, Tensor]:
        """Windows (n, L, image_dim), texts (n, text_dim), states (n, L, max_state_dim) -> columns (n,) each."""
        config, centre = self.config, self.config.n_obs_steps // 2
        images = images.unsqueeze(1)  # one camera
        lengths = torch.full((len(images),), images.shape[2], dtype=torch.int32, device=images.device)
        read: dict[str, Tensor] = {}
        for head in self.heads:
            stages = config.num_sparse_stages if head == "sparse" else config.num_dense_stages
            stage = torch.zeros(images.shape[0], images.shape[2], dtype=torch.int64, device=images.device)
            if stages > 1:
                probability = self.model.stage_model(images, text, state, lengths, scheme=head).softmax(-1)
                confidence, stage = probability.max(-1)
                read[f"stage_{head}"] = stage[:, centre].float()
                read[f"stage_confidence_{head}"] = confidence[:, centre]
            prior = F.one_hot(stage, num_classes=stages).float().unsqueeze(1)
            within = self.model.subtask_model(images, text, state, lengths, prior, scheme=head)
            read[f"progress_{head}"] = normalize_stage_tau(
                (stage.float() + within)[:, centre],
                num_stages=stages,
                temporal_proportions=getattr(config, f"{head}_temporal_proportions"),
                subtask_names=getattr(config, f"{head}_subtask_names"),
            )
        return read

    # --- storage ---------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write `config.json`: where the two models are, and the statistics themselves. The models stay there."""
        kept = dataclasses.asdict(self.options) | {"stats": self.normalise.plain() or "none"}
        write_options(folder, "lerobot_sarm", self.model_id, kept, ("path", "clip"))

    @classmethod
    def load(cls, folder: Path | str) -> SARMJudge:
        """Open a judge. Raises DataError for a damaged folder or models that changed since, ConfigError for missing
        ones."""
        return read_options(folder, "lerobot_sarm", cls.from_config)
