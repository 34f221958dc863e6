"""Fit a CausalJudge: any backbone, any objectives, from time, outcome and what people labelled.

A fit is a function of (judge, episodes, settings, seed). With a `workdir` it writes a checkpoint now and then;
called again with the same arguments it goes on from there and ends with the same parameters.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from reward_models.after_fit import calibrated, goal_states, measure_unit, with_soft_outcomes
from reward_models.batches import ClipBatch, ClipBatches, ClipConfig
from reward_models.compact_backbone import CompactBackbone
from reward_models.counterfactual import from_language_model
from reward_models.features import CameraDropout, FrameSource, make_features
from reward_models.fit import FitResult, Progress, held_out_episodes
from reward_models.hop import Hop
from reward_models.hub import Source
from reward_models.judge import CausalJudge, CausalNetwork, looked_at
from reward_models.maps import measure, require_cameras
from reward_models.network import mixed_precision
from reward_models.targets import EpisodeTargets, HumanLabels, Part, episode_targets, thinned
from reward_models.training import TRUNK_RATE, one_cycle
from reward_models.tri_state import TriState
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.nets import tokenize
from robo_rl.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class CausalFitConfig:
    """How a causal judge is fitted. Raises ConfigError."""

    steps: int = 300  # gradient steps
    trunk_steps: int = 0  # of a compact backbone, with its image encoder, before those
    batch_size: int = 16  # clips
    accumulate: int = 1  # batches a gradient step
    learning_rate: float = 2e-3  # of heads, the reward token and a compact backbone
    language_learning_rate: float = 1e-4  # of a pretrained language model or its adapters
    vision_learning_rate: float = 1e-5  # of a vision tower; a compact backbone's trunk has 0.2 learning_rate
    weight_decay: float = 0.02
    clip_norm: float = 1.0
    slow_rate: float = 0.05  # slow <- rate * network + (1 - rate) * slow (eVTA0: 0.1) ...
    slow_every: int = 1  # ... every so many steps (eVTA0: 16)
    held_out: float = 0.15  # share of labelled episodes kept for the calibration; 0: not calibrated
    checkpoint_every: int = 50  # steps
    memory_gb: float = 2.0  # features of frames beyond this go to a temporary file
    disk_gb: float = 20.0  # features beyond this are computed anew for every batch
    soft_failures: bool = False  # outcomes of failures by how close to a success they look (eVTA0)
    rewrite_model: str = ""  # local causal language model that writes wrong instructions; "": none
    precision: str = "auto"  # of a compact backbone: auto | bf16 | fp32
    clips: ClipConfig = field(default_factory=ClipConfig)

    def __post_init__(self) -> None:
        if isinstance(self.clips, dict):
            try:
                object.__setattr__(self, "clips", ClipConfig(**self.clips))
            except TypeError as error:
                raise ConfigError(f"judge.fit.clips: {error}") from None
        for name in ("steps", "batch_size", "accumulate", "learning_rate", "slow_every", "checkpoint_every"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"judge.fit.{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.held_out < 0.6:
            raise ConfigError(f"judge.fit.held_out must lie in [0, 0.6), got {self.held_out}")


@dataclass(frozen=True)
class Phase:
    """Gradient steps first, ..., first + count - 1; with or without the image encoder."""

    name: str
    first: int
    count: int
    pixels: bool


def fit_causal(
    judge: CausalJudge,
    episodes: Sequence[Trajectory],
    config: CausalFitConfig | None = None,
    *,
    seed: int,
    workdir: Path | None = None,
    labels: HumanLabels | None = None,
    progress_callback: Progress | None = None,
    warm_start: bool = False,
) -> FitResult:
    """Fit `judge` in place. `progress_callback(step, steps)`.

    `warm_start` goes on from the present parameters: a compact backbone's image encoder stays as it is.

    Raises:
        DataError: no episodes, none that teaches anything, or a camera is missing.
        RewardError: the loss is not finite.
    """
    config = config or CausalFitConfig()
    if not episodes:
        raise DataError("a judge needs episodes; there are none")
    judge.build(tuple(episodes[0].images))
    for episode in episodes:
        require_cameras(episode, judge.network.backbone.cameras)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # dropout
        fitting = _CausalFitting(judge, episodes, config, seed, labels, workdir)
        fitting.warm_start = warm_start
        fitting.report = progress_callback or fitting.report
        return fitting.run()


class _CausalFitting:
    """One fit: what is held out, the labels of the rest, the phases, the checkpoints."""

    def __init__(
        self,
        judge: CausalJudge,
        episodes: Sequence[Trajectory],
        config: CausalFitConfig,
        seed: int,
        labels: HumanLabels | None,
        workdir: Path | None,
    ) -> None:
        self.judge, self.network, self.config, self.seed = judge, judge.network, config, seed
        self.episodes, self.checkpoint = episodes, None if workdir is None else workdir / "checkpoint.pt"
        has_success = self.network.success() is not None
        self.held = held_out_episodes(episodes, config.held_out if has_success else 0.0, seed)
        self.numbers = np.setdiff1d(np.arange(len(episodes)), self.held)
        self.seen = [episodes[number] for number in self.numbers]
        self.frames = [looked_at(len(episode) + 1, judge.config.stride) for episode in self.seen]
        own = labels.select(self.numbers) if labels is not None else None
        full = episode_targets(self.seen, own)
        if config.soft_failures:
            full = with_soft_outcomes(judge, self.seen, full)
        self.targets = [thinned(t, frames) for t, frames in zip(full, self.frames, strict=True)]
        _require_teaching(self.targets)
        self.preferences = self._compared(own)
        self.rewrites = self._rewritten()
        self.report: Progress = lambda step, steps: None
        self.warm_start = False
        self.result = FitResult(num_episodes=len(self.seen), num_frames=sum(len(f) for f in self.frames))
        self.slow: dict[str, Tensor] = {}
        self._resumed: dict[str, Any] | None = None

    def run(self) -> FitResult:
        """The phases in order, then what is measured on the fitted network."""
        backbone = self.network.backbone
        if isinstance(backbone, CompactBackbone):
            if self.warm_start:
                backbone.network.set_reference(tokenize([episode.instruction for episode in self.seen]))
            else:
                measure(backbone.network, self.seen)
        for kind in self.network.parts():
            kind.calibrate(1.0, 0.0)
        if self.checkpoint is not None and self.checkpoint.exists():
            self._resumed = torch.load(self.checkpoint, weights_only=True)
        for phase in self._phases():
            self._timed(phase.name, functools.partial(self._run, phase))
        self.network.requires_grad_(False).eval()
        self._timed("calibration", self._finish)
        return self.result

    def _phases(self) -> list[Phase]:
        backbone, config = self.network.backbone, self.config
        if not isinstance(backbone, CompactBackbone):
            return [Phase("fit", 0, config.steps, bool(backbone.trains_vision))]
        trunk = 0 if self.warm_start else config.trunk_steps
        return [Phase("trunk", 0, trunk, True), Phase("fit", trunk, config.steps, False)]

    def _timed(self, name: str, work: Callable[[], None]) -> None:
        began = time.monotonic()
        work()
        self.result.seconds[name] = time.monotonic() - began

    def _compared(self, labels: HumanLabels | None) -> list[tuple[Part, Part]]:
        """Preferences with frames as places among those that are looked at."""

        def thin(part: Part) -> Part:
            episode, first, last = part
            frames = self.frames[episode]
            stop = -1 if last < 0 else int(np.searchsorted(frames, last, side="right")) - 1
            return episode, min(int(np.searchsorted(frames, first)), len(frames) - 2), stop

        return [] if labels is None else [(thin(better), thin(worse)) for better, worse in labels.preferences]

    def _rewritten(self) -> dict[str, list[str]]:
        """Wrong instructions by the language model that the settings name; {} without one."""
        if not self.config.rewrite_model:
            return {}
        source = Source(path=self.config.rewrite_model)
        return from_language_model([episode.instruction for episode in self.seen], source, seed=self.seed)

    # --- gradient steps --------------------------------------------------------------------------------------

    def _run(self, phase: Phase) -> None:
        network, backbone, config = self.network, self.network.backbone, self.config
        network.requires_grad_(True)
        backbone.may_train()
        if isinstance(backbone, CompactBackbone):
            backbone.network.trunks.requires_grad_(phase.pixels)
        groups = parameter_groups(network, config)
        optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98))
        total = phase.first + phase.count if phase.name == "fit" else phase.count + config.steps
        self.slow = {name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad}
        start = phase.first
        if self._resumed is not None:
            if self._resumed["step"] >= phase.first + phase.count and phase.name != "fit":
                return  # a later phase's checkpoint: its parameters are loaded there
            start = self._continue(phase, optimiser)
        source = FrameSource(self.seen, self.frames, backbone.cameras)
        plain = make_features(backbone, source, config, pixels=phase.pixels)
        black = CameraDropout(backbone, source)

        def features(batch: ClipBatch) -> Tensor:
            return black(plain(batch.rows), batch.dropped)

        batches = self._batches(source)
        network.train()
        for step in range(start, phase.first + phase.count):
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * one_cycle(step, total)
            self._step(step, batches, features, optimiser)
            if (step + 1) % config.slow_every == 0:
                self._follow()
            self.report(step + 1, total)
            if (step + 1) % config.checkpoint_every == 0 or step + 1 == phase.first + phase.count:
                self._save(phase, step + 1, optimiser)
        network.eval()

    def _batches(self, source: FrameSource) -> ClipBatches:
        return ClipBatches(
            self.seen,
            self.targets,
            source.first,
            self.config.clips,
            batch_size=self.config.batch_size,
            seed=self.seed,
            preferences=self.preferences,
            rewrites=self.rewrites,
        )

    def _step(
        self,
        step: int,
        batches: ClipBatches,
        features: Callable[[ClipBatch], Tensor],
        optimiser: torch.optim.Optimizer,
    ) -> None:
        config, sums = self.config, {}  # type: CausalFitConfig, dict[str, float]
        optimiser.zero_grad(set_to_none=True)
        for part in range(config.accumulate):
            batch = batches(step * config.accumulate + part)
            losses = self._losses(batch, features(batch))
            total = torch.stack(list(losses.values())).sum()
            if not torch.isfinite(total):
                raise RewardError(f"judge: the loss is {float(total)} at step {step}; lower judge.fit.learning_rate")
            (total / config.accumulate).backward()
            for name, loss in {"total": total, **losses}.items():
                sums[name] = sums.get(name, 0.0) + float(loss.detach()) / config.accumulate
        nn.utils.clip_grad_norm_([p for p in self.network.parameters() if p.requires_grad], config.clip_norm)
        optimiser.step()
        for name, value in sums.items():
            self.result.curves.setdefault(name, []).append(value)

    def _losses(self, batch: ClipBatch, features: Tensor) -> dict[str, Tensor]:
        network = self.network
        with self._autocast():
            slow = self._slow_success(features, batch) if any(part.needs_slow for part in network.parts()) else None
            hidden = network(features, batch.texts).float()
        batch = batch.to(hidden.device)
        losses: dict[str, Tensor] = {}
        for part in network.parts():
            losses |= part.loss(hidden, batch, slow)
        return losses

    def _autocast(self) -> Any:
        compact = isinstance(self.network.backbone, CompactBackbone)
        return mixed_precision(self.config.precision if compact else "fp32")

    @torch.no_grad()
    def _slow_success(self, features: Tensor, batch: ClipBatch) -> Tensor:
        """Success probabilities of the slow copy, (B, L)."""
        self.network.eval()
        hidden = functional_call(self.network, self.slow, (features, batch.texts)).float()
        name, part = next((n, p) for n, p in self.network.objectives.items() if p.needs_slow)
        own = {k.removeprefix(f"objectives.{name}."): v for k, v in self.slow.items() if f"objectives.{name}." in k}
        logits = functional_call(_SuccessLogits(part), {f"part.{k}": v for k, v in own.items()}, (hidden,))
        self.network.train()
        return torch.sigmoid(logits)

    @torch.no_grad()
    def _follow(self) -> None:
        for name, parameter in self.network.named_parameters():
            if name in self.slow:
                self.slow[name].lerp_(parameter.detach(), self.config.slow_rate)

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _save(self, phase: Phase, step: int, optimiser: Any) -> None:
        if self.checkpoint is None:
            return
        facts = {
            "phase": phase.name,
            "step": step,
            "network": self.judge.trained(),
            "slow": self.slow,
            "optimiser": optimiser.state_dict(),
            "random": torch.get_rng_state(),
            "curves": self.result.curves,
        }
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.checkpoint.with_suffix(f".partial-{os.getpid()}")
        torch.save(facts, temporary)
        os.replace(temporary, self.checkpoint)

    def _continue(self, phase: Phase, optimiser: Any) -> int:
        facts, self._resumed = self._resumed or {}, None
        self.network.load_state_dict(facts["network"], strict=False)
        self.result.curves = facts["curves"]
        torch.set_rng_state(facts["random"])
        if facts["phase"] == phase.name:
            self.slow = facts["slow"]
            optimiser.load_state_dict(facts["optimiser"])
            return int(facts["step"])
        self.slow = {name: p.detach().clone() for name, p in self.network.named_parameters() if p.requires_grad}
        return phase.first

    # --- after the gradient steps --------------------------------------------------------------------------------

    def _finish(self) -> None:
        for part in self.network.parts():
            if isinstance(part, Hop):
                part.set_goals(goal_states(self.judge, self.seen))
            if isinstance(part, TriState):
                measure_unit(self.judge, part, self.seen)
        if len(self.held):
            self.result.calibration = calibrated(self.judge, [self.episodes[number] for number in self.held])


class _SuccessLogits(nn.Module):
    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def forward(self, hidden: Tensor) -> Tensor:
        return self.part.success_logits(hidden)


def parameter_groups(network: CausalNetwork, config: CausalFitConfig) -> list[dict[str, Any]]:
    """Learning rates by what a parameter belongs to; matrices decay, biases, norms and tokens do not."""
    vision = ("visual.", "vision_tower.", "vision_model.")
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        rate = config.learning_rate
        if any(part in name for part in vision):
            rate = config.vision_learning_rate
        elif ".trunks." in name:
            rate = TRUNK_RATE * config.learning_rate
        elif name.startswith("backbone.model."):
            rate = config.language_learning_rate
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    return [
        {"params": found, "lr": rate, "peak": rate, "weight_decay": decay} for (rate, decay), found in groups.items()
    ]


def _require_teaching(targets: Sequence[EpisodeTargets]) -> None:
    if all(np.isnan(t.progress).all() and np.isnan(t.outcome) for t in targets):
        raise DataError(f"none of {len(targets)} episodes has an outcome or a label: nothing can be learned from them")
