"""Success probability by temporal differences (eVTA0, METHODS 2.3, 2.7).

y_t = (1 - m) [d z + (1 - d) p_slow(x_{t+n})] + m z, with z the outcome, p_slow a copy of the network that follows it
slowly, n the hop. The paper has m = 0 and the squared error on probabilities (`loss: mse`); cross-entropy has the same
minimiser and does not stall near 0 and 1 (`bce`, [O]). There is no progress head: the probability of success is the
value of a 0-1 outcome, and is read out as progress too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from reward_models.batches import ClipBatch
from reward_models.losses import success_targets
from reward_models.objective import FrameReader, Objective, Readout, head, weighted_mean
from robo_rl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TDSuccessConfig:
    """Raises ConfigError."""

    weight: float = 1.0
    mc_mix: float = 0.0  # m: share of the outcome in targets before the end
    loss: str = "mse"  # mse | bce
    depth: int = 1  # layers of the head; the paper has one linear layer

    def __post_init__(self) -> None:
        if self.loss not in ("mse", "bce"):
            raise ConfigError(f"objectives.td_success.loss must be mse or bce, got {self.loss!r}")
        if not 0 <= self.mc_mix <= 1 or self.depth not in (1, 2):
            raise ConfigError("objectives.td_success: mc_mix must lie in [0, 1] and depth be 1 or 2")


class TDSuccess(Objective):
    """One probability a frame."""

    kind: ClassVar[str] = "td_success"
    needs_slow: ClassVar[bool] = True
    calibration: Tensor

    def __init__(self, dim: int, config: TDSuccessConfig) -> None:
        super().__init__()
        self.config = config
        self.success = torch.nn.Linear(dim, 1) if config.depth == 1 else head(dim, dim // 2, 1)
        self.register_buffer("calibration", torch.tensor([1.0, 0.0]))

    def success_logits(self, hidden: Tensor) -> Tensor:
        return self.success(hidden).squeeze(-1).float()

    def loss(self, hidden: Tensor, batch: ClipBatch, slow: Tensor | None) -> dict[str, Tensor]:
        logits = self.success_logits(hidden)
        ahead = torch.sigmoid(logits).detach() if slow is None else slow
        target, mask = success_targets(ahead, batch.label, batch.outcome, batch.link, self.config.mc_mix)
        if self.config.loss == "bce":
            losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        else:
            losses = (torch.sigmoid(logits) - target).square()
        return {"td_success": self.config.weight * weighted_mean(losses[mask], batch.weight[mask])}

    def calibrate(self, scale: float, shift: float) -> None:
        self.calibration.copy_(torch.tensor([scale, shift]))

    def reader(self, instruction: str) -> TDSuccessReader:
        return TDSuccessReader(self)


class TDSuccessReader(FrameReader):
    """Calibrated probabilities; sqrt(p (1 - p)) is the deviation of the outcome that they predict."""

    def __init__(self, objective: TDSuccess) -> None:
        self.objective = objective

    def append(self, hidden: Tensor) -> Readout:
        scale, shift = self.objective.calibration
        p = torch.sigmoid(scale * self.objective.success_logits(hidden) + shift)
        return {
            "progress": p.cpu().numpy(),
            "success_prob": p.cpu().numpy(),
            "uncertainty": (p * (1.0 - p)).sqrt().cpu().numpy(),
        }
