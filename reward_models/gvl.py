"""GVL: progress of shuffled frames (Generative Value Learning, METHODS 7).

The first frame is shown as 0 %, then other frames of the episode in random order, and the model says for each how
complete the task is in it. In order, a model would only count up; shuffled, it has to look. At most `max_frames`
frames are shown, the first among them; progress between them is interpolated. The order is decided by (seed, episode).

Two read-outs:
- `logits` [O]: the answer begins "Frame k: ", and progress is the expectation over the answers 0%, 10%, ..., 100% by
  their probabilities. Frames are asked one by one about the prompt that was read once, so no answer depends on another,
  the model cannot fail to answer, and a spread comes with it.
- `text`: the paper's; the model writes a line for each frame. What cannot be parsed is an abstention.

The first frame's 0 is given, not judged: an episode that begins complete is not noticed there. Values are relative to
it, and the model has seen the episode's last frames when it judges its first ones: no judge for a running episode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from reward_models.answers import distribution, mean_and_spread, parse_percentages
from reward_models.prompting import Content
from reward_models.zero_shot import AskedConfig, AskedJudge, Spread, anchor_frames, joined
from robo_rl.errors import ConfigError
from robo_rl.types import RewardSignal, Trajectory

PROMPT = (
    "A robot was asked to: {instruction}\nYou judge how complete this task is, from 0% (as at the beginning) to 100% "
    "(done).\nThis is the beginning, it is 0% complete: "
)
FRAMES = "\nHere are {count} other frames of the same attempt, in random order."
QUESTION = "\nHow complete is the task in each of them? Reply with one line for each frame, in the form Frame 1: 50%"
PERCENT = np.arange(0, 101, 10)
TOKENS_A_FRAME = 24  # of a written answer


@dataclass(frozen=True, kw_only=True)
class GVLConfig(AskedConfig):
    """How a model is asked. Raises ConfigError."""

    name: str = "gvl"
    max_frames: int = 15  # of an episode, the first among them
    seed: int = 0  # of the order
    prompt: str = PROMPT  # before the first frame; {instruction}
    frames: str = FRAMES  # before the shuffled frames; {count}
    question: str = QUESTION

    def __post_init__(self) -> None:
        AskedConfig.__post_init__(self)
        if self.max_frames < 2:
            raise ConfigError(f"judge.max_frames must be at least 2 (the first is given), got {self.max_frames}")
        if "{instruction}" not in self.prompt:
            raise ConfigError("judge.prompt must contain {instruction}")


class GVLJudge(AskedJudge):
    """A `Judge`: progress by a vision-language model that sees the frames in random order."""

    TYPE: ClassVar[str] = "gvl"
    CONFIG: ClassVar[type[AskedConfig]] = GVLConfig

    def check(self) -> None:
        self.asker.require_several("GVL")

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order. Raises RewardError naming an episode without any answer."""
        if self.config.readout == "text":
            return self._written(trajectories)
        return [self._read(episode) for episode in trajectories]

    def _read(self, episode: Trajectory) -> RewardSignal:
        anchors, order = self.shuffled(episode)
        reading = self.asker.read(self.content(episode, anchors[1:][order]))
        starts = [f"Frame {number + 1}: " for number in range(len(order))]
        log_p = reading.log_probs([f"{percent}%" for percent in PERCENT], starts)
        share, mass = distribution(_in_time(log_p, order))
        mean, deviation = mean_and_spread(share, PERCENT / 100.0)
        mean[mass < self.config.min_mass] = np.nan
        progress, deviation = np.append(0.0, mean), np.append(0.0, deviation)
        spread = Spread(episode, anchors, progress, first_is_given=True, uncertainty=deviation)
        return self.signal(episode, spread, {"answer_mass": np.append(np.nan, mass)})

    def _written(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        signals = []
        for first in range(0, len(trajectories), self.config.batch_size):
            episodes = [trajectories[n] for n in range(first, min(first + self.config.batch_size, len(trajectories)))]
            shown = [self.shuffled(episode) for episode in episodes]
            contents = [
                self.content(e, anchors[1:][order]) for e, (anchors, order) in zip(episodes, shown, strict=True)
            ]
            most = self.config.max_tokens or TOKENS_A_FRAME * self.config.max_frames
            for episode, (anchors, order), text in zip(episodes, shown, self.asker.write(contents, most), strict=True):
                read = parse_percentages(text, len(order))
                values = _in_time(np.array([np.nan if value is None else value for value in read]), order)
                spread = Spread(episode, anchors, np.append(0.0, values), first_is_given=True)
                signals.append(self.signal(episode, spread, {}))
        return signals

    def shuffled(self, episode: Trajectory) -> tuple[np.ndarray, np.ndarray]:
        """Anchors int64 (K,) in time, and the order int64 (K - 1,) in which those after the first are shown."""
        anchors = anchor_frames(len(episode), self.config.max_frames)
        name = int.from_bytes(hashlib.blake2b(episode.episode_id.encode(), digest_size=8).digest(), "big")
        return anchors, np.random.default_rng([self.config.seed, name]).permutation(len(anchors) - 1)

    def content(self, episode: Trajectory, frames: np.ndarray) -> Content:
        """The prompt that shows the first frame and then `frames` in this order."""
        config = self.config
        parts = joined(config.prompt.replace("{instruction}", episode.instruction), self.shown(episode, 0))
        parts.append(config.frames.replace("{count}", str(len(frames))))
        for number, frame in enumerate(frames):
            parts += [f"\nFrame {number + 1}: ", *self.shown(episode, int(frame))]
        return [*parts, config.question]


def _in_time(shown: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Values in the order of showing -> in time: what was shown at place k is anchor `order[k]`."""
    values = np.empty_like(shown)
    values[order] = shown
    return values
