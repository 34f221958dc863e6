"""Fit a CompactJudge to episodes: from time and outcome, never from the simulator's ground truth.

Success follows eVTA0 (METHODS 2.3) with the generalisation of 2.7; rewinds and wrong instructions follow ReWiND,
progress bins follow Robometer. Ours [O]: the mixture of parts and its sizes, progress counted back from the end,
clips that stand still, calibration on held-out episodes. The trunk is trained end to end first unless a policy's
was given; then its maps are computed once and everything after them is trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from reward_models.batches import ClipBatch, ClipBatches, ClipConfig
from reward_models.calibrate import Calibration, fit_calibration
from reward_models.compact import CompactJudge
from reward_models.losses import LossConfig
from reward_models.maps import MapCache, measure, require_cameras
from reward_models.network import JudgeNetwork
from reward_models.targets import episode_targets
from reward_models.training import Schedule, train, trunk_maps
from robo_rl.errors import ConfigError, DataError
from robo_rl.nets import tokenize
from robo_rl.types import Controller, Trajectory

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How a judge is fitted. Raises ConfigError."""

    steps: int = 300  # gradient steps on cached maps
    trunk_steps: int = 150  # steps with the trunk before those, where no trained trunk was given
    batch_size: int = 24  # clips
    trunk_batch_size: int = 12  # clips of a step with the trunk
    learning_rate: float = 3e-3  # one cycle: warm-up, then cosine to 0
    warm_learning_rate: float = 1e-3  # of a warm start
    weight_decay: float = 0.02
    clip_norm: float = 1.0
    target_rate: float = 0.05  # of the slow copy: theta- <- rate theta + (1 - rate) theta-, every step
    held_out: float = 0.15  # share of labelled episodes kept for the calibration; 0: not calibrated

    precision: str = "auto"  # of training: auto | bf16 | fp32
    memory_gb: float = 2.0  # maps beyond this go to a temporary file
    loss: LossConfig = field(default_factory=LossConfig)
    clips: ClipConfig = field(default_factory=ClipConfig)

    def __post_init__(self) -> None:
        for name, kind in (("loss", LossConfig), ("clips", ClipConfig)):
            value = getattr(self, name)
            if isinstance(value, dict):
                try:
                    object.__setattr__(self, name, kind(**value))
                except TypeError as error:
                    raise ConfigError(f"judge.fit.{name}: {error}") from None
        for name in ("steps", "batch_size", "trunk_batch_size", "learning_rate", "warm_learning_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"judge.fit.{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.held_out < 0.6:
            raise ConfigError(f"judge.fit.held_out must lie in [0, 0.6), got {self.held_out}")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise ConfigError(f"judge.fit.precision must be auto, bf16 or fp32, got {self.precision!r}")


@dataclass(kw_only=True)
class FitResult:
    """What happened while fitting."""

    num_episodes: int  # that gave gradients
    num_frames: int
    curves: dict[str, list[float]] = field(default_factory=dict)  # "total", "success", ...: one value a step
    calibration: Calibration = field(default_factory=Calibration)
    seconds: dict[str, float] = field(default_factory=dict)  # "trunk", "maps", "head", "calibration"


def fit(
    judge: CompactJudge,
    episodes: Sequence[Trajectory],
    config: FitConfig | None = None,
    *,
    seed: int,
    progress_callback: Progress | None = None,
    warm_start: bool = False,
) -> FitResult:
    """Fit `judge` in place; the same seed and episodes give the same judge.

    `warm_start` goes on from the present parameters (the round before, METHODS 2.7) with a smaller learning rate; the
    slow copy starts from them. `progress_callback(step, steps)`.

    Raises:
        DataError: no episodes, none that succeeded, or a camera is missing.
        RewardError: the loss is not finite.
    """
    config = config or FitConfig()
    if not any(episode.success for episode in episodes):
        raise DataError(f"a judge needs episodes that succeeded; none of {len(episodes)} did")
    judge.build(tuple(episodes[0].images))
    for episode in episodes:
        require_cameras(episode, judge.network.cameras)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # dropout
        return _Fitting(judge, episodes, config, seed, progress_callback, warm_start).run()


class _Fitting:
    """One fit: what is held out, the labels of the rest, and the phases."""

    def __init__(
        self,
        judge: CompactJudge,
        episodes: Sequence[Trajectory],
        config: FitConfig,
        seed: int,
        progress_callback: Progress | None,
        warm_start: bool,
    ) -> None:
        self.judge, self.episodes, self.config, self.seed = judge, episodes, config, seed
        self.network = judge.network
        self.warm_start = warm_start
        self.held = held_out_episodes(episodes, config.held_out, seed)
        self.numbers = np.setdiff1d(np.arange(len(episodes)), self.held)
        self.seen = [episodes[number] for number in self.numbers]
        self.targets = episode_targets(self.seen)
        self.trunk_steps = 0 if judge.trunk_ready else config.trunk_steps
        self._report = progress_callback or (lambda step, steps: None)
        self._done = 0
        frames = sum(len(episode) + 1 for episode in self.seen)
        self.result = FitResult(num_episodes=len(self.seen), num_frames=frames)

    def run(self) -> FitResult:
        """The phases in order: trunk, maps, everything on the maps, calibration."""
        set_calibration(self.network, Calibration())
        if self.warm_start:
            self.network.set_reference(tokenize([episode.instruction for episode in self.seen]))
        else:
            measure(self.network, self.seen)
        if self.trunk_steps:
            self._timed("trunk", self._train_trunk)
        self.network.trunks.requires_grad_(False)
        cache = self._timed("maps", self._compute_maps)
        self._timed("head", lambda: self._train_head(cache))
        self._timed("calibration", lambda: self._calibrate(cache))
        return self.result

    def _timed[T](self, name: str, phase: Callable[[], T]) -> T:
        began = time.monotonic()
        out = phase()
        self.result.seconds[name] = time.monotonic() - began
        return out

    def _train_trunk(self) -> None:
        first = np.cumsum([0] + [len(episode) + 1 for episode in self.seen[:-1]])
        maps = trunk_maps(self.network, self.seen, first)
        self._train(first, maps, self.trunk_steps, self.config.trunk_batch_size)
        self.judge.trunk_ready = True

    def _compute_maps(self) -> MapCache:
        return MapCache(self.network, self.episodes, memory_gb=self.config.memory_gb)

    def _train_head(self, cache: MapCache) -> None:
        first = cache.first[self.numbers]
        self._train(first, lambda batch: cache.gather(batch.rows), self.config.steps, self.config.batch_size)

    def _train(self, first_row: np.ndarray, maps: Callable[[ClipBatch], Tensor], steps: int, batch_size: int) -> None:
        config, done = self.config, self._done
        total = self.trunk_steps + config.steps
        rate = config.warm_learning_rate if self.warm_start else config.learning_rate
        batches = ClipBatches(
            self.seen,
            self.targets,
            first_row,
            config.clips,
            batch_size=batch_size,
            seed=self.seed,
        )
        train(
            self.network,
            batches,
            maps,
            config,
            schedule=Schedule(first=done, count=steps, total=total, rate=rate),
            curves=self.result.curves,
            report=lambda step: self._report(step, total),
        )
        self._done += steps

    def _calibrate(self, cache: MapCache) -> None:
        held = [self.episodes[number] for number in self.held]
        logits = [success_logits(self.network, cache, n, e) for n, e in zip(self.held, held, strict=True)]
        outcomes = np.array([episode.outcome.label for episode in held], dtype=np.float64)
        self.result.calibration = fit_calibration(logits, outcomes)
        set_calibration(self.network, self.result.calibration)


def held_out_episodes(episodes: Sequence[Trajectory], share: float, seed: int) -> np.ndarray:
    """Numbers of the episodes kept for the calibration: a share of those that a policy ended and that have a label.

    Where no policy acted, a share of all labelled ones. Successes and failures each give their share.
    """
    rng = np.random.default_rng([seed, len(episodes)])
    labelled = [n for n, episode in enumerate(episodes) if episode.outcome.label is not None]
    policy = [n for n in labelled if episodes[n].controller[-1] == Controller.POLICY]
    chosen: list[int] = []
    for success in (True, False):
        same = [n for n in policy or labelled if episodes[n].success is success]
        chosen += rng.permutation(same)[: round(share * len(same))].tolist()
    return np.array(sorted(chosen), dtype=np.int64)


def success_logits(network: JudgeNetwork, cache: MapCache, number: int, episode: Trajectory) -> np.ndarray:
    """Uncalibrated success logits of a cached episode, float32 (T+1,)."""
    rows = cache.first[number] + np.arange(len(episode) + 1)
    with torch.inference_mode():
        outputs = network(cache.gather(rows)[None].float(), tokenize([episode.instruction]))
    return outputs.success[0].float().numpy()


def set_calibration(network: JudgeNetwork, calibration: Calibration) -> None:
    """Store a calibration with the network's parameters."""
    network.calibration.copy_(torch.tensor([calibration.scale, calibration.shift]))
