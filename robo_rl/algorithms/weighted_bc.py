"""Weighted behaviour cloning: the one loss behind BC, filtered BC, AWR, RA-BC, ARM's AW-BC and HABC.

They differ only in the sample weights that come with the batch (see `robo_rl.credit`). HABC's actor loss
is METHODS 1.1: (1/B) sum_i w_i || v_theta(s_i, a_i, sigma) - u_i ||^2.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor


@dataclass(frozen=True)
class WeightedBC:
    """`loss(batch) -> (loss, metrics)` for any lerobot policy with a per-sample loss."""

    policy: PreTrainedPolicy

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Needs `sample_weight` (B,) in the batch; weights of one give plain behaviour cloning."""
        per_sample, metrics = self.policy.forward(batch, reduction="none")
        weight = batch["sample_weight"].to(per_sample.device)
        return (per_sample * weight).mean(), metrics
