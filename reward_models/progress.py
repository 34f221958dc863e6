"""Progress bins, success and preference (Robometer, METHODS 5).

L = cross-entropy of progress over bins + binary cross-entropy of success + that of preference. Ours [O]: preference
is Bradley-Terry on one score a clip, read at its last frame, instead of a token after two clips in one prompt: it is
transitive and costs no further pass. Pairs come from the batch: of two clips of one instruction, the one that shows
the completed task is preferred to one that ends badly or at least `gap` lower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from reward_models.batches import ClipBatch
from reward_models.heads import expected_progress, incomplete_loss, progress_loss
from reward_models.objective import FrameReader, Objective, Readout, head, weighted_mean
from robo_rl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ProgressConfig:
    """Weights of the parts. Raises ConfigError."""

    bins: int = 10
    weight: float = 1.0
    success: float = 1.0
    preference: float = 1.0
    incomplete: float = 0.3  # "not complete" for episodes that did not succeed [O]
    completion_weight: float = 5.0  # of frames that show a success: few, and the ones that matter [O]
    gap: float = 0.2  # difference of progress at the end from which one of two clips is preferred

    def __post_init__(self) -> None:
        if self.bins < 3:
            raise ConfigError(f"objectives.progress.bins must be at least 3, got {self.bins}")


class Progress(Objective):
    """Three heads on the hidden state of every frame."""

    kind: ClassVar[str] = "progress"
    calibration: Tensor

    def __init__(self, dim: int, config: ProgressConfig) -> None:
        super().__init__()
        self.config = config
        self.progress = head(dim, dim // 2, config.bins)
        self.success = head(dim, dim // 2, 1)
        self.preference = head(dim, dim // 2, 1)
        self.register_buffer("calibration", torch.tensor([1.0, 0.0]))

    def loss(self, hidden: Tensor, batch: ClipBatch, slow: Tensor | None) -> dict[str, Tensor]:
        config, logits = self.config, self.progress(hidden).float()
        known = ~batch.progress.isnan()
        weight = torch.where(batch.label == 1.0, config.completion_weight, 1.0)[known]
        bins = weighted_mean(progress_loss(logits[known], batch.progress[known]), weight)
        below = incomplete_loss(logits[batch.incomplete])
        return {
            "progress": config.weight * bins,
            "incomplete": config.incomplete * (below.mean() if len(below) else below.sum()),
            "success": config.success * self._success_loss(hidden, batch),
            "preference": config.preference * self._preference_loss(hidden, batch),
        }

    def _success_loss(self, hidden: Tensor, batch: ClipBatch) -> Tensor:
        """Positive where a clip shows the success, negative below half of the way and all along failures."""
        positive = batch.label == 1.0
        negative = batch.incomplete | (batch.progress < 0.5) | (batch.label < 1.0)
        chosen = (positive | negative) & (batch.weight > 0)
        logits = self.success(hidden[chosen]).squeeze(-1).float()
        target = positive[chosen].float()
        losses = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        return losses.mean() if len(losses) else losses.sum()

    def _preference_loss(self, hidden: Tensor, batch: ClipBatch) -> Tensor:
        better, worse = preferences(batch, self.config.gap)
        if not len(better):
            return hidden.sum() * 0.0
        last = batch.last()
        score = self.preference(hidden[torch.arange(len(hidden), device=hidden.device), last]).squeeze(-1).float()
        return F.softplus(score[worse] - score[better]).mean()

    def prefer(self, first: Tensor, second: Tensor) -> Tensor:
        """P(first is preferred) of hidden states (n, dim) at the ends of two clips -> (n,)."""
        return torch.sigmoid(self.preference(first).float() - self.preference(second).float()).squeeze(-1)

    def success_logits(self, hidden: Tensor) -> Tensor:
        return self.success(hidden).squeeze(-1).float()

    def calibrate(self, scale: float, shift: float) -> None:
        self.calibration.copy_(torch.tensor([scale, shift]))

    def reader(self, instruction: str) -> ProgressReader:
        return ProgressReader(self)


class ProgressReader(FrameReader):
    """Expectation and deviation over the bins, success probability, preference score."""

    def __init__(self, objective: Progress) -> None:
        self.objective = objective

    def append(self, hidden: Tensor) -> Readout:
        objective = self.objective
        mean, spread = expected_progress(objective.progress(hidden))
        scale, shift = objective.calibration
        return {
            "progress": mean.cpu().numpy(),
            "uncertainty": spread.cpu().numpy(),
            "success_prob": torch.sigmoid(scale * objective.success_logits(hidden) + shift).cpu().numpy(),
            "preference": objective.preference(hidden).squeeze(-1).float().cpu().numpy(),
        }


def preferences(batch: ClipBatch, gap: float) -> tuple[Tensor, Tensor]:
    """Pairs of clips of one instruction, (better, worse) int64 (P,) each.

    A clip that ends badly is never preferred. Pairs that a person gave (`batch.preferred`) come on top.
    """
    last = batch.last()
    rows = torch.arange(len(last), device=last.device)
    end = batch.progress[rows, last]
    bad = batch.incomplete[rows, last]
    same = torch.tensor([[a == b for b in batch.texts] for a in batch.texts], device=last.device)
    value = torch.where(bad, -1.0, end)
    wins = same & (value[:, None] >= value[None, :] + gap) & ~bad[:, None]
    wins &= ~value.isnan()[:, None] & ~value.isnan()[None, :]
    better, worse = wins.nonzero(as_tuple=True)
    if len(batch.preferred):
        given = batch.preferred.to(last.device)
        better, worse = torch.cat([better, given[:, 0]]), torch.cat([worse, given[:, 1]])
    return better, worse
