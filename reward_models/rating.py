"""End-of-episode rating from 1 to 5 (RoboReward, METHODS 6), by a head instead of generated text.

1 no success, 2 minimal, 3 partial, 4 near, 5 perfect. A success that is shown whole is a 5, cut short it is
1 + round(4 progress) but at most 4; under a wrong instruction, undone or reversed it is what its progress says;
a failure is anything but 5. Because the pass is causal, every frame gets the rating of an episode that ends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from reward_models.batches import ClipBatch
from reward_models.objective import FrameReader, Objective, Readout, head

LEVELS = 5


@dataclass(frozen=True, kw_only=True)
class RatingConfig:
    """Weights of the parts."""

    weight: float = 1.0
    not_perfect: float = 0.5  # of "anything but 5" for failures whose level nobody gave
    every_frame: float = 0.2  # weight of frames before a clip's end; 0: only ends are rated


class Rating(Objective):
    """A five-way head."""

    kind: ClassVar[str] = "rating"

    def __init__(self, dim: int, config: RatingConfig) -> None:
        super().__init__()
        self.config = config
        self.rating = head(dim, dim // 2, LEVELS)

    def loss(self, hidden: Tensor, batch: ClipBatch, slow: Tensor | None) -> dict[str, Tensor]:
        logits = self.rating(hidden).float()
        target = rating_targets(batch)
        weight = torch.full_like(batch.weight, self.config.every_frame)
        weight[torch.arange(len(weight), device=weight.device), batch.last()] = 1.0
        weight = torch.where(batch.inside(), weight, torch.zeros_like(weight))
        rated, failed = target >= 0, (target < 0) & batch.incomplete
        losses = F.cross_entropy(logits[rated], target[rated], reduction="none")
        log_total = torch.logsumexp(logits[failed], -1)
        below = log_total - torch.logsumexp(logits[failed][:, : LEVELS - 1], -1)
        norm = weight.sum().clamp(min=1e-8)
        return {
            "rating": self.config.weight * (losses * weight[rated]).sum() / norm,
            "not_perfect": self.config.not_perfect * (below * weight[failed]).sum() / norm,
        }

    def reader(self, instruction: str) -> RatingReader:
        return RatingReader(self)


def rating_targets(batch: ClipBatch) -> Tensor:
    """Class 0..4 for ratings 1..5, -1 for unknown: int64 (B, L)."""
    level = torch.round(4.0 * batch.progress.clamp(0.0, 1.0)).clamp(max=3.0)
    target = torch.where(batch.progress.isnan(), torch.full_like(level, -1.0), level)
    return torch.where(batch.label == 1.0, torch.full_like(level, 4.0), target).long()


class RatingReader(FrameReader):
    """progress = (E[rating] - 1) / 4, its deviation, and the rating itself; a 5 is a success."""

    def __init__(self, objective: Rating) -> None:
        self.objective = objective

    def append(self, hidden: Tensor) -> Readout:
        probability = self.objective.rating(hidden).float().softmax(-1)
        levels = torch.arange(LEVELS, device=hidden.device, dtype=torch.float32)
        mean = probability @ levels
        spread = (probability @ levels.square() - mean.square()).clamp(min=0.0).sqrt()
        return {
            "progress": (mean / 4.0).cpu().numpy(),
            "uncertainty": (spread / 4.0).cpu().numpy(),
            "success_prob": probability[:, -1].cpu().numpy(),
            "rating": (1.0 + mean).cpu().numpy(),
        }
