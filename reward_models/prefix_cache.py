"""Run the language half of a Qwen3-VL model in pieces, each piece continuing keys and values computed before.

The pieces see exactly what they would see in one long pass: the same embeddings, rotary positions and earlier tokens.
So the results are those of the long pass, up to the rounding of sums taken in another order; nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import DynamicCache, DynamicLayer


@dataclass(frozen=True)
class KeyValues:
    """Keys and values of B token sequences in every layer, (B, heads, tokens, head_dim); shorter ones padded in front.

    `valid` is (B, tokens) bool, False in the padding; None when nothing is padded.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    valid: Tensor | None = None

    @property
    def tokens(self) -> int:
        return self.layers[0][0].shape[2]

    def rows(self, index: Tensor) -> KeyValues:
        """Rows by number, repeated where asked; all from a single row costs no memory."""
        if len(self.layers[0][0]) == 1:
            layers = tuple((k.expand(len(index), -1, -1, -1), v.expand(len(index), -1, -1, -1)) for k, v in self.layers)
            return KeyValues(layers, None if self.valid is None else self.valid.expand(len(index), -1))
        layers = tuple((k.index_select(0, index), v.index_select(0, index)) for k, v in self.layers)
        return KeyValues(layers, None if self.valid is None else self.valid[index])

    def first(self, tokens: int) -> KeyValues:
        """Only the first tokens of every row."""
        layers = tuple((k[:, :, :tokens], v[:, :, :tokens]) for k, v in self.layers)
        return KeyValues(layers, None if self.valid is None else self.valid[:, :tokens])


def stack(parts: Sequence[KeyValues]) -> KeyValues:
    """Several into one batch; the shorter ones are padded in front, where attention does not look."""
    if len(parts) == 1:
        return parts[0]
    longest = max(part.tokens for part in parts)
    layers = tuple(
        (
            torch.cat([_pad_front(part.layers[number][0], longest) for part in parts]),
            torch.cat([_pad_front(part.layers[number][1], longest) for part in parts]),
        )
        for number in range(len(parts[0].layers))
    )
    if all(part.tokens == longest and part.valid is None for part in parts):
        return KeyValues(layers)
    valid = []
    for part in parts:
        batch, device = len(part.layers[0][0]), part.layers[0][0].device
        own = torch.ones(batch, part.tokens, dtype=torch.bool, device=device) if part.valid is None else part.valid
        valid.append(functional.pad(own, (longest - part.tokens, 0), value=False))
    return KeyValues(layers, torch.cat(valid))


def _pad_front(states: Tensor, tokens: int) -> Tensor:
    missing = tokens - states.shape[2]
    return functional.pad(states, (0, 0, missing, 0)) if missing else states


def extend(
    language_model: Any,
    embeds: Tensor,
    positions: Tensor,
    past: KeyValues | None = None,
    *,
    visual: Tensor | None = None,
    deep: Sequence[Tensor] = (),
    mask: Tensor | None = None,
) -> tuple[Tensor, KeyValues]:
    """One pass over new tokens after `past`.

    Args:
        language_model: a `Qwen3VLTextModel`.
        embeds: (B, N, D), pictures already in their places.
        positions: int64 (3, B, N), rotary positions in time, height and width.
        past: what the new tokens follow; None at the start.
        visual: bool (B, N), the places of picture tokens.
        deep: for every deep-stacked layer, the features of those places, (number of places, D), row after row.
        mask: (1, 1, N, past + N) additive, what each new token attends to; None for causal.

    Returns:
        Hidden states after the last norm (B, N, D), and the keys and values of past and new tokens.
    """
    cache = _cache(past)
    attention = mask
    if mask is None and past is not None and past.valid is not None:
        attention = functional.pad(past.valid, (0, embeds.shape[1]), value=True).long()
    output = language_model(
        inputs_embeds=embeds,
        position_ids=positions,
        attention_mask=attention,
        past_key_values=cache,
        use_cache=True,
        visual_pos_masks=visual,
        deepstack_visual_embeds=list(deep) if visual is not None else None,
    )
    layers = tuple((layer.keys, layer.values) for layer in cache.layers)
    valid = None
    if past is not None and past.valid is not None:
        valid = functional.pad(past.valid, (0, embeds.shape[1]), value=True)
    return output.last_hidden_state, KeyValues(layers, valid)


def _cache(past: KeyValues | None) -> DynamicCache:
    cache = DynamicCache()
    for keys, values in () if past is None else past.layers:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache
