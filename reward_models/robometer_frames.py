"""Pictures for Robometer: prepared as lerobot prepares them, encoded once, kept while they are needed."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from PIL import Image
from qwen_vl_utils.vision_process import SPATIAL_MERGE_SIZE, fetch_image, smart_resize
from torch import Tensor

from reward_models.qwen_positions import picture_features

CHUNK_PIXELS = 1 << 21  # pixels prepared and encoded together
KEEP_BYTES = 1 << 31  # of features kept for one episode; what was dropped is encoded again when asked for


class FrameFeatures:
    """Features of an episode's frames, each computed when first asked for."""

    def __init__(self, model: Any, processor: Any, frames: np.ndarray, *, keep_bytes: int = KEEP_BYTES) -> None:
        """`frames` uint8 (T, H, W, 3), may be a memory map; `model` a `Qwen3VLModel`."""
        self.model, self.processor, self.frames, self.keep_bytes = model, processor, frames, keep_bytes
        self.encoded = 0  # frames that went through the vision tower so far
        self._kept: OrderedDict[int, Tensor] = OrderedDict()  # the longest unused first

    def take(self, index: np.ndarray) -> Tensor:
        """Features of these frames (N,): (N, 1 + deep-stacked layers, tokens, D)."""
        wanted = np.unique(index)
        features = {int(n): self._kept[int(n)] for n in wanted if int(n) in self._kept}
        missing = [int(n) for n in wanted if int(n) not in features]
        step = max(1, CHUNK_PIXELS // (self.frames.shape[1] * self.frames.shape[2]))
        for first in range(0, len(missing), step):
            chunk = missing[first : first + step]
            encoded = self._encode(self.frames[chunk])
            features.update({number: feature.clone() for number, feature in zip(chunk, encoded, strict=True)})
        for number, feature in features.items():
            self._kept[number] = feature
            self._kept.move_to_end(number)
        self._drop()
        return torch.stack([features[int(n)] for n in index])

    def _encode(self, frames: np.ndarray) -> Tensor:
        pixels, grid = prepare(self.processor, frames)
        self.encoded += len(frames)
        return picture_features(self.model, pixels, (len(frames), grid[0], grid[1]))

    def _drop(self) -> None:
        size = sum(f.numel() * f.element_size() for f in self._kept.values())
        while size > self.keep_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            size -= dropped.numel() * dropped.element_size()


def prepare(processor: Any, frames: np.ndarray) -> tuple[Tensor, tuple[int, int]]:
    """Patches of frames uint8 (N, H, W, 3), the same as lerobot's encoder makes: (N * h * w, patch), and (h, w).

    lerobot's dataset hands out floats x / 255 and its encoder truncates 255 times that to whole numbers; in float32
    this gives back all 256 values of x, so the frames may be used as they are.
    """
    images = processor.image_processor
    patch = getattr(images, "patch_size", 14)  # 14 is the default of qwen-vl-utils, which lerobot then uses
    height, width = frames.shape[1:3]
    if smart_resize(height, width, patch * SPATIAL_MERGE_SIZE) == (height, width):
        pictures: list[Any] = list(torch.from_numpy(np.require(frames, requirements=["C", "W"])).permute(0, 3, 1, 2))
    else:
        pictures = [fetch_image({"image": Image.fromarray(f)}, image_patch_size=patch) for f in frames]
    made = images(images=pictures, do_resize=False, return_tensors="pt")
    grids = made["image_grid_thw"]
    return made["pixel_values"], (int(grids[0, 1]), int(grids[0, 2]))
