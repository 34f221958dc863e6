"""CausalJudge: one causal pass over the frames of an episode, on any backbone, read out by any objectives."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from reward_models.backbone import VlmBackbone, VlmConfig
from reward_models.compact_backbone import CompactBackbone
from reward_models.hop import Hop, HopConfig
from reward_models.judge_stream import CausalStream
from reward_models.maps import require_cameras
from reward_models.network import CompactJudgeConfig
from reward_models.objective import Objective, Readout
from reward_models.progress import Progress, ProgressConfig
from reward_models.rating import Rating, RatingConfig
from reward_models.td_success import TDSuccess, TDSuccessConfig
from reward_models.tri_state import TriState, TriStateConfig
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.options import configured
from robo_rl.types import RewardSignal, Trajectory

BACKBONES: dict[str, tuple[Any, Any]] = {
    "compact": (CompactJudgeConfig, CompactBackbone),
    "vlm": (VlmConfig, VlmBackbone),
}
OBJECTIVES: dict[str, tuple[Any, Any]] = {
    "progress": (ProgressConfig, Progress),
    "tri_state": (TriStateConfig, TriState),
    "td_success": (TDSuccessConfig, TDSuccess),
    "hop": (HopConfig, Hop),
    "rating": (RatingConfig, Rating),
}
_CONFIG, _PARAMETERS = "config.json", "model.safetensors"
BLOCK_TOKENS = 448  # fewer leave a processor idle, more cost attention that a window throws away
_SIGNAL = ("progress", "success_prob", "tri_state", "uncertainty")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalConfig:
    """What a judge is made of. Raises ConfigError.

    `objectives` are asked in order: progress, success and so on come from the first that offers them.
    """

    name: str = "judge"
    backbone: Mapping[str, Any]  # {type: compact | vlm, ...options}
    objectives: Mapping[str, Mapping[str, Any]]  # {progress: {...}, td_success: {...}}
    stride: int = 1  # one frame in `stride` is looked at, and the last; those between are interpolated
    block: int = 0  # frames of an episode that go through the backbone together; 0: as many as suit its tokens
    together: int = 1  # episodes that go through side by side: fills a GPU, wastes a CPU's time on padding

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name:
            raise ConfigError(f"judge.name must be a word without '@', got {self.name!r}")
        if min(self.stride, self.together) < 1 or self.block < 0:
            given = (self.stride, self.together, self.block)
            raise ConfigError(f"judge: stride and together must be at least 1, block at least 0, got {given}")
        if not self.objectives:
            raise ConfigError(f"judge.objectives: name at least one of {', '.join(OBJECTIVES)}")
        for objective in self.objectives:
            if objective not in OBJECTIVES:
                raise ConfigError(f"judge.objectives.{objective}: not known; there are {', '.join(OBJECTIVES)}")
        if self.backbone.get("type") not in BACKBONES:
            kind = self.backbone.get("type")
            raise ConfigError(f"judge.backbone.type must be one of {', '.join(BACKBONES)}, got {kind!r}")
        self.backbone_config()
        for kind in self.objectives:
            self.objective_config(kind)

    def backbone_config(self) -> Any:
        """The backbone's own configuration."""
        options = {key: value for key, value in self.backbone.items() if key != "type"}
        return configured(BACKBONES[self.backbone["type"]][0], options, "judge.backbone")

    def objective_config(self, kind: str) -> Any:
        """An objective's own configuration."""
        return configured(OBJECTIVES[kind][0], self.objectives[kind] or {}, f"judge.objectives.{kind}")


class CausalNetwork(nn.Module):
    """Backbone and objectives."""

    def __init__(self, config: CausalConfig) -> None:
        super().__init__()
        settings = config.backbone_config()
        self.backbone = BACKBONES[config.backbone["type"]][1](settings)
        self.objectives = nn.ModuleDict(
            {kind: OBJECTIVES[kind][1](self.backbone.dim, config.objective_config(kind)) for kind in config.objectives}
        ).to(next(iter(self.backbone.parameters())).device)

    def forward(self, features: Tensor, instructions: Sequence[str]) -> Tensor:
        """Features (B, L, ...) -> hidden (B, L, dim)."""
        return self.backbone(features, instructions)

    def success(self) -> Objective | None:
        """The objective whose success head comes first."""
        return next((o for o in self.parts() if o.success_logits(torch.zeros(1, self.backbone.dim)) is not None), None)

    def parts(self) -> list[Objective]:
        return list(self.objectives.values())  # type: ignore[arg-type]


class CausalJudge:
    """A `RewardModel`. Built without cameras, it takes those of the data that it is first fitted to."""

    def __init__(self, config: CausalConfig, *, seed: int = 0) -> None:
        self.config, self.seed = config, seed
        self._network: CausalNetwork | None = None
        if config.backbone_config().cameras:
            self.build(config.backbone_config().cameras)

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> CausalJudge:
        """A judge without training, as a YAML file describes it; `seed` decides its heads."""
        options = dict(options)
        seed = int(options.pop("seed", 0))
        options.pop("fit", None)
        return cls(configured(CausalConfig, options, "judge"), seed=seed)

    @property
    def network(self) -> CausalNetwork:
        if self._network is None:
            raise RewardError("this judge has no cameras yet; fit it, load one, or name backbone.cameras")
        return self._network

    def build(self, cameras: Sequence[str]) -> None:
        """Create the parameters for these cameras; nothing happens when they exist already."""
        if self._network is None:
            if not cameras:
                raise DataError("a judge needs at least one camera; the episodes have none")
            backbone = {**self.config.backbone, "cameras": list(cameras)}
            self.config = dataclasses.replace(self.config, backbone=backbone)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                self._network = CausalNetwork(self.config).eval()

    # --- judging -------------------------------------------------------------------------------------------

    def trained(self) -> dict[str, Tensor]:
        """What is kept in the judge's folder: all tensors but the frozen ones of a pretrained model."""
        backbone = self.network.backbone
        frozen = {f"backbone.{name}" for name in backbone.frozen()}
        return {name: tensor for name, tensor in self.network.state_dict().items() if name not in frozen}

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of the trained parameters and of the pretrained model's revision."""
        digest = hashlib.sha256(self.network.backbone.revision.encode())
        for name, tensor in sorted(self.trained().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return f"{self.config.name}@{digest.hexdigest()[:10]}"

    def provenance(self) -> dict[str, str]:
        """Backbone, revision, prompt and how frames are sampled."""
        settings = self.network.backbone.config
        facts = {"objectives": "+".join(self.config.objectives), "stride": str(self.config.stride)}
        if isinstance(settings, VlmConfig):
            facts |= {"backbone": settings.path, "revision": self.network.backbone.revision}
            facts |= {"prompt": settings.prompt, "image_size": str(settings.image_size), "dtype": settings.dtype}
        return facts | {"window": str(settings.window), "cameras": ",".join(self.network.backbone.cameras)}

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order. Raises RewardError naming an episode that cannot be scored."""
        return [signal for signal, _ in self.observe(trajectories)]

    def embed(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """The hidden state at every observation, float32 (T+1, dim) each, in order."""
        return [hidden for _, hidden in self.observe(trajectories)]

    def observe(self, trajectories: Sequence[Trajectory]) -> Iterator[tuple[RewardSignal, np.ndarray]]:
        """Scores and hidden states; memory holds `block` frames, keys and values of `together` episodes."""
        network, model_id = self.network.eval(), self.model_id
        for first in range(0, len(trajectories), self.config.together):
            last = min(first + self.config.together, len(trajectories))
            group = [trajectories[number] for number in range(first, last)]
            for episode in group:
                require_cameras(episode, network.backbone.cameras)
            with torch.inference_mode():
                read = self._read(group)
            for episode, (readout, hidden) in zip(group, read, strict=True):
                yield self._signal(episode, readout, model_id), hidden

    def _read(self, group: Sequence[Trajectory]) -> list[tuple[Readout, np.ndarray]]:
        """Blocks of frames of all episodes of a group; one that has ended repeats its last frame, to no effect."""
        backbone = self.network.backbone
        state = backbone.start([episode.instruction for episode in group])
        parts = self.network.parts()
        readings = [
            EpisodeReading(episode, looked_at(len(episode) + 1, self.config.stride), parts) for episode in group
        ]
        block = self.config.block or self._block(group[0])
        for first in range(0, max(len(reading.frames) for reading in readings), block):
            chosen = [reading.block(first, block) for reading in readings]
            width = max(len(frames) for frames in chosen)
            padded = [np.concatenate([f, np.repeat(f[-1:], width - len(f))]) for f in chosen]
            images = {
                camera: torch.from_numpy(
                    np.concatenate([e.images[camera][frames] for e, frames in zip(group, padded, strict=True)])
                )
                for camera in backbone.cameras
            }
            features = backbone.encode(images).unflatten(0, (len(group), width))
            hidden, state = backbone.step(features, state)
            for reading, states in zip(readings, hidden, strict=True):
                reading.append(states[: max(0, len(reading.frames) - first)])
        return [reading.finished() for reading in readings]

    def _block(self, episode: Trajectory) -> int:
        """Frames that make about BLOCK_TOKENS tokens: a function of the frames' size alone."""
        backbone = self.network.backbone
        if not backbone.tokens:
            backbone.encode({c: torch.from_numpy(np.array(episode.images[c][:1])) for c in backbone.cameras})
        return int(np.clip(BLOCK_TOKENS // backbone.tokens, 8, 64))

    def _signal(self, episode: Trajectory, read: Readout, model_id: str) -> RewardSignal:
        extra = {key: value.astype(np.float32) for key, value in read.items() if key not in _SIGNAL}
        try:
            return RewardSignal(
                episode_id=episode.episode_id,
                model_id=model_id,
                progress=read["progress"],
                success_prob=read.get("success_prob"),
                tri_state=read.get("tri_state"),
                uncertainty=read.get("uncertainty"),
                extra=extra,
            )
        except DataError as error:
            raise RewardError(f"{error}; the judge's parameters are damaged: fit it again") from None

    def stream(self, instructions: str | Sequence[str]) -> CausalStream:
        """Judge running episodes frame by frame, one for each instruction; equal to `score` on the whole.

        Not equal where an objective looks at the whole episode: `tri_state` with `readout: anchored`.
        """
        texts = [instructions] if isinstance(instructions, str) else list(instructions)
        return CausalStream(self.network.eval(), texts, self.config.stride)

    # --- storage ---------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write `config.json` and `model.safetensors`; the folder is the old one or the new one, never half.

        A pretrained backbone stays where it is: its path and revision are kept, and what was trained of it.
        """
        folder = Path(folder)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        facts = {
            "type": "causal",
            "model_id": self.model_id,
            "seed": self.seed,
            "backbone_revision": self.network.backbone.revision,
            "model": dataclasses.asdict(self.config),
            "facts": {kind: part.facts() for kind, part in self.network.objectives.items()},  # type: ignore[operator]
        }
        (temporary / _CONFIG).write_text(json.dumps(facts, indent=1))
        save_file({k: v.detach().cpu().contiguous() for k, v in self.trained().items()}, temporary / _PARAMETERS)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)

    @classmethod
    def load(cls, folder: Path | str) -> CausalJudge:
        """Open a judge. Raises DataError for a damaged folder, ConfigError when its pretrained model is gone."""
        folder = Path(folder)
        try:
            facts = json.loads((folder / _CONFIG).read_text())
            if facts.get("type") != "causal":
                raise DataError(f"{folder}: holds no causal judge, config.json says type {facts.get('type')!r}")
            parameters = load_file(folder / _PARAMETERS)
            judge = cls(CausalConfig(**facts["model"]), seed=facts["seed"])
            judge._take(parameters, facts["facts"])
        except FileNotFoundError as error:
            raise DataError(f"{folder}: not a judge folder, {Path(error.filename or '').name} is missing") from None
        except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise DataError(f"{folder}: damaged judge: {' '.join(str(error).split())}") from None
        if judge.network.backbone.revision != facts["backbone_revision"]:
            raise DataError(
                f"{folder}: made for {judge.config.backbone.get('path')} at {facts['backbone_revision']}, but "
                f"{judge.network.backbone.revision} is there now"
            )
        if judge.model_id != facts["model_id"]:
            raise DataError(f"{folder}: the parameters are not those of {facts['model_id']}; one file was exchanged")
        return judge

    def _take(self, parameters: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        network = self.network
        for kind, part in network.objectives.items():
            if isinstance(part, Hop):
                names = facts[kind].get("goals", ())
                start = f"objectives.{kind}.goals."
                part.set_goals({text: parameters[f"{start}{number}"] for number, text in enumerate(names)})
            part.prepare(facts[kind])  # type: ignore[operator]
        missing, unexpected = network.load_state_dict(dict(parameters), strict=False)
        wanted = set(self.trained())
        lacking = [name for name in missing if name in wanted]
        if lacking or unexpected:
            raise ValueError(f"parameters do not fit: missing {lacking[:2]}, unexpected {unexpected[:2]}")


class EpisodeReading:
    """What the objectives read of one episode, block by block."""

    def __init__(self, episode: Trajectory, frames: np.ndarray, parts: Sequence[Objective]) -> None:
        self.frames = frames
        self._readers = [part.reader(episode.instruction) for part in parts]
        self._read: list[list[Readout]] = [[] for _ in self._readers]
        self._hidden: list[Tensor] = []

    def block(self, first: int, size: int) -> np.ndarray:
        """Frames of the block from the first-th on; the last frame where the episode has ended."""
        return self.frames[first : first + size] if first < len(self.frames) else self.frames[-1:]

    def append(self, hidden: Tensor) -> None:
        """Hidden states (n, dim) of the next frames; at most a block, none where the episode has ended."""
        if len(hidden):
            for reader, read in zip(self._readers, self._read, strict=True):
                read.append(reader.append(hidden))
            self._hidden.append(hidden.float().cpu())

    def finished(self) -> tuple[Readout, np.ndarray]:
        """Read-out and hidden states of all frames. The first objective that offers something decides."""
        merged: Readout = {}
        for reader, read in zip(self._readers, self._read, strict=True):
            merged = reader.whole({key: np.concatenate([part[key] for part in read]) for key in read[0]}) | merged
        hidden = {"hidden": torch.cat(self._hidden).numpy()}
        return spread(merged, self.frames), spread(hidden, self.frames)["hidden"]


def looked_at(frames: int, stride: int) -> np.ndarray:
    """Frames 0, stride, 2 stride, ... and the last: int64."""
    return np.unique(np.append(np.arange(0, frames, stride), frames - 1))


def spread(read: Readout, frames: np.ndarray) -> Readout:
    """Values of the frames looked at -> of all frames, interpolated; a step has the tri-state of the pair around it."""
    count = int(frames[-1]) + 1
    if len(frames) == count:
        return read
    everywhere, out = np.arange(count), {}
    for key, value in read.items():
        if key == "tri_state":
            out[key] = np.repeat(value, np.diff(frames), axis=0)
            continue
        columns = value.reshape(len(value), -1).T
        filled = np.stack([np.interp(everywhere, frames, column) for column in columns], 1)
        out[key] = filled.reshape(count, *value.shape[1:]).astype(np.float32)
    return out
