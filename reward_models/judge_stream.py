"""Judging running episodes frame by frame, many at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from reward_models.objective import Reader, Readout
from robo_rl.errors import DataError

if TYPE_CHECKING:
    from reward_models.judge import CausalNetwork

Images = Mapping[str, np.ndarray]


class CausalStream:
    """Frames of B running episodes are appended; keys, values and nothing else of earlier frames are kept.

    The cost of a frame is that of its own tokens, plus attention to what the window reaches; nothing is recomputed.
    """

    def __init__(self, network: CausalNetwork, instructions: Sequence[str], stride: int) -> None:
        self._network, self._stride = network, stride
        self.instructions = list(instructions)
        with torch.inference_mode():
            self._state = network.backbone.start(self.instructions)
        self._readers = [self._new_readers(text) for text in self.instructions]
        self._seen = [0] * len(self.instructions)
        self._latest: list[Readout | None] = [None] * len(self.instructions)

    def _new_readers(self, instruction: str) -> list[Reader]:
        return [part.reader(instruction) for part in self._network.parts()]

    def reset(self, row: int, instruction: str | None = None) -> None:
        """Episode `row` starts again, with its instruction or another one; the others go on."""
        if instruction is not None:
            self.instructions[row] = instruction
        with torch.inference_mode():
            self._network.backbone.read(self._state, [row], [self.instructions[row]])
        self._readers[row] = self._new_readers(self.instructions[row])
        self._seen[row], self._latest[row] = 0, None

    def append(self, images: Images | Sequence[Images | None]) -> list[Readout]:
        """The next frame of every episode, camera -> uint8 (H, W, 3); None for an episode that waits.

        Returns an opinion for each: "progress", "success_prob", "uncertainty" (1,), "tri_state" (1, 3) of the step
        that led here (absent at the first frame), what else the judge's objectives say, and "hidden" (1, dim). With a
        stride, the frames between repeat the latest opinion. Raises DataError when a camera is missing.
        """
        rows = [images] if isinstance(images, Mapping) else list(images)
        if len(rows) != len(self.instructions):
            raise DataError(f"{len(self.instructions)} episodes are judged, but {len(rows)} frames were given")
        looked = [row for row, given in enumerate(rows) if given is not None and self._seen[row] % self._stride == 0]
        if looked:
            self._look(looked, [given for row in looked if (given := rows[row]) is not None])
        for row, given in enumerate(rows):
            self._seen[row] += given is not None
        return [latest or {} for latest in self._latest]

    def _look(self, looked: list[int], images: Sequence[Images]) -> None:
        backbone = self._network.backbone
        for given in images:
            missing = [camera for camera in backbone.cameras if camera not in given]
            if missing:
                cameras = ", ".join(backbone.cameras)
                raise DataError(f"no frame of camera {missing[0]!r}; the judge looks through: {cameras}")
        frames = {c: torch.from_numpy(np.stack([np.asarray(given[c]) for given in images])) for c in backbone.cameras}
        with torch.inference_mode():
            encoded = backbone.encode(frames)
            features: Tensor = encoded.new_zeros(len(self.instructions), 1, *encoded.shape[1:])
            features[looked, 0] = encoded
            there = torch.zeros(len(self.instructions), dtype=torch.bool, device=features.device)
            there[looked] = True
            hidden, self._state = backbone.step(features, self._state, there)
            for row in looked:
                merged: Readout = {"hidden": hidden[row].float().cpu().numpy()}
                for reader in self._readers[row]:
                    merged = reader.append(hidden[row]) | merged
                self._latest[row] = merged
