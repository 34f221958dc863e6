"""What a judge reads out of its hidden states: progress bins, success, and the direction of a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PROGRESSIVE, STAGNANT, REGRESSIVE = 0, 1, 2  # order of the tri-state classes (METHODS 3.1)
UNKNOWN = -1  # a step without a tri-state label


def bin_centres(bins: int, device: torch.device | None = None) -> Tensor:
    """Centres of the progress bins, float32 (bins,): linspace(0, 1, bins) (Robometer, METHODS 5)."""
    return torch.linspace(0.0, 1.0, bins, device=device)


def two_bin_targets(progress: Tensor, bins: int) -> Tensor:
    """Soft targets: (...,) in [0, 1] -> (..., bins); mass on the two nearest centres, expectation exact."""
    place = progress.clamp(0.0, 1.0) * (bins - 1)
    distance = (place.unsqueeze(-1) - torch.arange(bins, device=progress.device)).abs()
    return (1.0 - distance).clamp(min=0.0)


def expected_progress(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(..., bins) -> mean and standard deviation of progress, float32 (...,) each."""
    probability = logits.float().softmax(-1)
    centres = bin_centres(logits.shape[-1], logits.device)
    mean = probability @ centres
    variance = probability @ centres.square() - mean.square()
    return mean, variance.clamp(min=0.0).sqrt()


def progress_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy to the soft two-bin targets: (N, bins), (N,) -> (N,)."""
    return F.cross_entropy(logits.float(), two_bin_targets(target, logits.shape[-1]), reduction="none")


def incomplete_loss(logits: Tensor) -> Tensor:
    """-log P(not in the top bin): (N, bins) -> (N,). For frames known not to be the completed task [O]."""
    logits = logits.float()
    return torch.logsumexp(logits, -1) - torch.logsumexp(logits[:, :-1], -1)


class Heads(nn.Module):
    """Progress, success and tri-state from the hidden states of a causal pass."""

    def __init__(self, dim: int, bins: int) -> None:
        super().__init__()
        self.progress = _head(dim, dim, bins)
        self.success = _head(dim, dim, 1)
        self.tri_state = _head(2 * dim, dim, 3)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, L, dim) -> progress logits (B, L, bins), success logits (B, L), tri-state logits (B, L-1, 3)."""
        return self.progress(hidden), self.success(hidden).squeeze(-1), self.step(hidden[:, :-1], hidden[:, 1:])

    def step(self, before: Tensor, after: Tensor) -> Tensor:
        """Tri-state logits of steps: hidden states of consecutive frames (..., dim) twice -> (..., 3)."""
        return self.tri_state(torch.cat([before, after], -1))


def _head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
