"""What a causal pass over frames remembers: keys and values, and who may look at them.

Rows are environments or episodes. A column belongs to one moment of the computation; a row to which nothing
was appended then has `valid` False there. So rows may start, stop and start again at different times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache

PREFIX = -1  # frame number of the instruction's tokens


@dataclass
class State:
    """The past of B rows."""

    valid: Tensor  # bool (B, K): the row has a token there
    frame: Tensor  # int64 (B, K): frame number of the token, PREFIX for the instruction
    position: Tensor  # int64 (B,): the next token's position
    frames: Tensor  # int64 (B,): frames seen
    cache: DynamicCache = field(default_factory=DynamicCache)

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> State:
        nothing = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        zero = torch.zeros(rows, dtype=torch.int64, device=device)
        return cls(nothing.bool(), nothing, zero, zero.clone())

    def forget(self, window: int) -> None:
        """Drop columns that no row will look at again: those of no row, and frames that left every window."""
        if window:
            self.valid &= (self.frame == PREFIX) | (self.frame > (self.frames - window)[:, None])
        keep = self.valid.any(0)
        if bool(keep.all()):
            return
        self.valid, self.frame = self.valid[:, keep], self.frame[:, keep]
        for layer in self.cache.layers:
            if layer.keys is not None and layer.keys.numel():
                layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]


def attention_rule(
    *,
    key_valid: Tensor,
    key_frame: Tensor,
    query_frame: Tensor,
    query_group: Tensor | None,
    window: int,
) -> Tensor:
    """bool (B, 1, N, K): which of K tokens each of the last N may attend to.

    A token sees what comes before it: the instruction, and the frames of its window. Tokens of one image see each
    other where the model was trained that way (`query_group` int64 (B, N), -1 for none). A token without a
    row sees itself, so that its softmax is defined.
    """
    keys, queries = key_valid.shape[1], query_frame.shape[1]
    place = torch.arange(keys, device=key_valid.device)
    query_place = place[keys - queries :]
    seen = (place[None, :] <= query_place[:, None])[None]  # (1, N, K)
    if query_group is not None:
        same = (query_group[:, :, None] == query_group[:, None, :]) & (query_group >= 0)[:, :, None]
        seen = seen.expand(len(key_valid), -1, -1).clone()
        seen[:, :, keys - queries :] |= same
    seen = seen & key_valid[:, None, :]
    if window:
        near = key_frame[:, None, :] > query_frame[:, :, None] - window
        seen = seen & (near | (key_frame == PREFIX)[:, None, :])
    itself = place[None, :] == query_place[:, None]
    return (seen | itself)[:, None]
