"""The compact judge's eyes and transformer as a backbone: runs on a CPU, needs no download."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from reward_models.network import CompactJudgeConfig, JudgeNetwork, mixed_precision
from reward_models.transformer import Past
from robo_rl.nets import tokenize


@dataclasses.dataclass
class CompactState:
    """The past of B rows. Rows may have started at different times, so each has its own."""

    text: Tensor  # (B, text_dim)
    past: list[list[Past] | None]


class CompactBackbone(nn.Module):
    """`Backbone` on `JudgeNetwork` without its heads. Features are the convolutional maps."""

    def __init__(self, config: CompactJudgeConfig) -> None:
        super().__init__()
        self.config, self.cameras, self.dim = config, config.cameras, config.dim
        self.network = JudgeNetwork(config, config.cameras)
        self.network.heads = nn.Identity()  # type: ignore[assignment]
        self.revision = ""

    @property
    def trains_vision(self) -> bool:
        """Whether features change while training; fitting trains the trunk first, then freezes it."""
        return any(parameter.requires_grad for parameter in self.network.trunks.parameters())

    def frozen(self) -> set[str]:
        """Names of tensors that are not the judge's own: none."""
        return set()

    def may_train(self) -> None:
        """Ask for a gradient where one is wanted."""
        self.requires_grad_(True)

    def encode(self, frames: Mapping[str, Tensor]) -> Tensor:
        """Maps (N, cameras, channels, s, s)."""
        with mixed_precision(self.config.precision):
            return self.network.maps(frames).float()

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return 1

    def camera_places(self) -> list[slice]:
        """Where each camera is along the third axis of features (B, L, cameras, ...)."""
        return [slice(number, number + 1) for number in range(len(self.cameras))]

    def forward(self, features: Tensor, instructions: Sequence[str]) -> Tensor:
        """(B, L, cameras, channels, s, s) -> (B, L, dim)."""
        text = self.network.read(tokenize(instructions))
        return self._hidden(features, text, None)[0]

    def start(self, instructions: Sequence[str]) -> CompactState:
        """Read B instructions."""
        return CompactState(self.network.read(tokenize(instructions)), [None] * len(instructions))

    def read(self, state: CompactState, rows: Sequence[int], instructions: Sequence[str]) -> None:
        """Some rows start again, each with its instruction."""
        text = self.network.read(tokenize(instructions))
        for row, vector in zip(rows, text, strict=True):
            state.text[row] = vector
            state.past[row] = None

    def step(self, features: Tensor, state: CompactState, rows: Tensor | None = None) -> tuple[Tensor, CompactState]:
        """The next L frames of all rows, or of those where `rows` bool (B,) is True; changes `state` in place.

        Rows with pasts of one length go through together.
        """
        groups: dict[int, list[int]] = {}
        for row, past in enumerate(state.past):
            if rows is None or bool(rows[row]):
                groups.setdefault(0 if past is None else past[0][0].shape[2], []).append(row)
        hidden = features.new_zeros(len(state.past), features.shape[1], self.dim)
        for length, members in groups.items():
            pasts = [past for row in members if (past := state.past[row]) is not None]
            joined = [
                tuple(torch.cat(parts) for parts in zip(*layer, strict=True)) for layer in zip(*pasts, strict=True)
            ]
            out, past = self._hidden(features[members], state.text[members], joined if length else None)  # type: ignore[arg-type]
            hidden[members] = out
            for place, row in enumerate(members):
                state.past[row] = [(key[place : place + 1], value[place : place + 1]) for key, value in past]
        return hidden, state

    def _hidden(self, features: Tensor, text: Tensor, past: list[Past] | None) -> tuple[Tensor, list[Past]]:
        network, (batch, length) = self.network, features.shape[:2]
        tokens = network.frame_tokens(features.flatten(0, 1).float(), text.repeat_interleave(length, 0))
        return network.transformer(tokens.view(batch, length, -1), network.asked(text), past)
