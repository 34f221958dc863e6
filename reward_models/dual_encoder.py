"""Pictures and texts as unit vectors of one space: any CLIP or SigLIP of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reward_models.hub import Source, load_dual_encoder
from reward_models.maps import require_cameras
from robo_rl.errors import ConfigError
from robo_rl.types import Trajectory

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
TOWERS = ("vision_model", "text_model")


class DualEncoder:
    """Encodes pictures and texts. Raises ConfigError for a model that cannot."""

    def __init__(self, source: Source) -> None:
        pretrained = load_dual_encoder(source)
        self.model, self.processor, self.revision = pretrained.model, pretrained.processor, pretrained.revision
        self.source = source
        self.model.requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def pictures(self, pictures: Sequence[np.ndarray]) -> Tensor:
        """uint8 (H, W, 3) each -> float32 (N, D) of length 1, with a gradient where the model has one."""
        images = [torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in pictures]
        made = self.processor.image_processor(images=images, return_tensors="pt", input_data_format="channels_first")
        first = next(self.model.parameters())
        moved = {
            name: value.to(first.device, first.dtype) if value.is_floating_point() else value.to(first.device)
            for name, value in made.items()
        }
        return _unit(self.model.get_image_features(**moved))

    def texts(self, texts: Sequence[str]) -> Tensor:
        """-> float32 (N, D) of length 1, with a gradient where the model has one. Long texts are cut."""
        longest = int(self.model.config.text_config.max_position_embeddings)
        # SigLIP was trained on texts padded to full length
        padding = "max_length" if str(self.model.config.model_type).startswith("siglip") else True
        made = self.processor.tokenizer(
            list(texts), padding=padding, truncation=True, max_length=longest, return_tensors="pt"
        )
        known = {name: made[name].to(self.device) for name in ("input_ids", "attention_mask") if name in made}
        return _unit(self.model.get_text_features(**known))

    @property
    def logit_scale(self) -> Tensor:
        """What cosines are multiplied by before a softmax, as the model was trained; at most 100."""
        return self.model.logit_scale.detach().float().exp().clamp(max=100.0)

    # --- what is trained -----------------------------------------------------------------------------------------

    def train_part(
        self, *, vision_layers: int = 0, text_layers: int = 0, lora_rank: int = 0
    ) -> dict[str, nn.Parameter]:
        """Choose what is trained: last layers of a tower with what follows them (-1: all of it), or adapters.

        Raises ConfigError when that is nothing, or more layers than there are.
        """
        if lora_rank:
            _add_lora(self.model, lora_rank)
        for tower, layers in zip(TOWERS, (vision_layers, text_layers), strict=True):
            if layers:
                _train_last(self.model, tower, layers)
        chosen = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not chosen:
            raise ConfigError("judge.fit: nothing is trained; set vision_layers, text_layers or lora_rank")
        return chosen


def _unit(features: Any) -> Tensor:
    found = features if isinstance(features, Tensor) else features.pooler_output
    return F.normalize(found.float(), dim=-1)


def _train_last(model: Any, tower: str, layers: int) -> None:
    part = getattr(model, tower)
    stack = part.encoder.layers
    if layers == -1:
        part.requires_grad_(True)
    elif layers > len(stack):
        raise ConfigError(f"judge.fit: {layers} layers of {tower} are to be trained, but it has {len(stack)}")
    else:
        for layer in stack[len(stack) - layers :]:
            layer.requires_grad_(True)
        for name, parameter in part.named_parameters():
            if "embeddings." not in name and "encoder.layers." not in name and "pre_layrnorm" not in name:
                parameter.requires_grad_(True)
    projection = getattr(model, {"vision_model": "visual_projection", "text_model": "text_projection"}[tower], None)
    if projection is not None:
        projection.requires_grad_(True)


def _add_lora(model: Any, rank: int) -> None:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ConfigError("judge.fit.lora_rank needs the peft package; install robo_rl[vlm]") from None
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(LORA_TARGETS)), model)


@torch.inference_mode()
def frame_features(
    encoder: DualEncoder, episodes: Sequence[Trajectory], cameras: Sequence[str], chunk: int
) -> Iterator[np.ndarray]:
    """Unit vectors of every frame, float32 (T+1, cameras, D), an episode at a time.

    `cameras` empty: all of the episode's. `chunk` pictures go through the encoder together, of several episodes if
    these are short; each once. Memory holds one episode's vectors and `chunk` pictures.
    """
    waiting: list[np.ndarray] = []  # pictures to encode
    encoded: list[np.ndarray] = []  # vectors of pictures that no episode has taken
    shapes: list[tuple[int, int]] = []  # frames and cameras of episodes to give

    def ready() -> Iterator[np.ndarray]:
        while shapes and len(encoded) >= shapes[0][0] * shapes[0][1]:
            frames, views = shapes.pop(0)
            yield np.stack(encoded[: frames * views]).reshape(frames, views, -1)
            del encoded[: frames * views]

    for number in range(len(episodes)):
        episode = episodes[number]
        chosen = tuple(cameras) or tuple(episode.images)
        require_cameras(episode, chosen)
        shapes.append((len(episode) + 1, len(chosen)))
        for frame in range(len(episode) + 1):
            waiting += [episode.images[camera][frame] for camera in chosen]
            while len(waiting) >= chunk:
                encoded += list(encoder.pictures(waiting[:chunk]).cpu().numpy())
                del waiting[:chunk]
                yield from ready()
    if waiting:
        encoded += list(encoder.pictures(waiting).cpu().numpy())
    yield from ready()
