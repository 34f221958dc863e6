"""The vision towers of Qwen models, with the same numbers in less time.

Two things cost them time on many small pictures: patches are embedded by a three-dimensional convolution whose kernel
is as large as its input, which a matrix product does faster; and without flash attention every picture's attention is
a call of its own, though pictures of one size fit into one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface

FRAMES = "flash_frames"  # transformers gives the borders of pictures to attentions whose names begin with "flash"


class PatchProduct(nn.Module):
    """A convolution over exactly one patch, as a matrix product; it keeps the convolution's parameters and names."""

    def __init__(self, convolution: nn.Conv3d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias

    def forward(self, patches: Tensor) -> Tensor:
        """(n, channels, time, height, width) -> (n, dim, 1, 1, 1)."""
        out = F.linear(patches.flatten(1), self.weight.flatten(1), self.bias)
        return out[:, :, None, None, None]


def frames_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    **_: Any,
) -> tuple[Tensor, None]:
    """(1, heads, n, d) of pictures one after the other -> (1, n, heads, d); each sees itself."""
    lengths = (cu_seq_lens_q[1:] - cu_seq_lens_q[:-1]).tolist()
    groups: dict[int, list[int]] = {}
    for number, length in enumerate(lengths):
        groups.setdefault(length, []).append(number)
    if len(groups) == 1:
        length = lengths[0]
        parts = [part[0].unflatten(1, (-1, length)).transpose(0, 1) for part in (query, key, value)]
        q, k, v = parts  # (pictures, heads, length, d)
        out = F.scaled_dot_product_attention(q, k, v, scale=scaling)
        return out.transpose(1, 2).flatten(0, 1)[None], None
    pieces = zip(*(part.split(lengths, 2) for part in (query, key, value)), strict=True)
    done = [F.scaled_dot_product_attention(q, k, v, scale=scaling).transpose(1, 2) for q, k, v in pieces]
    return torch.cat(done, 1), None


AttentionInterface.register(FRAMES, frames_attention)


def speed_up(model: Any) -> None:
    """Change a Qwen-VL model's vision tower in place; nothing happens to other models."""
    tower: Any = getattr(model, "visual", None)
    embed = getattr(getattr(tower, "patch_embed", None), "proj", None)
    if not isinstance(embed, nn.Conv3d) or tuple(embed.kernel_size) != tuple(embed.stride):
        return
    tower.patch_embed.proj = PatchProduct(embed)
    if tower.config._attn_implementation == "sdpa":
        tower.config._attn_implementation = FRAMES
