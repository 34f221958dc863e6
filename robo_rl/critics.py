"""The two critics of HABC on frozen features: viability and efficiency. METHODS 1.2, 1.7.

Viability: logit of P(success | s, policy), Monte-Carlo BCE on the outcome of frames that may carry it.
Efficiency: V_e = -(expected steps to success), undiscounted TD(0), Huber, gradient stopped at the target.
Where this departs from the paper (all [O]): heads on frozen features instead of a shared backbone;
features standardised; V_e learned in units of T_max, the longest success; a start from counted steps
before TD takes over; weights come from cross-fitted predictions, so that memorised episodes decide no credit.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from robo_rl.credit.critic_targets import CriticArrays, assign_folds, steps_to_success
from robo_rl.credit.habc import sigmoid
from robo_rl.credit.smoothing import smooth_within_episodes
from robo_rl.errors import ConfigError, DataError
from robo_rl.statistics import Estimate, auroc, brier, pearson

FILE_NAME = "critics.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticConfig:
    """Two small networks and how they are trained."""

    hidden: tuple[int, ...] = (64, 64)
    steps: int = 600  # gradient steps
    batch_size: int = 256  # frames for each head
    learning_rate: float = 2e-3  # cosine to 0
    weight_decay: float = 1e-2
    # What viability draws alike. "episode": long failures cannot drown short successes, at the price of a logit
    # too high by about ln(mean length of failures / of successes); "frame": every visit counts.
    balance: Literal["episode", "frame"] = "episode"
    counted_start: float = 0.4  # share of the steps that regress counted steps before TD(0) begins; 0 is the paper
    target_tau: float | None = None  # EMA copy for TD targets (.005 to .01); None: the net itself, as in the paper
    huber_delta: float = 1.0  # of V_e / T_max. In steps, the end's error would count as 1 step and V_e sink to -T_max
    smooth_frames: int = 1  # odd; moving average of cross-fitted z_v, v_e inside an episode

    def __post_init__(self) -> None:
        if self.balance not in ("episode", "frame"):
            raise ConfigError(f"critics.balance must be 'episode' or 'frame', got {self.balance!r}")
        for name in ("steps", "batch_size", "learning_rate", "huber_delta"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"critics.{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.counted_start <= 1:
            raise ConfigError(f"critics.counted_start must lie in [0, 1], got {self.counted_start}")
        if self.target_tau is not None and not 0 < self.target_tau <= 1:
            raise ConfigError(f"critics.target_tau must lie in (0, 1] or be null, got {self.target_tau}")
        if self.smooth_frames < 1 or self.smooth_frames % 2 == 0:
            raise ConfigError(f"critics.smooth_frames must be odd, got {self.smooth_frames}")


class Critics(nn.Module):
    """Viability and efficiency heads with their input standardisation. Final."""

    mean: Tensor
    scale: Tensor

    def __init__(self, num_features: int, hidden: tuple[int, ...], t_max: float, generator: torch.Generator) -> None:
        super().__init__()
        self.num_features, self.hidden, self.t_max = num_features, tuple(hidden), float(t_max)
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(num_features))
        self.viability = _head(num_features, self.hidden, generator)
        self.efficiency = _head(num_features, self.hidden, generator)

    @torch.no_grad()
    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float32 (N, D) -> z_v (N,) logits, v_e (N,) minus steps to success (at most 0), both float32."""
        features = _check_features(features, self.num_features)
        z_v, v_e = np.empty(len(features), np.float32), np.empty(len(features), np.float32)
        for begin in range(0, len(features), 16384):
            block = slice(begin, begin + 16384)
            x = (torch.from_numpy(features[block]) - self.mean) * self.scale
            z_v[block] = self.viability(x)[:, 0].numpy()
            v_e[block] = (self.efficiency(x)[:, 0] * self.t_max).clamp(max=0.0).numpy()
        return z_v, v_e

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `critics.safetensors` into a folder, atomically."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        shape = {"num_features": self.num_features, "hidden": self.hidden, "t_max": self.t_max}
        temporary = folder / f".{FILE_NAME}.{os.getpid()}"
        save_file(
            {k: v.contiguous() for k, v in self.state_dict().items()}, temporary, {"robo_rl.critics": json.dumps(shape)}
        )
        os.replace(temporary, folder / FILE_NAME)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Critics:
        """Read what `save` wrote.

        Raises:
            DataError: no such file, or not one of ours.
        """
        path = Path(folder) / FILE_NAME
        if not path.is_file():
            raise DataError(f"{path}: no critics there; train them first")
        try:
            with safe_open(path, framework="pt") as file:
                shape: dict[str, Any] = json.loads((file.metadata() or {})["robo_rl.critics"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
            critics = cls(shape["num_features"], tuple(shape["hidden"]), shape["t_max"], torch.Generator())
            critics.load_state_dict(tensors)
        except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise DataError(f"{path}: not a critics checkpoint ({str(error).splitlines()[0]})") from error
        return critics.eval()


def fit_critics(
    features: np.ndarray,
    arrays: CriticArrays | Mapping[str, np.ndarray],
    episode_of_frame: np.ndarray,
    config: CriticConfig | None = None,
    seed: int = 0,
) -> Critics:
    """Train both heads on the frames that their masks allow.

    Args:
        features: float32 (N, D), from a frozen network.
        arrays: what each frame may teach (or a mapping of the same fields).
        episode_of_frame: int (N,)
        seed: decides initial parameters and batches.

    Raises:
        DataError: no frame with an outcome, none that leads to a success, features that do not fit.
    """
    config = config or CriticConfig()
    features, arrays, episode = _check(features, arrays, episode_of_frame)
    # a frame whose successor is unknown has no TD target
    td_rows = arrays.ve_ok & (arrays.terminal_success | arrays.followed)
    counted = steps_to_success(arrays)
    if not arrays.outcome_ok.any():
        raise DataError("critics: no frame carries an outcome; viability needs finished policy episodes")
    if not (td_rows & arrays.terminal_success).any():
        raise DataError("critics: no successful episode ends in these frames; efficiency needs at least one")
    t_max = float(np.nanmax(counted[td_rows])) + 1.0

    rng = np.random.default_rng(seed)
    critics = Critics(features.shape[1], config.hidden, t_max, torch.Generator().manual_seed(seed))
    used = features[arrays.outcome_ok | td_rows]
    critics.mean.copy_(torch.from_numpy(used.mean(axis=0, dtype=np.float64)))
    critics.scale.copy_(1.0 / torch.from_numpy(used.std(axis=0, dtype=np.float64)).clamp(min=1e-6))
    x = (torch.from_numpy(features) - critics.mean) * critics.scale

    size = (config.steps, config.batch_size)
    with_outcome = _draw(arrays.outcome_ok, episode, config.balance, size, rng)
    # every visit alike: V_e is a mean over visits, and drawing episodes alike would favour short ones
    with_td = _draw(td_rows, episode, "frame", size, rng)
    warm = int(config.counted_start * config.steps)
    with_td[:warm] = _draw(td_rows & np.isfinite(counted), episode, "frame", (warm, config.batch_size), rng)
    _train(critics, x, arrays, counted, (with_outcome, with_td), warm, config)
    return critics.eval()


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossFit:
    """Predictions for all frames, each by critics that never saw its episode, and how good they are.

    metrics, NaN where undefined (`undefined` says why):
        auroc: of z_v over all frames with an outcome (long episodes count more); auroc_first,
            auroc_middle, auroc_last: over one such frame of each episode.
        brier: of sigmoid(z_v), episodes alike; brier_constant: of always saying the success rate.
        efficiency_error: mean |V_e + counted steps| on frames that teach V_e, in control steps;
            efficiency_correlation: Pearson's r of the two.
    """

    z_v: np.ndarray  # float32 (N,)
    v_e: np.ndarray  # float32 (N,)
    fold: np.ndarray  # int64 (N,): the fold a frame was held out in
    metrics: dict[str, float]
    undefined: dict[str, str]


def cross_fit(
    features: np.ndarray,
    arrays: CriticArrays | Mapping[str, np.ndarray],
    episode_of_frame: np.ndarray,
    folds: int = 2,
    config: CriticConfig | None = None,
    seed: int = 0,
) -> CrossFit:
    """Out-of-fold z_v and v_e (K folds over episodes, alike in outcomes) and their quality.

    The gate must come from these: a critic that has seen an episode knows how it ended.

    Raises:
        DataError: fewer successful episodes than folds, or what `fit_critics` raises.
        ConfigError: folds outside 2..5.
    """
    config = config or CriticConfig()
    if not 2 <= folds <= 5:
        raise ConfigError(f"critics: folds must be 2 to 5, got {folds}")
    features, arrays, episode = _check(features, arrays, episode_of_frame)
    fold = assign_folds(arrays, episode, folds, np.random.default_rng(seed))
    z_v, v_e = np.empty(len(fold), np.float32), np.empty(len(fold), np.float32)
    for k in range(folds):
        critics = fit_critics(features, arrays.only(fold != k), episode, config, seed + k)
        held_out = fold == k
        z_v[held_out], v_e[held_out] = critics.predict(features[held_out])
    if config.smooth_frames > 1:
        ends = np.flatnonzero(np.append(episode[1:] != episode[:-1], True))
        lengths = np.diff(np.append(-1, ends))
        z_v = smooth_within_episodes(z_v, lengths, config.smooth_frames).astype(np.float32)
        v_e = smooth_within_episodes(v_e, lengths, config.smooth_frames).astype(np.float32)
    quality = _quality(z_v, v_e, arrays, episode)
    return CrossFit(
        z_v=z_v,
        v_e=v_e,
        fold=fold,
        metrics={name: estimate.value for name, estimate in quality.items()},
        undefined={name: estimate.reason for name, estimate in quality.items() if estimate.reason},
    )


def _train(
    critics: Critics,
    x: Tensor,
    arrays: CriticArrays,
    counted: np.ndarray,
    batches: tuple[np.ndarray, np.ndarray],
    warm: int,
    config: CriticConfig,
) -> None:
    outcome = torch.from_numpy(np.where(arrays.outcome_ok, arrays.label, 0.0).astype(np.float32))
    following = torch.from_numpy(np.maximum(arrays.next_index, 0).astype(np.int64))
    terminal = torch.from_numpy(arrays.terminal_success.astype(bool))
    t_max = critics.t_max
    start_target = torch.from_numpy((-np.nan_to_num(counted) / t_max).astype(np.float32))
    target_net = _TargetCopy(critics.efficiency, config.target_tau)
    optimizer = torch.optim.AdamW(
        critics.parameters(), config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay, foreach=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    bce, huber = nn.BCEWithLogitsLoss(), nn.HuberLoss(delta=config.huber_delta)
    for step, (rows_v, rows_e) in enumerate(zip(*map(torch.from_numpy, batches), strict=True)):
        loss_v = bce(critics.viability(x[rows_v])[:, 0], outcome[rows_v])
        if step < warm:
            target = start_target[rows_e]
        else:
            with torch.no_grad():
                # wide limits: at [-1, 0] they would cut noise on one side only, and TD passes a bias on
                after = target_net(x[following[rows_e]])[:, 0].clamp(-2.0, 1.0) - 1.0 / t_max
                target = torch.where(terminal[rows_e], 0.0, after)
        loss_e = huber(critics.efficiency(x[rows_e])[:, 0], target)
        optimizer.zero_grad(set_to_none=True)
        (loss_v + loss_e).backward()
        optimizer.step()
        schedule.step()
        target_net.follow()


class _TargetCopy:
    """The network that TD targets are read from: the trained one itself, or a slow copy of it."""

    def __init__(self, network: nn.Module, tau: float | None) -> None:
        self.live, self.tau = network, tau
        self.copy = network if tau is None else copy.deepcopy(network)

    def __call__(self, x: Tensor) -> Tensor:
        return self.copy(x)

    @torch.no_grad()
    def follow(self) -> None:
        if self.tau is not None:
            for slow, fast in zip(self.copy.parameters(), self.live.parameters(), strict=True):
                slow.lerp_(fast, self.tau)


def _head(num_features: int, hidden: tuple[int, ...], generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = num_features
    for size in (*hidden, 1):
        linear = nn.Linear(width, size, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            # the last layer starts near 0: p = 1/2 and no steps to go
            std = 0.01 if size == 1 and len(layers) == 2 * len(hidden) else (2.0 / width) ** 0.5
            linear.weight.normal_(0.0, std, generator=generator)
            linear.bias.zero_()
        layers += [linear, nn.SiLU()]
        width = size
    return nn.Sequential(*layers[:-1])


def _draw(
    allowed: np.ndarray, episode: np.ndarray, balance: str, size: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """Row numbers int64 `size`, drawn from the allowed frames: episodes alike, or frames alike."""
    rows = np.flatnonzero(allowed)
    if balance == "frame":
        return rows[rng.integers(0, len(rows), size)]
    _, member, counts = np.unique(episode[rows], return_inverse=True, return_counts=True)
    begins = np.append(0, np.cumsum(counts)[:-1])
    rows = rows[np.argsort(member, kind="stable")]
    which = rng.integers(0, len(counts), size)
    return rows[begins[which] + (rng.random(size) * counts[which]).astype(np.int64)]


def _quality(z_v: np.ndarray, v_e: np.ndarray, arrays: CriticArrays, episode: np.ndarray) -> dict[str, Estimate]:
    rows = np.flatnonzero(arrays.outcome_ok)
    labels, score = arrays.label[rows], z_v[rows].astype(np.float64)
    _, begins, member, counts = np.unique(episode[rows], return_index=True, return_inverse=True, return_counts=True)
    at = {"first": begins, "middle": begins + counts // 2, "last": begins + counts - 1}
    result = {"auroc": auroc(score, labels)}
    result |= {f"auroc_{name}": auroc(score[where], labels[where]) for name, where in at.items()}
    error = np.bincount(member, weights=np.square(sigmoid(score) - labels)) / counts
    result["brier"] = Estimate(value=float(error.mean()), count=len(counts))
    rate = labels[begins].mean()
    result["brier_constant"] = brier(np.full(len(begins), rate), labels[begins])
    counted = steps_to_success(arrays)
    success = arrays.ve_ok & np.isfinite(counted)
    value, truth = v_e[success].astype(np.float64), -counted[success]
    result["efficiency_error"] = Estimate(value=float(np.abs(value - truth).mean()), count=len(truth))
    result["efficiency_correlation"] = pearson(value, truth)
    return result


def _check(
    features: np.ndarray, arrays: CriticArrays | Mapping[str, np.ndarray], episode_of_frame: np.ndarray
) -> tuple[np.ndarray, CriticArrays, np.ndarray]:
    if not isinstance(arrays, CriticArrays):
        arrays = CriticArrays(**arrays)
    features, episode = _check_features(features, None), np.asarray(episode_of_frame)
    count = len(arrays.label)
    if len(features) != count or episode.shape != (count,):
        raise DataError(f"critics: {len(features)} rows of features, {count} of labels, {len(episode)} of episodes")
    crosses = np.flatnonzero(arrays.followed & (episode[np.maximum(arrays.next_index, 0)] != episode))
    if len(crosses):
        raise DataError(f"critics: the frame after {crosses[0]} lies in another episode")
    starts = np.flatnonzero(np.append(True, episode[1:] != episode[:-1]))
    if len(np.unique(episode)) != len(starts):
        raise DataError("critics: the frames of an episode must lie together")
    return features, arrays, episode


def _check_features(features: np.ndarray, expected: int | None) -> np.ndarray:
    features = np.asarray(features)
    if features.ndim != 2 or features.dtype != np.float32:
        raise DataError(f"critics: features must be float32 (N, D), got {features.dtype} {features.shape}")
    if expected is not None and features.shape[1] != expected:
        raise DataError(f"critics: trained on {expected} features, got {features.shape[1]}")
    if (bad := np.flatnonzero(~np.isfinite(features).all(axis=1))).size:
        raise DataError(f"critics: features are not finite at frame {bad[0]}")
    return np.ascontiguousarray(features)
