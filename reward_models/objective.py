"""What a causal judge learns and reads out: the interface that every member of the family fills in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor, nn

from reward_models.batches import ClipBatch

Readout = dict[str, np.ndarray]
"""Of L frames: "progress", "success_prob", "uncertainty" (L,), "tri_state" (new steps, 3); others are (L,)."""


class Reader(Protocol):
    """Reads one episode, a few frames at a time."""

    def append(self, hidden: Tensor) -> Readout:
        """Hidden states float32 (L, dim) of the next L frames."""
        ...

    def whole(self, read: Readout) -> Readout:
        """Last word on a finished episode, given what `append` said of all its frames."""
        ...


class Objective(nn.Module):
    """Heads on the hidden states, their loss, and how their outputs become a `RewardSignal`."""

    kind: ClassVar[str]
    needs_slow: ClassVar[bool] = False  # whether the loss wants success probabilities of a slow copy

    def loss(self, hidden: Tensor, batch: ClipBatch, slow: Tensor | None) -> dict[str, Tensor]:
        """Parts of the loss, already weighted; their sum is minimised.

        hidden: (B, L, dim). slow: success probabilities (B, L) of the slow copy, where an objective asks for one.
        """
        raise NotImplementedError

    def reader(self, instruction: str) -> Reader:
        """A reader of one episode."""
        raise NotImplementedError

    def success_logits(self, hidden: Tensor) -> Tensor | None:
        """(..., dim) -> uncalibrated success logits (...), None where there is no such head."""
        return None

    def calibrate(self, scale: float, shift: float) -> None:
        """Set p = sigmoid(scale logit + shift); nothing where there is no success head."""

    def prepare(self, facts: Mapping[str, Any]) -> None:
        """Take what was measured on the training episodes, by name; each objective knows its own names."""

    def facts(self) -> dict[str, Any]:
        """What `prepare` was given, as plain values for `config.json`."""
        return {}


class FrameReader:
    """A reader for objectives whose outputs at a frame need that frame's hidden state alone."""

    def whole(self, read: Readout) -> Readout:
        return read


def head(inputs: int, hidden: int, outputs: int, dropout: float = 0.1) -> nn.Sequential:
    """Linear, LayerNorm, GELU, dropout, Linear (Robometer's heads, METHODS 5)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Mean of (n,) with weights (n,); 0 with a gradient where there is nothing."""
    return (values * weight).sum() / weight.sum().clamp(min=1e-8) if values.numel() else values.sum()
