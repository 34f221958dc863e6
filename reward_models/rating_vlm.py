"""RoboReward's rating of an episode, asked of any vision-language model: 1 to 5 for how far it came (METHODS 6).

The model sees frames of the whole video in order and rates its end: 1 no success, 2 minimal, 3 partial, 4 near,
5 perfect; "ANSWER: k". The words are ours [O]; for a RoboReward checkpoint give those of its model card in `question`.

Read-outs:
- `logits` [O]: the probabilities of 1, ..., 5 after "ANSWER: ". The rating is their mean, progress (rating - 1) / 4,
  uncertainty the deviation of progress, success_prob the probability of a 5 (not calibrated).
- `text`: the paper's; the model writes, and what does not say "ANSWER: k" is an abstention.

A rating is about the end of what is shown. So progress within an episode comes from rating its beginnings: the frames
up to each of `anchors` moments, spread over the video, the first frame and the end among them; the prompt is read
once for all of them. Between anchors progress is interpolated and `extra["rating"]` is NaN.
With `anchors: 1` only the whole video is rated, as in the paper: progress is that one value at every frame, and every
frame but the last is marked as abstained, because nobody was asked about it. That says how good an episode is, and
nothing about when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from reward_models.answers import distribution, mean_and_spread, parse_rating
from reward_models.prompting import Content
from reward_models.zero_shot import AskedConfig, AskedJudge, Spread, anchor_frames, joined
from robo_rl.errors import ConfigError
from robo_rl.types import RewardSignal, Trajectory

LEVELS = 5
START = "ANSWER: "
PROMPT = "These are frames of one video of a robot at work, in order."
QUESTION = (
    "\nThe robot was asked to: {instruction}\n"
    "How far has it come by the last frame? Judge only what is reached there, not how long it took.\n"
    "1 - no success: nothing of what was asked for has changed\n"
    "2 - minimal progress: a small change in the right direction\n"
    "3 - partial completion: an important part is done, an important part is missing\n"
    "4 - near completion: nearly done, or done with a small flaw\n"
    "5 - perfect completion: all that was asked for is done\n"
    "Reply in the form ANSWER: <number from 1 to 5>"
)
TOKENS = 64  # of a written answer


@dataclass(frozen=True, kw_only=True)
class RatingVLMConfig(AskedConfig):
    """How a model is asked. Raises ConfigError."""

    name: str = "rating"
    max_frames: int = 16  # of the whole video; 1: a prompt shows the moment that is rated and nothing else
    anchors: int = 8  # moments that are rated; 1: the end alone
    prompt: str = PROMPT
    question: str = QUESTION  # {instruction}

    def __post_init__(self) -> None:
        AskedConfig.__post_init__(self)
        if self.max_frames < 1 or self.anchors < 1:
            raise ConfigError(
                f"judge: max_frames and anchors must be at least 1, got {self.max_frames} and {self.anchors}"
            )
        if "{instruction}" not in self.prompt + self.question:
            raise ConfigError("judge.prompt or judge.question must contain {instruction}")


class RatingVLMJudge(AskedJudge):
    """A `Judge`: the rating of a video's beginnings by a vision-language model."""

    TYPE: ClassVar[str] = "rating_vlm"
    CONFIG: ClassVar[type[AskedConfig]] = RatingVLMConfig

    def check(self) -> None:
        if self.config.max_frames > 1 or len(self.config.cameras) > 1:
            self.asker.require_several("a rating of a video (max_frames > 1 or several cameras)")

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order. Raises RewardError naming an episode without any answer."""
        return [self._written(e) if self.config.readout == "text" else self._read(e) for e in trajectories]

    def _read(self, episode: Trajectory) -> RewardSignal:
        video = _Video(self, episode)
        share, mass = distribution(video.log_probs([str(level + 1) for level in range(LEVELS)]))
        mean, deviation = mean_and_spread(share, np.arange(LEVELS) / (LEVELS - 1))
        mean[mass < self.config.min_mass] = np.nan
        spread = Spread(episode, video.anchors, mean, uncertainty=deviation, success_prob=share[:, -1])
        return self._signal(episode, spread, mean, {"answer_mass": mass})

    def _written(self, episode: Trajectory) -> RewardSignal:
        video = _Video(self, episode)
        texts = self.asker.write(video.prompts(), self.config.max_tokens or TOKENS)
        read = [parse_rating(text, LEVELS) for text in texts]
        mean = np.array([np.nan if level is None else (level - 1) / (LEVELS - 1) for level in read])
        return self._signal(episode, Spread(episode, video.anchors, mean), mean, {})

    def _signal(self, episode: Trajectory, spread: Spread, mean: np.ndarray, extra: dict[str, Any]) -> RewardSignal:
        if self.config.anchors == 1:
            spread.abstained[:-1] = True
        return self.signal(episode, spread, {"rating": 1.0 + (LEVELS - 1) * mean, **extra})


class _Video:
    """The prompts that rate one episode's beginnings."""

    def __init__(self, judge: RatingVLMJudge, episode: Trajectory) -> None:
        config = judge.config
        self.asker, self.one_frame = judge.asker, config.max_frames == 1
        grid = anchor_frames(len(episode), config.anchors if self.one_frame else config.max_frames)
        chosen = anchor_frames(len(grid) - 1, config.anchors)
        self.anchors = grid[chosen]
        instruction = ("{instruction}", episode.instruction)
        self.before, self.question = config.prompt.replace(*instruction), config.question.replace(*instruction)
        shown = self.anchors if self.one_frame else grid
        self.frames = [joined(f"\nFrame {n + 1}: ", judge.shown(episode, int(frame))) for n, frame in enumerate(shown)]
        if self.one_frame:
            self.frames = [["\n", *frame[1:]] for frame in self.frames]
        self.counts = np.arange(1, len(shown) + 1) if self.one_frame else chosen + 1  # frames up to each anchor

    def prompts(self) -> list[Content]:
        """One prompt an anchor."""
        firsts = [count - 1 if self.one_frame else 0 for count in self.counts]
        return [
            joined(self.before, *self.frames[first:count], self.question)
            for first, count in zip(firsts, self.counts, strict=True)
        ]

    def log_probs(self, options: Sequence[str]) -> np.ndarray:
        """(anchors, options). Beginnings of one prompt are read with it."""
        if self.one_frame:
            return self.asker.log_probs(self.prompts(), options, START)
        reading = self.asker.read(joined(self.before, *self.frames, self.question))
        parts = 1 + len(self.frames[0]) * self.counts
        return np.concatenate([reading.log_probs(options, [START], cut=int(n), tail=[self.question]) for n in parts])
