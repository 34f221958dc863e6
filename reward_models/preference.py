"""A reward learned from pairs of frames (RL-VLM-F, METHODS 7): higher for the frame that is nearer to the goal.

Whoever compared the pairs, a vision-language model (`preference_vlm`) or people, a small network is fitted so that
P(b is nearer) = sigmoid(r(b) - r(a)) (Bradley and Terry; `preference_fit`). It scores single frames and is cheap.

It sees a frame in one of two ways:
- `encoder` empty: convolutions of its own, trained end to end; needs no download;
- `encoder` a CLIP or SigLIP: its frozen vectors of pictures and instruction.

Comparisons say nothing of a reward's zero and scale, and nothing between instructions. So
progress = sigmoid((r - mean) / deviation) with mean and deviation of r over the frames of the fit that have the same
instruction, of all frames for other instructions [O]; `extra["reward"]` is r.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from reward_models.dual_encoder import DualEncoder, frame_features
from reward_models.hub import Source
from reward_models.judge_folder import digest, read_facts, read_tensors, require_same, write_folder
from reward_models.maps import frame_batches
from reward_models.vlm_layout import resized
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.nets import ConvTrunk, LanguageGrid, TextEncoder, tokenize
from robo_rl.options import configured
from robo_rl.types import RewardSignal, Trajectory

NOT_DECIDING = ("encoder", "revision", "device", "attention", "batch_size")
EVERY = ""  # in `scales`: of all instructions together


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig:
    """What the reward network sees. Raises ConfigError."""

    name: str = "preference"
    cameras: tuple[str, ...] = ()  # empty: those of the episodes that it is fitted to
    encoder: str = ""  # hub id or folder of a CLIP or SigLIP; "": convolutions trained from scratch
    revision: str = ""  # of the encoder
    dtype: str = "fp32"  # of the encoder
    attention: str = "sdpa"  # of the encoder
    device: str = "cpu"
    hidden: int = 128
    channels: int = 32  # of the convolutions
    image_size: int = 64  # of the convolutions: frames are resized to this square
    text_dim: int = 48  # of the convolutions' instructions
    batch_size: int = 64  # frames that are scored together

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name:
            raise ConfigError(f"judge.name must be a word without '@', got {self.name!r}")
        if isinstance(self.cameras, str):
            raise ConfigError(f"judge.cameras must be a list, got {self.cameras!r}")
        for name in ("hidden", "channels", "text_dim", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"judge.{name} must be at least 1, got {getattr(self, name)}")
        if self.image_size < 16 or self.image_size % 8:
            raise ConfigError(f"judge.image_size must be a multiple of 8 from 16 on, got {self.image_size}")
        if self.encoder:
            self.source()

    def source(self) -> Source:
        return Source(
            path=self.encoder, revision=self.revision, dtype=self.dtype, attention=self.attention, device=self.device
        )


class PixelReward(nn.Module):
    """Frames and an instruction -> reward, by convolutions: uint8 (N, cameras, S, S, 3), N texts -> (N,)."""

    def __init__(self, config: PreferenceConfig, cameras: int) -> None:
        super().__init__()
        self.trunks = nn.ModuleList(ConvTrunk(config.channels) for _ in range(cameras))
        self.text = TextEncoder(config.text_dim)
        self.grids = nn.ModuleList(LanguageGrid(config.channels, config.text_dim) for _ in range(cameras))
        width = sum(grid.out_dim for grid in self.grids)  # type: ignore[misc]
        self.head = _head(int(width), config.hidden)

    def forward(self, frames: Tensor, texts: Sequence[str]) -> Tensor:
        device = next(self.parameters()).device
        text = self.text(tokenize(texts).to(device))
        pixels = frames.to(device).permute(1, 0, 4, 2, 3).float() / 255.0
        seen = [grid(trunk(p), text) for trunk, grid, p in zip(self.trunks, self.grids, pixels, strict=True)]
        return self.head(torch.cat(seen, 1))[:, 0]


class VectorReward(nn.Module):
    """Unit vectors of frames and of an instruction -> reward: (N, cameras, D), (N, D) -> (N,)."""

    def __init__(self, config: PreferenceConfig, cameras: int, dim: int) -> None:
        super().__init__()
        self.head = _head((2 * cameras + 1) * dim, config.hidden)

    def forward(self, frames: Tensor, text: Tensor) -> Tensor:
        device = next(self.parameters()).device
        frames, text = frames.to(device), text.to(device)
        # unit vectors have entries of about 1 / sqrt(D)
        parts = torch.cat([frames.flatten(1), (frames * text[:, None]).flatten(1) * frames.shape[-1] ** 0.5, text], 1)
        return self.head(parts * frames.shape[-1] ** 0.5)[:, 0]


def _head(inputs: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, 1))


class PreferenceJudge:
    """A `Judge` that is fitted to pairs. Built without cameras, it takes those of the data it is fitted to."""

    def __init__(self, config: PreferenceConfig | None = None, *, seed: int = 0) -> None:
        self.config, self.seed = config or PreferenceConfig(), seed
        self.encoder = DualEncoder(self.config.source()) if self.config.encoder else None
        self.scales: dict[str, tuple[float, float]] = {}  # instruction -> mean and deviation of its rewards
        self._network: nn.Module | None = None
        if self.config.cameras:
            self.build(self.config.cameras)

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> PreferenceJudge:
        """A judge before it is fitted, as a YAML file describes it; `seed` decides its first parameters."""
        given = {key: value for key, value in options.items() if key not in ("seed", "fit")}
        return cls(configured(PreferenceConfig, given, "judge.preference"), seed=int(options.get("seed", 0)))

    @property
    def network(self) -> nn.Module:
        if self._network is None:
            raise RewardError("this judge has not been fitted yet; fit it to pairs, or load one")
        return self._network

    def build(self, cameras: Sequence[str]) -> None:
        """Create the parameters for these cameras; nothing happens when they exist already."""
        if self._network is not None:
            return
        if not cameras:
            raise DataError("a judge needs at least one camera; the episodes have none")
        self.config = dataclasses.replace(self.config, cameras=tuple(cameras))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.encoder is None:
                network: nn.Module = PixelReward(self.config, len(cameras))
            else:
                with torch.inference_mode():
                    dim = self.encoder.texts(["width"]).shape[1]
                network = VectorReward(self.config, len(cameras), dim)
        self._network = network.to(self.config.device).eval()

    # --- rewards ---------------------------------------------------------------------------------------------------

    def pixels(self, frames: Sequence[np.ndarray]) -> Tensor:
        """Pictures of one frame, one a camera -> uint8 (cameras, S, S, 3), as the convolutions see them."""
        size = self.config.image_size
        return torch.cat([resized(torch.from_numpy(np.array(frame))[None], size) for frame in frames])

    def rewards(self, episodes: Sequence[Trajectory]) -> Iterator[np.ndarray]:
        """r of every frame, float32 (T+1,), an episode at a time."""
        network = self.network.eval()
        if self.encoder is not None:
            yield from self._vector_rewards(network, episodes)
            return
        found: list[Tensor] = []
        for number, rows, images in frame_batches(episodes, self.config.cameras, self.config.batch_size):
            frames = torch.stack([resized(images[c], self.config.image_size) for c in self.config.cameras], 1)
            with torch.inference_mode():
                found.append(network(frames, [episodes[number].instruction] * len(frames)))
            if rows.stop == len(episodes[number]) + 1:
                yield torch.cat(found).cpu().numpy()
                found = []

    def _vector_rewards(self, network: nn.Module, episodes: Sequence[Trajectory]) -> Iterator[np.ndarray]:
        encoder = self.encoder
        if encoder is None:
            return
        known: dict[str, Tensor] = {}
        vectors = frame_features(encoder, episodes, self.config.cameras, self.config.batch_size)
        for number, features in enumerate(vectors):
            text = episodes[number].instruction
            with torch.inference_mode():
                if text not in known:
                    known[text] = encoder.texts([text])
                frames = torch.from_numpy(features)
                yield network(frames, known[text].expand(len(frames), -1)).cpu().numpy()

    def measure(self, episodes: Sequence[Trajectory]) -> None:
        """Set the scales from rewards of these episodes."""
        found: dict[str, list[np.ndarray]] = {}
        for number, values in enumerate(self.rewards(episodes)):
            found.setdefault(episodes[number].instruction, []).append(values)
        everything = {text: np.concatenate(parts) for text, parts in found.items()}
        everything[EVERY] = np.concatenate(list(everything.values()))
        self.scales = {
            text: (float(values.mean()), max(float(values.std()), 1e-6)) for text, values in everything.items()
        }

    # --- judging ---------------------------------------------------------------------------------------------------

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of options, parameters, scales and the encoder's own revision."""
        scales = [f"{text} {mean:.9g} {deviation:.9g}" for text, (mean, deviation) in sorted(self.scales.items())]
        more = (self._revision, *scales)
        return f"{self.config.name}@{digest(self.config, NOT_DECIDING, *more, tensors=self.network.state_dict())}"

    @property
    def _revision(self) -> str:
        return self.encoder.revision if self.encoder is not None else ""

    def provenance(self) -> dict[str, str]:
        """What it sees, and with which encoder: every option as text."""
        facts = {key: str(value) for key, value in dataclasses.asdict(self.config).items() if key != "name"}
        return {"type": "preference", **facts, "cameras": ",".join(self.config.cameras), "revision": self._revision}

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order. Raises RewardError when the judge has not been fitted."""
        if not self.scales:
            raise RewardError("this judge has not been fitted yet; fit it to pairs, or load one")
        model_id, signals = self.model_id, []
        for number, values in enumerate(self.rewards(trajectories)):
            episode = trajectories[number]
            mean, deviation = self.scales.get(episode.instruction, self.scales[EVERY])
            signals.append(
                RewardSignal(
                    episode_id=episode.episode_id,
                    model_id=model_id,
                    progress=expit((values - mean) / deviation).astype(np.float32),
                    extra={"reward": values.astype(np.float32)},
                )
            )
        return signals

    # --- storage ---------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write `config.json` and `model.safetensors`; a pretrained encoder stays where it is."""
        facts = {
            "type": "preference",
            "model_id": self.model_id,
            "seed": self.seed,
            "revision": self._revision,
            "config": dataclasses.asdict(self.config),
            "scales": {text: list(values) for text, values in self.scales.items()},
        }
        write_folder(folder, facts, self.network.state_dict())

    @classmethod
    def load(cls, folder: Path | str) -> PreferenceJudge:
        """Open a judge. Raises DataError for a damaged folder, ConfigError when its encoder is gone."""
        facts = read_facts(folder, "preference")
        try:
            judge = cls(configured(PreferenceConfig, facts["config"], f"{folder}: config"), seed=facts["seed"])
            judge.network.load_state_dict(read_tensors(folder))
            judge.scales = {text: (float(mean), float(spread)) for text, (mean, spread) in facts["scales"].items()}
        except (KeyError, TypeError, ValueError, RuntimeError, RewardError) as error:
            raise DataError(f"{folder}: damaged judge: {' '.join(str(error).split())}") from None
        require_same(folder, facts, revision=judge._revision, model_id=judge.model_id)
        return judge
