"""Open lerobot's Robometer checkpoints: model and encoder of prompts."""

from __future__ import annotations

from typing import Any

from lerobot.rewards.robometer import RobometerConfig, RobometerRewardModel
from lerobot.rewards.robometer.processor_robometer import RobometerEncoderProcessorStep

from reward_models.hub import DTYPES
from reward_models.lerobot_checkpoint import Checkpoint, load_parameters, open_checkpoint
from robo_rl.errors import ConfigError


def open_robometer(path: str, *, revision: str, device: str, dtype: str) -> tuple[Checkpoint, Any]:
    """A checkpoint and lerobot's `RobometerRewardModel` of it, in evaluation mode.

    Args:
        path: folder with `config.json` and `model.safetensors`, or a hub id.
        revision: of a hub id; "" is the newest.
        device: where the model is put.
        dtype: fp32 | bf16 | fp16, or "" for the checkpoint's own.

    Raises:
        ConfigError: there is no such checkpoint, device or dtype.
        DataError: it is damaged, incomplete or of another kind.
    """
    if dtype and dtype not in DTYPES:
        raise ConfigError(f"robometer: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    checkpoint = open_checkpoint(path, RobometerConfig, revision=revision, device=device)
    checkpoint.config.pretrained_path = str(checkpoint.folder)  # else lerobot fetches the base model first
    if dtype:
        checkpoint.config.torch_dtype = str(DTYPES[dtype]).removeprefix("torch.")
    return checkpoint, load_parameters(RobometerRewardModel, checkpoint)


def robometer_encoder(config: Any, processor: str, pictures: int) -> Any:
    """lerobot's encoder of prompts with `pictures` pictures. Raises ConfigError when its processor is missing.

    `processor` is the folder or hub id of the tokenizer and image processor, "" for the checkpoint's base model.
    """
    name = processor or config.base_model_id
    try:
        return RobometerEncoderProcessorStep(
            base_model_id=name,
            image_key=config.image_key,
            max_frames=pictures,
            use_multi_image=config.use_multi_image,
            use_per_frame_progress_token=config.use_per_frame_progress_token,
        )
    except (OSError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"robometer: the processor {name!r} cannot be opened ({why}); set processor: to a folder or hub id with it"
        ) from None
