"""Judging an episode while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reward_models.heads import expected_progress
from reward_models.network import JudgeNetwork, mixed_precision
from reward_models.transformer import Past
from robo_rl.errors import DataError
from robo_rl.nets import tokenize


@dataclass(frozen=True, slots=True)
class StreamOpinion:
    """The judge's opinion of the newest frame."""

    progress: float
    success_prob: float
    tri_state: np.ndarray | None  # float32 (3,) of the step that led here; None at the first frame
    uncertainty: float
    hidden: np.ndarray  # float32 (dim,)


class JudgeStream:
    """Takes frames one by one; keeps the keys and values of the last frames only, so its cost does not grow."""

    def __init__(self, network: JudgeNetwork, instruction: str) -> None:
        self._network = network
        with torch.inference_mode():
            self._text = network.read(tokenize([instruction]))
        self._past: list[Past] | None = None
        self._before: Tensor | None = None

    def append(self, images: Mapping[str, np.ndarray]) -> StreamOpinion:
        """One observation, camera -> uint8 (H, W, 3). Raises DataError when a camera is missing."""
        network = self._network
        missing = [camera for camera in network.cameras if camera not in images]
        if missing:
            raise DataError(f"no frame of camera {missing[0]!r}; the judge looks through: {', '.join(network.cameras)}")
        with torch.inference_mode():
            frames = {c: torch.from_numpy(np.array(images[c]))[None] for c in network.cameras}
            with mixed_precision(network.config.precision):
                maps = network.maps(frames)
            token = network.frame_tokens(maps.float(), self._text)
            outputs, self._past = network.judge(token[:, None], self._text, self._past)
            progress, spread = expected_progress(outputs.progress[0, 0])
            hidden = outputs.hidden[0, 0]
            direction = None
            if self._before is not None:
                direction = network.heads.step(self._before, hidden).softmax(-1).numpy()
            self._before = hidden
            return StreamOpinion(
                progress=float(progress),
                success_prob=float(network.probability(outputs.success[0, 0])),
                tri_state=direction,
                uncertainty=float(spread),
                hidden=hidden.numpy(),
            )
