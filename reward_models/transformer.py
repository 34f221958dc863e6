"""A causal transformer over frames without a clock.

No absolute positions: a frame attends to the `window` frames up to itself, with a learned bias for each distance, and
to the instruction. Once the window is full, nothing in the input says how long the video has run, so a long,
padded or slowed-down video cannot be read as progress for being long. The state to carry is `window` - 1 frames.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Past = tuple[Tensor, Tensor]  # keys and values of earlier frames, (B, heads, at most window - 1, dim / heads)


class WindowAttention(nn.Module):
    """Attention to the instruction and to the latest frames."""

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.instruction = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)
        self.distance = nn.Parameter(torch.zeros(heads, window))

    def forward(self, x: Tensor, text: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        """x (B, L, dim), text (B, dim), keys and values of the frames before x -> (B, L, dim), new past."""
        batch, length, dim = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        asked = self.instruction(text).view(batch, 2, self.heads, 1, -1)
        mixed = F.scaled_dot_product_attention(
            query,
            torch.cat([asked[:, 0], key], 2),
            torch.cat([asked[:, 1], value], 2),
            attn_mask=self._bias(length, key.shape[2]).to(query.dtype),
        )
        drop = max(0, key.shape[2] - (self.window - 1))
        return self.out(mixed.transpose(1, 2).reshape(batch, length, dim)), (key[:, :, drop:], value[:, :, drop:])

    def _bias(self, length: int, keys: int) -> Tensor:
        """(heads, length, 1 + keys): 0 for the instruction, the distance's bias inside the window, -inf outside."""
        rows = torch.arange(keys - length, keys, device=self.distance.device)
        distance = rows[:, None] - torch.arange(keys, device=self.distance.device)
        allowed = (distance >= 0) & (distance < self.window)
        bias = self.distance[:, distance.clamp(0, self.window - 1)].masked_fill(~allowed, float("-inf"))
        return F.pad(bias, (1, 0))


class Block(nn.Module):
    """Pre-norm attention and feed-forward layer."""

    def __init__(self, dim: int, heads: int, window: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = WindowAttention(dim, heads, window)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, text: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        mixed, past = self.attention(self.norm1(x), text, past)
        x = x + self.dropout(mixed)
        return x + self.dropout(self.feed_forward(self.norm2(x))), past


class FrameTransformer(nn.Module):
    """Blocks and a final norm; outputs at frame t depend on frames up to t alone."""

    def __init__(self, dim: int, layers: int, heads: int, window: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, heads, window, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, text: Tensor, past: list[Past] | None = None) -> tuple[Tensor, list[Past]]:
        """x (B, L, dim), text (B, dim), `past` of the frames before -> hidden (B, L, dim), `past` for the next."""
        new = []
        for number, block in enumerate(self.blocks):
            x, kept = block(x, text, past[number] if past else None)
            new.append(kept)
        return self.norm(x), new
