"""Small vision and language encoders shared by the compact policy and the compact judge.

Both are sized to be trained from scratch on a CPU in a minute or two. The convolutional trunk never
sees the instruction, so its maps can be computed once for every frame and kept; language enters
afterwards, in `LanguagePool`, so asking about another instruction costs no convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MAX_BYTES = 96  # longer instructions are cut


@lru_cache(maxsize=4096)
def _encode_bytes(text: str) -> tuple[int, ...]:
    raw = text.strip().lower().encode("utf-8")[:MAX_BYTES]
    return tuple(byte + 1 for byte in raw) or (33,)  # a lone space: an empty instruction is valid input


def tokenize(texts: Sequence[str]) -> Tensor:
    """UTF-8 bytes of every text, shifted by one: int64 (B, MAX_BYTES), 0 is padding."""
    out = torch.zeros(len(texts), MAX_BYTES, dtype=torch.int64)
    for row, text in enumerate(texts):
        codes = _encode_bytes(text)
        out[row, : len(codes)] = torch.tensor(codes, dtype=torch.int64)
    return out


class TextEncoder(nn.Module):
    """Bytes of an instruction -> one vector: (B, L) int64 -> (B, dim)."""

    def __init__(self, dim: int = 64, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(257, width, padding_idx=0)
        self.position = nn.Parameter(torch.randn(MAX_BYTES, width) * 0.1)
        self.conv1 = nn.Conv1d(width, width, 5, padding=2)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2)
        self.out = nn.Sequential(nn.Linear(2 * width, dim), nn.GELU(), nn.Linear(dim, dim), nn.LayerNorm(dim))

    def forward(self, tokens: Tensor) -> Tensor:
        # A batch repeats few instructions: encode each once.
        unique, inverse = torch.unique(tokens, dim=0, return_inverse=True)
        mask = (unique > 0).unsqueeze(1)
        x = (self.embed(unique) + self.position[: unique.shape[1]]).transpose(1, 2)
        x = F.gelu(self.conv1(x * mask))
        x = F.gelu(self.conv2(x * mask)) * mask
        mean = x.sum(-1) / mask.sum(-1)
        top = x.masked_fill(~mask, -1e4).amax(-1)
        return self.out(torch.cat([mean, top], -1))[inverse]


class ConvTrunk(nn.Module):
    """Frames -> feature maps, without language: float (B, 3, H, W) in [0, 1] -> (B, channels, H/4, W/4)."""

    def __init__(self, channels: int = 48) -> None:
        super().__init__()
        self.channels = channels
        self.stem = nn.Conv2d(3, 32, 8, stride=4, padding=2)
        self.conv1 = nn.Conv2d(32, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, frames: Tensor) -> Tensor:
        x = F.relu(self.stem((frames - 0.5) * 2.0))
        x = F.relu(self.conv1(x))
        return F.relu(x + self.conv2(x))


class LanguagePool(nn.Module):
    """Where is what the instruction speaks of? (B, C, h, w), (B, text) -> (B, out_dim).

    Every query attends over the map; it reads out the expected position and the features found there.
    Half of the queries are asked by the instruction, half are the same for all instructions.
    """

    def __init__(self, channels: int, text_dim: int, queries: int = 16, values: int = 12) -> None:
        super().__init__()
        self.queries, self.values, self.channels = queries, values, channels
        self.asked = nn.Linear(text_dim, (queries // 2) * channels)
        self.fixed = nn.Parameter(torch.randn(queries - queries // 2, channels) * 0.3)
        self.sharpness = nn.Parameter(torch.zeros(queries))
        self.value = nn.Linear(channels, values)

    @property
    def out_dim(self) -> int:
        return self.queries * (self.values + 2)

    def forward(self, maps: Tensor, text: Tensor) -> Tensor:
        batch, channels, height, width = maps.shape
        flat = maps.flatten(2)  # (B, C, P)
        asked = self.asked(text).view(batch, -1, channels)
        query = torch.cat([asked, self.fixed.expand(batch, -1, -1)], 1)  # (B, Q, C)
        logits = torch.bmm(query, flat).float() * (self.sharpness.exp()[:, None] / channels**0.5)
        attention = logits.softmax(-1)  # (B, Q, P)
        rows = torch.linspace(-1, 1, height, device=maps.device)
        columns = torch.linspace(-1, 1, width, device=maps.device)
        grid = torch.stack([columns.repeat(height), rows.repeat_interleave(width)], -1)  # (P, 2): x, y
        place = attention @ grid
        found = self.value(torch.bmm(attention.to(flat.dtype), flat.transpose(1, 2)))
        return torch.cat([place.flatten(1).to(found.dtype), found.flatten(1)], -1)


class LanguageGrid(nn.Module):
    """What is where, for this instruction: (B, C, h, w), (B, text) -> (B, out_dim).

    The instruction scales and shifts the channels, then the map is read as a coarse grid. Positions are
    learned faster this way than through attention alone: 63 % against 12 % success on the same demonstrations.
    """

    def __init__(self, channels: int, text_dim: int, out_dim: int = 160, width: int = 32, cells: int = 8) -> None:
        super().__init__()
        self.out_dim, self.cells = out_dim, cells
        self.modulate = nn.Linear(text_dim, 2 * channels)
        nn.init.zeros_(self.modulate.weight)
        nn.init.zeros_(self.modulate.bias)
        self.coarse = nn.Conv2d(channels, width, 3, stride=2, padding=1)
        self.read = nn.Linear(width * cells * cells, out_dim)

    def forward(self, maps: Tensor, text: Tensor) -> Tensor:
        scale, shift = self.modulate(text)[:, :, None, None].chunk(2, 1)
        grid = F.relu(self.coarse(F.relu(maps * (1 + scale) + shift)))
        if grid.shape[-2:] != (self.cells, self.cells):
            grid = F.adaptive_avg_pool2d(grid, self.cells)
        return F.gelu(self.read(grid.flatten(1)))
