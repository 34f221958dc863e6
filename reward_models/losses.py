"""The judge's loss on a batch of clips: progress, success by temporal differences, and the direction of steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from reward_models.batches import ClipBatch
from reward_models.heads import UNKNOWN, incomplete_loss, progress_loss
from reward_models.network import Outputs


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the parts, and the success target's."""

    progress: float = 1.0
    incomplete: float = 0.3  # "not complete" for episodes that did not succeed
    success: float = 1.0
    tri_state: float = 0.3
    completion_weight: float = 5.0  # of frames that show a success, in the progress loss: few, and the ones that matter
    mc_mix: float = 0.1  # m of METHODS 2.7: share of the outcome in targets before the end; the paper has 0


def success_targets(
    p_target: Tensor, label: Tensor, outcome: Tensor, link: Tensor, mc_mix: float
) -> tuple[Tensor, Tensor]:
    """Targets y and mask, (B, L) each (METHODS 2.3, 2.7).

        y_t = (1 - m) [d z + (1 - d) p_target(x_{t+n})] + m z

    `label` is d z where d = 1, else NaN; `outcome` is z, NaN where no outcome may be mixed in; `link` is the place of
    x_{t+n} in the clip, -1 where there is none. y is 0 where the mask is False.
    """
    ahead = torch.gather(p_target, 1, link.clamp(min=0))
    mixed = torch.where(outcome.isnan(), ahead, (1.0 - mc_mix) * ahead + mc_mix * outcome)
    target = torch.where(label.isnan(), mixed, label)
    mask = ~label.isnan() | (link >= 0)
    return torch.where(mask, target, torch.zeros_like(target)), mask


def judge_loss(
    outputs: Outputs, p_target: Tensor, batch: ClipBatch, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted sum and its parts. `p_target` (B, L): success probability of the slow copy of the network."""
    known = ~batch.progress.isnan()
    weight = torch.where(batch.label == 1.0, config.completion_weight, 1.0)[known]
    loss = progress_loss(outputs.progress[known], batch.progress[known])
    parts = {"progress": (weight * loss).sum() / weight.sum().clamp(min=1.0)}
    parts["incomplete"] = _mean(incomplete_loss(outputs.progress[batch.incomplete]))
    target, mask = success_targets(p_target, batch.label, batch.outcome, batch.link, config.mc_mix)
    weight = batch.weight * mask
    losses = F.binary_cross_entropy_with_logits(outputs.success.float(), target, reduction="none")
    parts["success"] = (losses * weight).sum() / weight.sum().clamp(min=1.0)
    parts["tri_state"] = _tri_state_loss(outputs.tri_state, batch.tri_state)
    total = sum((getattr(config, name) * part for name, part in parts.items()), torch.zeros(()))
    return total, parts


def _tri_state_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy in which every class that occurs counts alike: forward steps are by far the most frequent."""
    known = target != UNKNOWN
    logits, target = logits[known].float(), target[known]
    if not len(target):
        return logits.sum()
    count = torch.bincount(target, minlength=3).float()
    weight = torch.where(count > 0, 1.0 / count.clamp(min=1.0), count.new_zeros(3)).sqrt()
    return F.cross_entropy(logits, target, weight=weight)


def _mean(values: Tensor) -> Tensor:
    return values.mean() if len(values) else values.sum()
