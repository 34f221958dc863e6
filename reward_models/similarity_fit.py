"""Fine-tune a SimilarityJudge so that an instruction is like the ends of its successes and unlike what else there is.

Contrastive (InfoNCE) over pairs of (clip, instruction) as in CLIP and CLIP4MC. Ours [O]: the clip is the last part of
a success; besides the other pairs of the batch, its negatives are the most alike instructions of the dataset that
certainly ask for something else, and, for the instruction, the beginnings of the same episodes: what has changed by
the end is what the instruction is about. Pairs that may ask for the same thing are no negatives.
"""

from __future__ import annotations

import hashlib
import itertools
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
from reward_models.similarity import SimilarityJudge
from reward_models.wording import certainly_different, likeness
from robo_rl.errors import ConfigError, DataError
from robo_rl.types import Trajectory

Ask = tuple[str, str]
"""A task's name and an instruction."""


@dataclass(frozen=True, kw_only=True)
class SimilarityFitConfig:
    """How a similarity judge is fitted. Raises ConfigError."""

    steps: int = 200  # gradient steps
    batch_size: int = 16  # pairs
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    vision_layers: int = 1  # last layers of the vision tower that are trained; -1: all of it
    text_layers: int = 1
    lora_rank: int = 0  # adapters in all layers of both towers, besides
    clip_frames: int = 4  # frames of a clip, spread over ...
    tail: float = 0.25  # ... this last share of an episode; a beginning is as long
    hard_negatives: int = 2  # other instructions a pair
    beginnings: bool = True  # episodes' beginnings are negatives, too
    calibrate: bool = True  # map first frames of successes to 0 and last ones to 1 afterwards
    checkpoint_every: int = 50  # steps

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "learning_rate", "clip_frames", "clip_norm", "checkpoint_every"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"judge.fit.{name} must be positive, got {getattr(self, name)}")
        if not 0.0 < self.tail <= 0.5:
            raise ConfigError(f"judge.fit.tail must lie in (0, 0.5], got {self.tail}")
        if self.hard_negatives < 0 or self.lora_rank < 0:
            raise ConfigError("judge.fit: hard_negatives and lora_rank must not be negative")


@dataclass(kw_only=True)
class SimilarityFitResult:
    """What happened while fitting."""

    num_episodes: int
    curves: dict[str, list[float]] = field(default_factory=dict)  # "total", "to_text", "to_video"
    calibration: str = ""  # why progress is not calibrated; "" where it is


def fit_similarity(
    judge: SimilarityJudge,
    episodes: Sequence[Trajectory],
    config: SimilarityFitConfig | None = None,
    *,
    seed: int,
    workdir: Path | None = None,
    progress_callback: Report | None = None,
) -> SimilarityFitResult:
    """Fit `judge` in place; with a `workdir`, go on from its checkpoint. `progress_callback(step, steps)`.

    A judge of demonstrations takes those among `episodes` anew afterwards. Raises DataError when no episode
    succeeded, ConfigError when the model is not in fp32 or was fitted before with another choice of parameters.
    """
    config = config or SimilarityFitConfig()
    successes = [episode for episode in episodes if episode.success]
    if not successes:
        raise DataError(f"a similarity judge learns from successes; none of {len(episodes)} episodes is one")
    if judge.config.dtype != "fp32":
        raise ConfigError(f"judge.dtype must be fp32 to fit, got {judge.config.dtype!r}; small steps vanish in it")
    part = {"vision_layers": config.vision_layers, "text_layers": config.text_layers, "lora_rank": config.lora_rank}
    if judge.tuned and {key: judge.tuned[key] for key in part} != part:
        raise ConfigError(f"judge.fit: fitted before with {judge.tuned}; fit a new judge, or keep that choice")
    model = judge.encoder.model
    if judge.tuned:
        parameters = dict(model.named_parameters())
        chosen = {name: parameters[name].requires_grad_(True) for name in judge.tuned["parameters"]}
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # adapters
            chosen = judge.encoder.train_part(**part)
    batches = _Pairs(judge, successes, config, seed)
    model.train()
    curves = gradient_steps(
        chosen,
        batches.losses,
        Steps(
            count=config.steps,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            clip_norm=config.clip_norm,
            checkpoint_every=config.checkpoint_every,
        ),
        seed=seed,
        checkpoint=None if workdir is None else workdir / "checkpoint.pt",
        what=_name(judge, successes, config, seed),
        report=progress_callback,
    )
    model.requires_grad_(False).eval()
    judge.tuned = {**part, "parameters": sorted(chosen)}
    result = SimilarityFitResult(num_episodes=len(successes), curves=curves)
    if judge.config.target == "demonstration":
        judge.demonstrate(successes)
    result.calibration = _calibrated(judge, successes) if config.calibrate else "not asked for"
    return result


def _calibrated(judge: SimilarityJudge, successes: Sequence[Trajectory]) -> str:
    try:
        judge.calibrate(successes)
    except DataError as error:
        return str(error)
    return ""


def _name(judge: SimilarityJudge, episodes: Sequence[Trajectory], config: SimilarityFitConfig, seed: int) -> str:
    """Which fit a checkpoint belongs to."""
    facts = [judge.model_id, asdict(config), seed, [(e.episode_id, e.instruction, len(e)) for e in episodes]]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class _Pairs:
    """Batches of clips with instructions, and their losses."""

    def __init__(
        self, judge: SimilarityJudge, episodes: Sequence[Trajectory], config: SimilarityFitConfig, seed: int
    ) -> None:
        self.judge, self.episodes, self.config, self.seed = judge, episodes, config, seed
        self.cameras = tuple(judge.config.cameras) or tuple(episodes[0].images)
        for episode in episodes:
            require_cameras(episode, self.cameras)
        self.of_ask: dict[Ask, list[int]] = {}
        for number, episode in enumerate(episodes):
            self.of_ask.setdefault((episode.task, episode.instruction), []).append(number)
        self.asks = sorted(self.of_ask)
        self.alike = {ask: self._most_alike(ask) for ask in self.asks}
        contrasted = any(_different(one, other) for one, other in itertools.combinations(self.asks, 2))
        if not config.beginnings and not contrasted:
            raise DataError("no two instructions certainly ask for different things; set judge.fit.beginnings")

    def _most_alike(self, ask: Ask) -> list[Ask]:
        """Other instructions that certainly ask for something else, the most alike first."""
        others = [other for other in self.asks if _different(ask, other)]
        return sorted(others, key=lambda other: -likeness(ask[1], other[1]))[: 2 * self.config.hard_negatives]

    def losses(self, step: int) -> dict[str, Tensor]:
        """Cross entropies of naming the instruction of a clip, and of finding the clip of an instruction."""
        rng = np.random.default_rng([self.seed, step])
        own = [self.asks[n] for n in rng.integers(len(self.asks), size=self.config.batch_size)]
        chosen = [self.episodes[rng.choice(self.of_ask[ask])] for ask in own]
        ends, starts = self._clips(chosen, rng)
        texts = list(dict.fromkeys([*own, *self._hard(own, rng)]))
        named = self.judge.encoder.texts([self._text(ask) for ask in texts])
        scale = self.judge.encoder.logit_scale
        place = torch.tensor([texts.index(ask) for ask in own])
        allowed = torch.tensor([[_different(a, b) for b in texts] for a in own])
        allowed[torch.arange(len(own)), place] = True
        to_text = F.cross_entropy(_only(scale * ends @ named.T, allowed), place.to(ends.device))
        videos = torch.tensor([[_different(a, b) for b in own] for a in own])
        videos.fill_diagonal_(True)
        logits = scale * named[place] @ ends.T
        if starts is not None:
            early = torch.tensor([[a == b or _different(a, b) for b in own] for a in own])
            logits, videos = torch.cat([logits, scale * named[place] @ starts.T], 1), torch.cat([videos, early], 1)
        to_video = F.cross_entropy(_only(logits, videos), torch.arange(len(own), device=ends.device))
        return {"to_text": 0.5 * to_text, "to_video": 0.5 * to_video}

    def _text(self, ask: Ask) -> str:
        return self.judge.config.prompt.replace("{instruction}", ask[1])

    def _hard(self, own: Sequence[Ask], rng: np.random.Generator) -> list[Ask]:
        count = self.config.hard_negatives
        picked = []
        for ask in own:
            near = self.alike[ask]
            picked += [near[n] for n in rng.permutation(len(near))[:count]]
        return picked

    def _clips(self, episodes: Sequence[Trajectory], rng: np.random.Generator) -> tuple[Tensor, Tensor | None]:
        """Vectors (B, D) of the episodes' ends, and of their beginnings: means over cameras of unit vectors."""
        frames = []
        for episode in episodes:
            long = self.config.tail * len(episode)
            shares = np.sort(rng.random((2, self.config.clip_frames)), 1)
            shares[0, -1], shares[1, 0] = 1.0, 0.0  # the last frame and the first one are always there
            frames.append(np.round([len(episode) - long + long * shares[0], long * shares[1]]).astype(np.int64))
        kinds = (0, 1) if self.config.beginnings else (0,)
        pictures = [
            episode.images[camera][frame]
            for kind in kinds
            for episode, of_episode in zip(episodes, frames, strict=True)
            for camera in self.cameras
            for frame in of_episode[kind]
        ]
        shape = (len(kinds), len(episodes), len(self.cameras), self.config.clip_frames, -1)
        vectors = F.normalize(self.judge.encoder.pictures(pictures).view(shape).mean(3), dim=-1).mean(2)
        return vectors[0], vectors[1] if len(kinds) > 1 else None


def _different(one: Ask, other: Ask) -> bool:
    return certainly_different(one[1], other[1], one[0], other[0])


def _only(logits: Tensor, allowed: Tensor) -> Tensor:
    return logits.masked_fill(~allowed.to(logits.device), -1e4)
