"""How one frame becomes tokens of a vision-language model: found by asking its processor, not by knowing its family."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from robo_rl.errors import ConfigError

IMAGE, REWARD = -1, -2  # instead of a token id
MARK = "\x02"  # stands for the instruction while the chat template is rendered


@dataclass(frozen=True)
class FrameLayout:
    """The tokens of one step: for every camera opening, image and closing tokens, then the reward token.

    Positions are relative to the frame's first token. Models with three-dimensional rotary positions (Qwen) number
    image tokens by (time, row, column); others count on.
    """

    ids: Tensor  # int64 (n,): token ids, IMAGE, or REWARD for the last
    offsets: Tensor  # int64 (3, n)
    advance: int  # positions from one frame to the next
    group: Tensor  # int64 (n,): which of the frame's images a token belongs to, -1 for text

    @property
    def length(self) -> int:
        return len(self.ids)


def image_inputs(processor: Any, images: Tensor) -> dict[str, Tensor]:
    """uint8 (N, H, W, 3) -> what `get_image_features` takes; one tile an image, however the model was trained."""
    arrays = list(images.permute(0, 3, 1, 2).contiguous())
    images_processor = processor.image_processor
    given: list[Any] = arrays
    options: dict[str, Any] = {"return_tensors": "pt", "input_data_format": "channels_first"}
    if hasattr(images_processor, "do_image_splitting"):  # Idefics 3 and SmolVLM: a list of images for each prompt
        given, options["do_image_splitting"] = [[image] for image in arrays], False
    if hasattr(images_processor, "crop_to_patches"):  # InternVL
        options["crop_to_patches"] = False
    made = images_processor(images=given, **options)
    known = ("pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask")
    return {name: torch.as_tensor(np.asarray(made[name])) for name in known if name in made}


def resized(images: Tensor, size: int) -> Tensor:
    """uint8 (N, H, W, 3) -> uint8 (N, size, size, 3), antialiased; `size` 0 changes nothing."""
    if not size or tuple(images.shape[1:3]) == (size, size):
        return images
    floats = images.permute(0, 3, 1, 2).float()
    small = F.interpolate(floats, (size, size), mode="bilinear", antialias=True, align_corners=False)
    return small.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


def image_features(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Features of N images, (N, tokens, dim * k): the language model's inputs, then deep-stacked ones if any."""
    first = next(model.parameters())
    moved = {name: _to(value, first) for name, value in inputs.items()}
    out = model.get_image_features(**moved)
    main = out.pooler_output if hasattr(out, "pooler_output") else out
    count = len(moved["image_grid_thw"]) if "image_grid_thw" in moved else len(moved["pixel_values"])
    parts = [_by_image(main, count)]
    parts += [_by_image(deep, count) for deep in getattr(out, "deepstack_features", None) or ()]
    return torch.cat(parts, -1)


def _to(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like.device, like.dtype) if value.is_floating_point() else value.to(like.device)


def _by_image(features: Tensor | Sequence[Tensor], count: int) -> Tensor:
    if not isinstance(features, Tensor):
        sizes = {len(part) for part in features}
        if len(sizes) != 1:
            raise ConfigError(f"frames of one camera gave {sorted(sizes)} image tokens; set backbone.image_size")
        features = torch.stack(list(features))
    return features.reshape(count, -1, features.shape[-1])


def _rendered(processor: Any, content: list[dict[str, str]]) -> str:
    """The chat template's text for one user's message. Some processors warn about their own arguments at every call."""
    logger = logging.getLogger("transformers.processing_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return str(processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False))
    finally:
        logger.setLevel(level)


def prompt_head(processor: Any) -> str:
    """What the chat template writes before a user's text; "" where the model has no template."""
    if not getattr(processor, "chat_template", None):
        return ""
    return _rendered(processor, [{"type": "text", "text": MARK}]).split(MARK)[0]


def prompt_ids(processor: Any, head: str, text: str) -> list[int]:
    """Token ids of the head and the text; with the tokenizer's own start token where there is no template."""
    return list(processor.tokenizer(head + text, add_special_tokens=not head)["input_ids"])


def surroundings(processor: Any, image_token: int) -> tuple[list[int], list[int]]:
    """Token ids that the processor puts before and after an image; none where the model has no chat template."""
    if not getattr(processor, "chat_template", None):
        return [], []
    content = [{"type": "text", "text": MARK}, {"type": "image"}, {"type": "text", "text": MARK}]
    placeholder = _rendered(processor, content).split(MARK)[1]
    blank = np.zeros((64, 64, 3), np.uint8)
    options: dict[str, Any] = {}
    if hasattr(processor.image_processor, "do_image_splitting"):
        options["do_image_splitting"] = False
    if hasattr(processor.image_processor, "crop_to_patches"):
        options["crop_to_patches"] = False
    ids = processor(text=[placeholder], images=[[blank]], add_special_tokens=False, **options)["input_ids"][0]
    ids = [int(token) for token in ids]
    if image_token not in ids:
        raise ConfigError(f"{type(processor).__name__}: the chat template writes no image token for an image")
    first, last = ids.index(image_token), len(ids) - 1 - ids[::-1].index(image_token)
    return ids[:first], ids[last + 1 :]


def frame_layout(
    around: tuple[list[int], list[int]], tokens: Sequence[int], grids: Sequence[tuple[int, int]]
) -> FrameLayout:
    """The layout of a step with one image a camera.

    `around`: token ids before and after an image; `tokens`: image tokens of each camera; `grids`: their rows and
    columns for models with three-dimensional positions, empty for others.
    """
    before, after = around
    ids: list[int] = []
    offsets: list[tuple[int, int, int]] = []
    group: list[int] = []
    place = 0
    for camera, count in enumerate(tokens):
        for token in before:
            ids.append(token)
            offsets.append((place,) * 3)
            place += 1
        group += [-1] * len(before) + [camera] * count + [-1] * len(after)
        ids += [IMAGE] * count
        if grids:
            rows, columns = grids[camera]
            offsets += [(place, place + row, place + column) for row in range(rows) for column in range(columns)]
            place += max(rows, columns)
        else:
            offsets += [(place + number,) * 3 for number in range(count)]
            place += count
        for token in after:
            ids.append(token)
            offsets.append((place,) * 3)
            place += 1
    ids.append(REWARD)
    offsets.append((place,) * 3)
    group.append(-1)
    return FrameLayout(torch.tensor(ids), torch.tensor(offsets).T.contiguous(), place + 1, torch.tensor(group))
