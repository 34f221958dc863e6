"""Tri-state steps and completion, with progress put together from them (ARM, METHODS 3).

Every pair of neighbouring frames is progressive, stagnant or regressive; a second head says whether the frame shows
the completed task. Progress is the running sum of the steps. Over a whole episode it is anchored at the completion
(the paper, METHODS 3.3); a fragment, or an episode that is still running, counts a mean step's worth of complete
episodes [O].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reward_models.batches import ClipBatch
from reward_models.heads import UNKNOWN
from reward_models.objective import Objective, Readout, head
from robo_rl.credit.arm import anchor_piecewise, completion_peaks, step_from_tri_state
from robo_rl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TriStateConfig:
    """Losses and read-out. Raises ConfigError."""

    weight: float = 1.0
    completion: float = 1.0
    gamma: float = 2.0  # of the focal loss
    alpha: float = 2.0  # weight of the completed frames in it
    readout: str = "anchored"  # anchored: progress 1 at the completion; running: never looks ahead, as a stream
    threshold: float = 0.5  # completion probability from which the episode counts as complete
    balance: bool = True  # classes count alike, as far as their square roots [O]

    def __post_init__(self) -> None:
        if self.readout not in ("anchored", "running"):
            raise ConfigError(f"objectives.tri_state.readout must be anchored or running, got {self.readout!r}")


class TriState(Objective):
    """A three-way head on pairs of frames, a completion head on frames."""

    kind: ClassVar[str] = "tri_state"
    calibration: Tensor

    def __init__(self, dim: int, config: TriStateConfig) -> None:
        super().__init__()
        self.config = config
        self.interval = head(2 * dim, dim, 3)
        self.completion = head(dim, dim // 2, 1)
        self.unit = 0.05  # worth of a step, measured on complete episodes
        self.register_buffer("calibration", torch.tensor([1.0, 0.0]))

    def steps(self, hidden: Tensor) -> Tensor:
        """(..., L, dim) -> logits (..., L - 1, 3)."""
        return self.interval(torch.cat([hidden[..., :-1, :], hidden[..., 1:, :]], -1)).float()

    def loss(self, hidden: Tensor, batch: ClipBatch, slow: Tensor | None) -> dict[str, Tensor]:
        known = batch.tri_state != UNKNOWN
        logits, target = self.steps(hidden)[known], batch.tri_state[known]
        complete = batch.label == 1.0
        # Shortly before a success nobody knows whether it is reached already: only what is certain counts.
        certain = complete | batch.incomplete | (batch.progress < 0.95)
        return {
            "tri_state": self.config.weight * self._step_loss(logits, target),
            "completion": self.config.completion
            * focal_loss(
                self.completion(hidden[certain]).squeeze(-1).float(),
                complete[certain].float(),
                gamma=self.config.gamma,
                alpha=self.config.alpha,
            ),
        }

    def _step_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        if not len(target):
            return logits.sum()
        weight = None
        if self.config.balance:
            count = torch.bincount(target, minlength=3).float()
            weight = torch.where(count > 0, count.clamp(min=1.0).rsqrt(), torch.zeros_like(count))
        return F.cross_entropy(logits, target, weight=weight)

    def success_logits(self, hidden: Tensor) -> Tensor:
        return self.completion(hidden).squeeze(-1).float()

    def calibrate(self, scale: float, shift: float) -> None:
        self.calibration.copy_(torch.tensor([scale, shift]))

    def prepare(self, facts: Mapping[str, Any]) -> None:
        if "unit" in facts:
            self.unit = float(facts["unit"])

    def facts(self) -> dict[str, Any]:
        return {"unit": self.unit}

    def reader(self, instruction: str) -> TriStateReader:
        return TriStateReader(self)


def focal_loss(logits: Tensor, target: Tensor, *, gamma: float, alpha: float) -> Tensor:
    """-alpha^y (1 - p_y)^gamma log p_y, averaged (METHODS 3.1): (n,), (n,) 0 or 1 -> scalar; 0 for nothing."""
    if not len(target):
        return logits.sum()
    losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    weight = torch.where(target == 1.0, alpha, 1.0) * (1.0 - torch.exp(-losses)).pow(gamma)
    return (weight * losses).mean()


class TriStateReader:
    """Adds up steps; keeps the frame before."""

    def __init__(self, objective: TriState) -> None:
        self.objective = objective
        self._before: Tensor | None = None
        self._sum = 0.0

    def append(self, hidden: Tensor) -> Readout:
        objective = self.objective
        chain = hidden if self._before is None else torch.cat([self._before, hidden])
        probability = objective.steps(chain).softmax(-1).cpu().numpy()
        self._before = hidden[-1:]
        running = self._sum + np.cumsum(step_from_tri_state(probability))
        if len(chain) == len(hidden):  # the first frame of all: nothing has been done yet
            running = np.concatenate([[0.0], running])
        self._sum = float(running[-1])
        scale, shift = objective.calibration
        return {
            "progress": np.clip(objective.unit * running, 0.0, 1.0).astype(np.float32),
            "success_prob": torch.sigmoid(scale * objective.success_logits(hidden) + shift).cpu().numpy(),
            "tri_state": probability.astype(np.float32),
        }

    def whole(self, read: Readout) -> Readout:
        """Anchored at the completion peaks; left as it is where no frame shows the completed task."""
        objective = self.objective
        if objective.config.readout == "running":
            return read
        peaks = completion_peaks(read["success_prob"], threshold=objective.config.threshold)
        peaks = peaks[peaks >= 1]
        if len(peaks):
            total = np.concatenate([[0.0], np.cumsum(step_from_tri_state(read["tri_state"]))])
            net = total[peaks[0]]
            unit = 1.0 / net if net > 0 else objective.unit
            read = read | {"progress": anchor_piecewise(unit * total, peaks).astype(np.float32)}
        return read
