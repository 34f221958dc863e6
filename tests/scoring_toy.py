"""A judge for the tests of scoring: what it says is decided by the frames and the instruction, and it can fail."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from robo_rl.errors import DataError, RewardError
from robo_rl.types import RewardSignal, Trajectory


def instruction_mark(text: str) -> np.float32:
    """A number that tells instructions apart."""
    return np.float32(zlib.crc32(text.encode()) % 9973)


@dataclass
class ToyJudge:
    """`fails` names episodes that make it raise, `nan` those of which it says NaN, `dies` those that kill the process.

    `log` gets a line for every episode that it is asked about.
    """

    model_id: str = "toy@1"
    prompt: str = "how far?"
    fails: Sequence[str] = ()
    nan: Sequence[str] = ()
    dies: Sequence[str] = ()
    log: Path | None = None
    cameras: Sequence[str] = ("front",)
    batches: list[int] = field(default_factory=list)

    def provenance(self) -> dict[str, str]:
        return {"revision": "r1", "prompt": self.prompt, "process": "any"}

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        self.batches.append(len(trajectories))
        return [self._one(episode) for episode in trajectories]

    def _one(self, episode: Trajectory) -> RewardSignal:
        if self.log is not None:
            with self.log.open("a") as handle:
                handle.write(f"{episode.episode_id}\n")
        name = episode.episode_id
        if name in self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if name in self.fails:
            raise RewardError(f"{self.model_id}: episode {name!r}: no answer")
        for camera in self.cameras:
            if camera not in episode.images:
                raise DataError(f"episode {name!r}: the judge needs camera {camera!r}")
        shown = np.zeros(len(episode) + 1, np.float32)
        for frames in episode.images.values():
            shown += np.array([frame.mean(dtype=np.float64) for frame in frames], np.float32) / 255 / 2
        shown = np.clip(shown, 0, 1)
        frame = np.arange(len(shown))
        return RewardSignal(
            episode_id=name,
            model_id=self.model_id,
            progress=np.full_like(shown, np.nan) if name in self.nan else shown,
            success_prob=shown**2,
            tri_state=np.stack([shown[:-1], 1 - shown[:-1], 0 * shown[:-1]], 1),
            abstained=frame % 5 == 3,
            extra={
                "mark": np.full(len(shown), instruction_mark(episode.instruction)),
                "late": np.where(frame == 0, np.nan, frame).astype(np.float32),
            },
        )
