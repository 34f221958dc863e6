"""Video frames for TOPReward, prepared as Qwen3-VL's video processor prepares the whole prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.image_utils import SizeDict
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

Size = tuple[int, int]  # height, width in pixels


def resized(processor: Any, frames: int, size: Size) -> Size:
    """Size to which the video processor brings the frames of a video of this length.

    It holds the pixels of the whole video within a budget, so long and very short prefixes are resized differently;
    features are shared only between prefixes of equal size. Raises ValueError for frames that cannot be used.
    """
    if not processor.do_resize:
        return size
    height, width = smart_resize(
        num_frames=frames,
        height=size[0],
        width=size[1],
        temporal_factor=processor.temporal_patch_size,
        factor=processor.patch_size * processor.merge_size,
        min_pixels=processor.size["shortest_edge"],
        max_pixels=processor.size["longest_edge"],
    )
    return height, width


def lengths_by_size(processor: Any, lengths: Sequence[int], size: Size) -> dict[Size, list[int]]:
    """Prefix lengths that are resized alike, by that size. Raises ValueError for frames that cannot be used."""
    groups: dict[Size, list[int]] = {}
    for length in lengths:
        groups.setdefault(resized(processor, int(length), size), []).append(int(length))
    return groups


def resize(processor: Any, frames: np.ndarray, size: Size) -> Tensor:
    """Frames uint8 (N, H, W, 3) as uint8 (N, 3, height, width), frame by frame as in a video of any length.

    lerobot's dataset hands out floats x / 255 and its encoder truncates 255 times that; in float32 this gives back all
    256 values of x, so the frames may be used as they are.
    """
    tensor = torch.from_numpy(np.array(frames.transpose(0, 3, 1, 2), order="C"))
    if tuple(tensor.shape[2:]) == size:
        return tensor
    return processor.resize(tensor, SizeDict(height=size[0], width=size[1]), resample=processor.resample)


def patches(processor: Any, clips: Sequence[Tensor]) -> Tensor:
    """Patches of resized clips, uint8 (frames, 3, height, width) each, clip after clip: (patches, pixels of a patch).

    A clip that does not fill its last group of frames is filled with its last frame.
    """
    made = processor(videos=list(clips), do_resize=False, do_sample_frames=False, return_tensors="pt")
    return made["pixel_values_videos"]
