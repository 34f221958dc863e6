"""The compact judge's network: frames and an instruction in, an opinion at every frame out."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reward_models.heads import Heads
from reward_models.transformer import FrameTransformer, Past
from robo_rl.errors import ConfigError
from robo_rl.nets import MAX_BYTES, ConvTrunk, LanguagePool, TextEncoder

REFERENCES = 32  # instructions whose mean is the centre of all


@dataclass(frozen=True, kw_only=True)
class CompactJudgeConfig:
    """Sizes of the network and what it looks at. Raises ConfigError."""

    name: str = "compact"
    cameras: tuple[str, ...] = ()  # empty: those of the data it is first fitted to
    channels: int = 48  # of the convolutional trunk; a policy's trunk must have as many
    map_size: int = 8  # maps are pooled to map_size x map_size
    text_dim: int = 64
    queries: int = 16
    values: int = 12
    dim: int = 96
    layers: int = 2
    heads: int = 4
    window: int = 6  # frames a layer looks back, the present one included
    bins: int = 10  # of progress
    dropout: float = 0.1
    precision: str = "auto"  # of the convolutions: auto | bf16 | fp32

    def __post_init__(self) -> None:
        object.__setattr__(self, "cameras", tuple(self.cameras))
        if not self.name or "@" in self.name:
            raise ConfigError(f"judge.name must be a word without '@', got {self.name!r}")
        if self.dim % self.heads:
            raise ConfigError(f"judge.dim must be a multiple of heads, got {self.dim} and {self.heads}")
        for name, least in (
            ("channels", 1),
            ("map_size", 2),
            ("layers", 1),
            ("window", 1),
            ("bins", 3),
            ("queries", 2),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"judge.{name} must be at least {least}, got {getattr(self, name)}")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise ConfigError(f"judge.precision must be auto, bf16 or fp32, got {self.precision!r}")


def mixed_precision(precision: str) -> contextlib.AbstractContextManager[object]:
    """ "bf16", "fp32", or "auto": bfloat16 where the processor multiplies it in hardware."""
    fast = torch.cpu._is_avx512_bf16_supported()
    if precision == "fp32" or (precision == "auto" and not fast):
        return contextlib.nullcontext()
    return torch.autocast("cpu", torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the network says of a batch of clips."""

    hidden: Tensor  # (B, L, dim)
    progress: Tensor  # (B, L, bins), logits
    success: Tensor  # (B, L), logits, not yet calibrated
    tri_state: Tensor  # (B, L - 1, 3), logits


def distances(looked: Tensor, queries: int) -> Tensor:
    """How far apart the places are that a pool's queries look at: (N, out_dim) -> float32 (N, pairs of queries).

    Is the thing asked for at its goal, is the hand at the thing? A small network hardly learns distances from
    coordinates. With d in units of half a picture, the feature is log(.01 + d^2): it resolves what is near [O].
    """
    place = looked[:, : 2 * queries].float().view(-1, queries, 2)
    first, second = torch.triu_indices(queries, queries, 1, device=looked.device)
    return torch.log(0.01 + (place[:, first] - place[:, second]).square().sum(-1))


class Standardise(nn.Module):
    """Features minus their mean, over their deviation, both measured once: (N, dim) -> (N, dim).

    Places differ by little around a large mean; without this the first hundred steps only find the mean. Measured once,
    because statistics that follow the batches would differ between training and judging. What hardly varies stays
    small: its last bits are rounding.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def measure(self, x: Tensor) -> None:
        """Take mean and deviation from (N, dim)."""
        self.mean.copy_(x.mean(0))
        self.scale.copy_(1.0 / (x.std(0) + 0.03))

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() - self.mean) * self.scale


class JudgeNetwork(nn.Module):
    """Trunk and language pool for every camera, a frame token, the transformer, the heads."""

    map_scale: Tensor
    text_mean: Tensor
    reference: Tensor
    calibration: Tensor

    def __init__(self, config: CompactJudgeConfig, cameras: tuple[str, ...]) -> None:
        super().__init__()
        self.config, self.cameras = config, cameras
        channels = config.channels
        self.trunks = nn.ModuleList(ConvTrunk(channels) for _ in cameras)
        self.trunks.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as images lie in memory
        self.text = TextEncoder(config.text_dim)
        self.pools = nn.ModuleList(
            LanguagePool(channels, config.text_dim, config.queries, config.values) for _ in cameras
        )
        pairs = config.queries * (config.queries - 1) // 2
        seen = sum(pool.out_dim + pairs for pool in self.pools)  # type: ignore[misc, operator]
        self.fuse = nn.Sequential(
            Standardise(seen + config.text_dim),
            nn.Dropout(config.dropout),
            nn.Linear(seen + config.text_dim, 2 * config.dim),
            nn.GELU(),
            nn.Linear(2 * config.dim, config.dim),
        )
        self.asked = nn.Linear(config.text_dim, config.dim)
        self.transformer = FrameTransformer(config.dim, config.layers, config.heads, config.window, config.dropout)
        self.heads = Heads(config.dim, config.bins)
        self.register_buffer("map_scale", torch.ones(len(cameras)))  # brings every camera's maps to RMS 1
        self.register_buffer("text_mean", torch.zeros(config.text_dim))
        self.register_buffer("reference", torch.zeros(0, MAX_BYTES, dtype=torch.int64), persistent=False)
        self.register_buffer("calibration", torch.tensor([1.0, 0.0]))  # p = sigmoid(scale * logit + shift)

    def maps(self, frames: Mapping[str, Tensor]) -> Tensor:
        """camera -> uint8 (N, H, W, 3) to feature maps (N, cameras, channels, map_size, map_size), no language."""
        pooled = []
        for camera, trunk, scale in zip(self.cameras, self.trunks, self.map_scale, strict=True):
            image = frames[camera].permute(0, 3, 1, 2).float() / 255.0  # a view of channels-last memory
            pooled.append(F.adaptive_avg_pool2d(trunk(image), self.config.map_size) * scale)
        return torch.stack(pooled, 1)

    def read(self, instructions: Tensor) -> Tensor:
        """Byte tokens (B, bytes) -> (B, text_dim), centred on the reference instructions and normalised.

        Instructions share most of their letters, so their vectors differ little from a common one, which training
        would only push around. The centre is taken anew while training and kept for judging.
        """
        if self.training:
            text = self.text(torch.cat([instructions, self.reference]))
            text, known = text[: len(instructions)], text[len(instructions) :]
            centre = known.mean(0) if len(known) else self.text_mean
            self.text_mean.copy_(centre.detach())
        else:
            text, centre = self.text(instructions), self.text_mean
        return F.layer_norm((text - centre).float(), text.shape[-1:])

    def set_reference(self, instructions: Tensor) -> None:
        """Centre on at most `REFERENCES` different ones among (N, bytes); a single one is no centre."""
        different = torch.unique(instructions, dim=0)
        if len(different) > 1:
            places = torch.linspace(0, len(different) - 1, min(REFERENCES, len(different))).long()
            self.reference = different[places]
            with torch.no_grad():
                self.text_mean.copy_(self.text(self.reference).mean(0))

    def look(self, maps: Tensor, text: Tensor) -> Tensor:
        """What the pools find: (N, cameras, channels, s, s), (N, text_dim) -> float32 (N, seen).

        In float32 also where training uses bfloat16, whose steps of 1/256 are too coarse for places and distances.
        """
        with torch.autocast(maps.device.type, enabled=False):
            seen = [text.float()]
            for number, pool in enumerate(self.pools):
                looked = pool(maps[:, number].float(), text.float())
                seen += [looked, distances(looked, self.config.queries)]
            return torch.cat(seen, -1)

    def measure_look(self, maps: Tensor, instructions: Tensor) -> None:
        """Standardise what the pools find on sample frames: maps (N, ...), byte tokens (N, bytes) of their episodes."""
        with torch.no_grad():
            self.fuse[0].measure(self.look(maps, self.read(instructions)))  # type: ignore[operator]

    def frame_tokens(self, maps: Tensor, text: Tensor) -> Tensor:
        """(N, cameras, channels, s, s) maps, (N, text_dim) -> (N, dim)."""
        return self.fuse(self.look(maps, text))

    def judge(self, tokens: Tensor, text: Tensor, past: list[Past] | None = None) -> tuple[Outputs, list[Past]]:
        """Frame tokens (B, L, dim), text (B, text_dim) and the frames before -> outputs, the past for what follows."""
        hidden, past = self.transformer(tokens, self.asked(text), past)
        return Outputs(hidden, *self.heads(hidden)), past

    def forward(self, maps: Tensor, instructions: Tensor) -> Outputs:
        """Maps (B, L, cameras, channels, s, s) and byte tokens (B, bytes) of the instructions."""
        batch, length = maps.shape[:2]
        text = self.read(instructions)
        tokens = self.frame_tokens(maps.flatten(0, 1), text.repeat_interleave(length, 0))
        return self.judge(tokens.view(batch, length, -1), text)[0]

    def probability(self, success_logit: Tensor) -> Tensor:
        """Calibrated probability of success."""
        return torch.sigmoid(self.calibration[0] * success_logit.float() + self.calibration[1])
