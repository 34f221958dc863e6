"""Rotary positions and picture features of Qwen3-VL, for tokens that are run in pieces and frames of equal size."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

IMAGE, VIDEO = 1, 2  # modality of a token in `mm_token_type_ids`; text is 0


def rope_positions(model: Any, ids: Tensor, grid: Tensor | None, kind: int, pad_id: int) -> Tensor:
    """Positions int64 (3, N) of one row of tokens, by the model's own rule, counted from 0.

    A piece that follows other text is moved by the position after that text's last token.

    Args:
        model: a `Qwen3VLModel`.
        ids: int64 (N,).
        grid: int64 (pictures, 3): patches in time, height, width of each picture in the row; None without pictures.
        kind: IMAGE or VIDEO.
        pad_id: the token that stands for a piece of a picture.
    """
    types = (ids == pad_id).int() * kind
    grids = {"image_grid_thw": grid} if kind == IMAGE else {"video_grid_thw": grid}
    positions, _ = model.get_rope_index(ids[None], mm_token_type_ids=types[None], **grids)
    return positions[:, 0]


def picture_features(model: Any, pixels: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """Features of `grid[0]` pictures of equal size, (pictures, 1 + deep-stacked layers, tokens a picture, D).

    Attention in the vision tower stays within a picture, so pictures may be encoded in any company: here as the
    moments of one video, for which the tower works out its positions once.

    Args:
        model: a `Qwen3VLModel`.
        pixels: (pictures * height * width, pixels of a patch), as the processor gives them.
        grid: pictures, and the patches of each in height and width.
    """
    output = model.get_image_features(
        pixels.to(model.device), torch.tensor([grid], device=model.device), return_dict=True
    )
    layers = [torch.cat(list(output.pooler_output)), *output.deepstack_features]
    return torch.stack([layer.view(grid[0], -1, layer.shape[-1]) for layer in layers], dim=1)


def cut_patches_by_product(model: Any) -> None:
    """Let the vision tower of a `Qwen3VLModel` cut its patches with a matrix product.

    It does so with a convolution in three dimensions whose kernel is a whole patch: the same sums, but slow (measured
    on a CPU: a quarter of the tower's time). Parameters stay where they are.
    """
    embed = model.visual.patch_embed
    embed.forward = partial(_embed_patches, embed)


def _embed_patches(embed: Any, patches: Tensor) -> Tensor:
    weight = embed.proj.weight.flatten(1)
    return functional.linear(patches.reshape(-1, weight.shape[1]).to(weight.dtype), weight, embed.proj.bias)
