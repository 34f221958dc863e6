"""The tokens of TOPReward's prompts for all prefixes of an episode, in the parts that prefixes share.

Qwen3-VL writes a video as groups of two frames: `<0.2 seconds>`, the picture of both, the next group. A prefix with an
odd number of frames ends in a group of its last frame twice, with its own time stamp. Then follows the question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lerobot.lerobot_types import TransitionKey
from lerobot.rewards.topreward.processor_topreward import TOPREWARD_FEATURE_PREFIX

from robo_rl.errors import RewardError


@dataclass(frozen=True)
class PromptText:
    """Token ids of one instruction's prompts; a group's picture is `picture_start`, its tokens, `picture_end`."""

    openings: tuple[tuple[int, ...], ...]  # before the first picture, when the first group has 1, 2 ... frames
    question: tuple[int, ...]  # after the last picture, without the answer
    answer: int  # the token whose probability is the reward
    picture_start: int
    picture_end: int
    pad: int  # stands for a piece of a picture
    group: int  # frames in a full group
    fps: float
    tokenizer: Any

    def before(self, first: int, frames: int) -> list[int]:
        """What stands before the picture of the group that begins at frame `first` and has so many frames."""
        if first == 0:
            return list(self.openings[frames - 1])
        start, end = self.tokenizer.convert_ids_to_tokens([self.picture_start, self.picture_end])
        text = f"{end}<{timestamp(first, frames, self.fps):.1f} seconds>{start}"
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return list(ids[1:-1])

    def picture(self, tokens: int) -> list[int]:
        return [self.picture_start, *[self.pad] * tokens, self.picture_end]

    def prompt(self, frames: int, tokens: int) -> list[int]:
        """The whole prompt of a prefix, with the answer."""
        ids: list[int] = []
        for first in range(0, frames, self.group):
            ids += self.before(first, min(self.group, frames - first)) + self.picture(tokens)
        return [*ids, *self.question, self.answer]


def timestamp(first: int, frames: int, fps: float) -> float:
    """Seconds that stand before a group: the middle between its first and last frame (Qwen3-VL's processor)."""
    return (first / fps + (first + frames - 1) / fps) / 2


def read_text(encoder: Any, config: Any, instruction: str) -> PromptText:
    """Take the prompt apart that lerobot's encoder makes for this instruction.

    Args:
        encoder: lerobot's `TOPRewardEncoderProcessorStep`.
        config: the model's, a `Qwen3VLConfig`.
        instruction: of the episode.

    Raises:
        RewardError: a prompt put together from the parts differs from the encoder's, so sharing would change scores.
    """
    processor = encoder._processor
    group = processor.video_processor.temporal_patch_size
    start, end = config.vision_start_token_id, config.vision_end_token_id
    prompts = {frames: _encode(encoder, instruction, frames) for frames in (*range(1, group + 1), 2 * group + 1)}
    openings = tuple(tuple(ids[: ids.index(start)]) for ids in list(prompts.values())[:group])
    last = prompts[1]
    text = PromptText(
        openings=openings,
        question=tuple(last[len(last) - last[::-1].index(end) : -1]),
        answer=last[-1],
        picture_start=start,
        picture_end=end,
        pad=config.video_token_id,
        group=group,
        fps=float(encoder.fps),
        tokenizer=processor.tokenizer,
    )
    for frames, ids in prompts.items():
        groups = -(-frames // group)
        if text.prompt(frames, ids.count(text.pad) // groups) != ids:
            raise RewardError(
                f"topreward: the tokenizer of {encoder.vlm_name} joins text across pictures, so prefixes have no "
                "tokens in common; use the tokenizer that came with the model"
            )
    return text


def _encode(encoder: Any, instruction: str, frames: int) -> list[int]:
    side = encoder._processor.video_processor.patch_size * encoder._processor.video_processor.merge_size
    encoded = encoder(
        {
            TransitionKey.OBSERVATION: {encoder.image_key: torch.zeros(1, frames, 3, side, side, dtype=torch.uint8)},
            TransitionKey.COMPLEMENTARY_DATA: {encoder.task_key: instruction},
        }
    )
    return list(encoded[TransitionKey.OBSERVATION][f"{TOPREWARD_FEATURE_PREFIX}input_ids"][0].tolist())
