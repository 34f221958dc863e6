"""Fit a PreferenceJudge to pairs of frames: Bradley-Terry, cross-entropy on sigmoid(r(b) - r(a)) (METHODS 7).

Ties are dropped, as in RL-VLM-F, or taken as a target of 1/2 (`ties: half`); unsure and abstained pairs are dropped.
Each pair counts by its confidence [O]. Some pairs are held out to measure how often the order is right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reward_models.gradient_steps import Report, Steps, gradient_steps
from reward_models.maps import require_cameras
from reward_models.preference import PreferenceJudge
from reward_models.preference_pairs import FramePair
from robo_rl.errors import ConfigError, DataError
from robo_rl.types import Trajectory

TARGETS = {"a": 0.0, "b": 1.0, "tie": 0.5}  # probability that b is nearer to the goal
CHUNK = 64  # pictures that a frozen encoder sees together


@dataclass(frozen=True, kw_only=True)
class PreferenceFitConfig:
    """How a preference judge is fitted. Raises ConfigError."""

    steps: int = 300
    batch_size: int = 32  # pairs
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    ties: str = "drop"  # drop | half
    held_out: float = 0.1  # share of pairs that are not fitted to
    checkpoint_every: int = 50  # steps

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "learning_rate", "clip_norm", "checkpoint_every"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"judge.fit.{name} must be positive, got {getattr(self, name)}")
        if self.ties not in ("drop", "half"):
            raise ConfigError(f"judge.fit.ties must be drop or half, got {self.ties!r}")
        if not 0.0 <= self.held_out < 0.6:
            raise ConfigError(f"judge.fit.held_out must lie in [0, 0.6), got {self.held_out}")


@dataclass(kw_only=True)
class PreferenceFitResult:
    """What happened while fitting."""

    num_pairs: int  # that gave gradients
    num_dropped: int  # ties, unsure, abstained
    curves: dict[str, list[float]] = field(default_factory=dict)  # "total", "preference"
    held_out_pairs: int = 0  # without ties
    held_out_accuracy: float = float("nan")  # share in the right order; equal rewards are wrong


def fit_preference(
    judge: PreferenceJudge,
    episodes: Sequence[Trajectory],
    pairs: Sequence[FramePair],
    config: PreferenceFitConfig | None = None,
    *,
    seed: int,
    workdir: Path | None = None,
    progress_callback: Report | None = None,
) -> PreferenceFitResult:
    """Fit `judge` in place; with a `workdir`, go on from its checkpoint. `progress_callback(step, steps)`.

    Raises DataError when no pair has a verdict, or a camera is missing.
    """
    config = config or PreferenceFitConfig()
    taught = [p for p in pairs if p.preferred in ("a", "b") or (p.preferred == "tie" and config.ties == "half")]
    if not taught:
        raise DataError(f"a preference judge needs pairs with a verdict; none of {len(pairs)} has one")
    judge.build(judge.config.cameras or tuple(episodes[taught[0].a].images))
    order = np.random.default_rng([seed, 1]).permutation(len(taught))
    kept_back = int(config.held_out * len(taught))
    held, own = [taught[n] for n in order[:kept_back]], [taught[n] for n in order[kept_back:]]
    rewards = _Rewards(judge, episodes, taught)
    network = judge.network.train().requires_grad_(True)

    def losses_at(step: int) -> dict[str, Tensor]:
        rng = np.random.default_rng([seed, 2, step])
        chosen = [own[n] for n in rng.integers(len(own), size=config.batch_size)]
        return {"preference": bradley_terry(*rewards(chosen), chosen)}

    curves = gradient_steps(
        dict(network.named_parameters()),
        losses_at,
        Steps(
            count=config.steps,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            checkpoint_every=config.checkpoint_every,
        ),
        seed=seed,
        checkpoint=None if workdir is None else workdir / "checkpoint.pt",
        what=_name(judge, episodes, taught, config, seed),
        report=progress_callback,
    )
    network.requires_grad_(False).eval()
    judge.measure([episodes[n] for n in sorted({n for pair in taught for n in (pair.a, pair.b)})])
    result = PreferenceFitResult(num_pairs=len(own), num_dropped=len(pairs) - len(taught), curves=curves)
    _measure(result, rewards, [pair for pair in held if pair.preferred != "tie"])
    return result


def bradley_terry(reward_a: Tensor, reward_b: Tensor, pairs: Sequence[FramePair]) -> Tensor:
    """Cross-entropy of sigmoid(r(b) - r(a)) with the answers, weighted by their confidence: (N,), (N,) -> scalar."""
    device = reward_a.device
    target = torch.tensor([TARGETS[pair.preferred] for pair in pairs], device=device)
    weight = torch.tensor([pair.confidence for pair in pairs], device=device)
    losses = F.binary_cross_entropy_with_logits(reward_b - reward_a, target, reduction="none")
    return (losses * weight).sum() / weight.sum().clamp(min=1e-8)


class _Rewards:
    """Rewards of both frames of pairs, with a gradient to the reward network."""

    def __init__(self, judge: PreferenceJudge, episodes: Sequence[Trajectory], pairs: Sequence[FramePair]) -> None:
        self.judge, self.episodes = judge, episodes
        self.shown = sorted({frame for pair in pairs for frame in (pair.shown[:2], pair.shown[2:])})
        for number in sorted({number for number, _ in self.shown}):
            require_cameras(episodes[number], judge.config.cameras)
        self.place = {frame: n for n, frame in enumerate(self.shown)}
        self.vectors = None if judge.encoder is None else self._encoded()

    def __call__(self, pairs: Sequence[FramePair]) -> tuple[Tensor, Tensor]:
        frames = [pair.shown[:2] for pair in pairs] + [pair.shown[2:] for pair in pairs]
        if self.vectors is not None:
            rows = torch.tensor([self.place[frame] for frame in frames])
            found = self.judge.network(self.vectors[0][rows], self.vectors[1][rows])
        else:
            pixels = torch.stack([self.judge.pixels(self._pictures(*frame)) for frame in frames])
            found = self.judge.network(pixels, [self.episodes[number].instruction for number, _ in frames])
        one, other = found.float().split(len(pairs))
        return one, other

    def _pictures(self, number: int, frame: int) -> list[np.ndarray]:
        return [self.episodes[number].images[camera][frame] for camera in self.judge.config.cameras]

    @torch.no_grad()
    def _encoded(self) -> tuple[Tensor, Tensor]:
        """Vectors of every frame that is in a pair, (N, cameras, D), and of its instruction, (N, D); each once."""
        encoder, cameras = self.judge.encoder, len(self.judge.config.cameras)
        if encoder is None:
            raise ConfigError("this judge has no encoder")
        parts = []
        for first in range(0, len(self.shown), CHUNK):
            chunk = self.shown[first : first + CHUNK]
            pictures = [picture for frame in chunk for picture in self._pictures(*frame)]
            parts.append(encoder.pictures(pictures).view(len(chunk), cameras, -1).cpu())
        texts = [self.episodes[number].instruction for number, _ in self.shown]
        distinct = list(dict.fromkeys(texts))
        vectors = encoder.texts(distinct).cpu()
        return torch.cat(parts), vectors[torch.tensor([distinct.index(text) for text in texts])]


@torch.no_grad()
def _measure(result: PreferenceFitResult, rewards: _Rewards, pairs: Sequence[FramePair]) -> None:
    right = 0
    for first in range(0, len(pairs), CHUNK):
        chunk = pairs[first : first + CHUNK]
        one, other = rewards(chunk)
        better = (other > one).tolist(), (one > other).tolist()
        right += sum((b if pair.preferred == "b" else a) for pair, b, a in zip(chunk, *better, strict=True))
    result.held_out_pairs = len(pairs)
    if pairs:
        result.held_out_accuracy = right / len(pairs)


def _name(
    judge: PreferenceJudge,
    episodes: Sequence[Trajectory],
    pairs: Sequence[FramePair],
    config: PreferenceFitConfig,
    seed: int,
) -> str:
    """Which fit a checkpoint belongs to."""
    named = [(episodes[p.a].episode_id, p.frame_a, episodes[p.b].episode_id, p.frame_b, p.preferred) for p in pairs]
    facts = [judge.model_id, asdict(config), seed, named, [pair.confidence for pair in pairs]]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
