"""The inner loop of fitting a judge: clips in, gradient steps on a network and its slow copy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from reward_models.batches import ClipBatch
from reward_models.losses import LossConfig, judge_loss
from reward_models.network import JudgeNetwork, mixed_precision
from robo_rl.errors import RewardError
from robo_rl.types import Trajectory

TRUNK_RATE = 0.2  # learning rate of the trunk over that of everything else


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Steps first, ..., first + count - 1 of one learning rate cycle of `total` steps."""

    first: int
    count: int
    total: int
    rate: float


class TrainingSettings(Protocol):
    """The part of `FitConfig` that a gradient step needs."""

    @property
    def weight_decay(self) -> float: ...
    @property
    def clip_norm(self) -> float: ...
    @property
    def target_rate(self) -> float: ...
    @property
    def precision(self) -> str: ...
    @property
    def loss(self) -> LossConfig: ...


def train(
    network: JudgeNetwork,
    batches: Callable[[int], ClipBatch],
    maps: Callable[[ClipBatch], Tensor],
    settings: TrainingSettings,
    *,
    schedule: Schedule,
    curves: dict[str, list[float]],
    report: Callable[[int], None],
) -> None:
    """Gradient steps on all parameters that ask for a gradient; appends one value a step to `curves`.

    The slow copy (theta-, METHODS 2.3) starts as the network and is dropped at the end.
    Raises RewardError when the loss is not finite.
    """
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameter_groups(network, schedule.rate, settings.weight_decay), betas=(0.9, 0.98))
    cycle = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda n: one_cycle(schedule.first + n, schedule.total))
    slow = copy.deepcopy(network).eval().requires_grad_(False)
    network.train()
    for step in range(schedule.first, schedule.first + schedule.count):
        batch = batches(step)
        with mixed_precision(settings.precision):
            features = maps(batch)
            outputs = network(features, batch.instructions)
            with torch.no_grad():
                p_target = torch.sigmoid(slow(features, batch.instructions).success.float())
        loss, parts = judge_loss(outputs, p_target, batch, settings.loss)
        if not torch.isfinite(loss):
            raise RewardError(f"judge: the loss is {float(loss)} at step {step}; lower judge.fit.learning_rate")
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
        optimiser.step()
        cycle.step()
        follow(slow, network, settings.target_rate)
        for name, part in {"total": loss, **parts}.items():
            curves.setdefault(name, []).append(float(part.detach()))
        report(step + 1)
    network.eval()


def one_cycle(step: int, steps: int) -> float:
    """Factor of the learning rate: up over the first tenth, then a cosine down to 0."""
    rise = max(1, steps // 10)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1.0 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def frames_of_rows(
    episodes: Sequence[Trajectory], first_row: np.ndarray, rows: np.ndarray, cameras: Sequence[str]
) -> dict[str, Tensor]:
    """Pixels of frame rows (n,): camera -> uint8 (n, H, W, 3)."""
    owner = np.searchsorted(first_row, rows, side="right") - 1
    picked = zip(owner, rows - first_row[owner], strict=True)
    chosen = [(episodes[e], f) for e, f in picked]
    return {c: torch.from_numpy(np.stack([episode.images[c][f] for episode, f in chosen])) for c in cameras}


def trunk_maps(
    network: JudgeNetwork, episodes: Sequence[Trajectory], first_row: np.ndarray
) -> Callable[[ClipBatch], Tensor]:
    """Maps computed from pixels with a gradient; every frame that occurs in a batch is computed once."""

    def maps(batch: ClipBatch) -> Tensor:
        rows, where = np.unique(batch.rows, return_inverse=True)
        computed = network.maps(frames_of_rows(episodes, first_row, rows, network.cameras))
        return computed[torch.from_numpy(where.reshape(batch.rows.shape))]

    return maps


def parameter_groups(network: JudgeNetwork, rate: float, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; biases, norms and embeddings do not. The trunk learns slowly: fast, its features die."""
    trunk = {id(p) for p in network.trunks.parameters()}
    asked = [p for p in network.parameters() if p.requires_grad]
    return [
        {
            "params": [p for p in asked if (p.ndim >= 2) is decays and (id(p) in trunk) is slow],
            "weight_decay": weight_decay if decays else 0.0,
            "lr": rate * (TRUNK_RATE if slow else 1.0),
        }
        for decays in (True, False)
        for slow in (True, False)
    ]


@torch.no_grad()
def follow(slow: JudgeNetwork, network: JudgeNetwork, rate: float) -> None:
    pairs = [(a, b) for a, b in zip(slow.parameters(), network.parameters(), strict=True) if b.requires_grad]
    torch._foreach_lerp_([a for a, _ in pairs], [b.detach() for _, b in pairs], rate)
    slow.text_mean.copy_(network.text_mean)
