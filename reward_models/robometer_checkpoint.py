"""Open lerobot's reward-model checkpoints, with errors of one line."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from draccus.utils import ParsingError
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from lerobot.configs.rewards import RewardModelConfig
from lerobot.rewards.robometer import RobometerConfig, RobometerRewardModel
from lerobot.rewards.robometer.processor_robometer import RobometerEncoderProcessorStep
from safetensors import SafetensorError, safe_open

from reward_models.hub import DTYPES
from robo_rl.errors import ConfigError

PARAMETERS = "model.safetensors"


def options[C](config: type[C], given: Mapping[str, Any], what: str) -> C:
    """A config dataclass from a YAML mapping. Raises ConfigError for an unknown or missing key."""
    known = [field.name for field in fields(config)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise ConfigError(f"{what}: {name}: unknown key; {hint}")
    try:
        return config(**given)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}") from None


def absolute(facts: dict[str, Any], *names: str) -> dict[str, Any]:
    """Options whose folders no longer depend on the working directory; hub ids stay."""
    paths = {name: str(Path(facts[name]).resolve()) for name in names if facts[name] and Path(facts[name]).is_dir()}
    return facts | paths


def checkpoint_folder(path: str, revision: str = "") -> Path:
    """The folder of a lerobot checkpoint; a hub id is fetched, or taken from the cache. Raises ConfigError."""
    folder = Path(path)
    if folder.is_dir():
        if revision:
            raise ConfigError(f"{folder}: a folder has no revision; remove revision={revision!r}, or give a hub id")
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder}: not a model folder, config.json is missing")
        return folder
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ConfigError(f"{folder}: no such model folder")
    at = f"{path}@{revision}" if revision else path
    try:
        return Path(snapshot_download(path, revision=revision or None, allow_patterns=["*.json", "*.safetensors"]))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise ConfigError(
            f"{at}: not in the local cache, and the hub cannot be reached; run `hf download {path}` online, "
            "or give a folder"
        ) from None
    except HfHubHTTPError as error:
        raise ConfigError(f"{at}: the hub does not give it out ({first_line(error)})") from None


def reward_config(folder: Path, kind: str, device: str) -> Any:
    """lerobot's config of a checkpoint, for this device. Raises ConfigError when it is of another type or damaged."""
    file = folder / "config.json"
    try:
        found = json.loads(file.read_text()).get("type")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    if found != kind:
        raise ConfigError(f"{file}: type is {found!r}, expected a lerobot reward model of type {kind!r}")
    try:
        config = RewardModelConfig.from_pretrained(folder)
    except (ParsingError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file}: lerobot cannot use it ({first_line(error)})") from None
    config.device = device
    return config


def load_robometer(folder: Path, *, device: str, dtype: str, processor: str) -> tuple[Any, dict[str, Any]]:
    """lerobot's Robometer model in evaluation mode, and what its encoder is built from.

    Args:
        folder: holds `config.json` and `model.safetensors`.
        device: where the model is put.
        dtype: fp32 | bf16 | fp16, or "" for the checkpoint's own.
        processor: folder or hub id of the tokenizer and image processor, or "" for the checkpoint's `base_model_id`.
    """
    config: RobometerConfig = reward_config(folder, "robometer", device)
    config.pretrained_path = str(folder)  # lerobot then builds the backbone without fetching the base model
    if dtype:
        if dtype not in DTYPES:
            raise ConfigError(f"robometer: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        config.torch_dtype = str(DTYPES[dtype]).removeprefix("torch.")
    if not (folder / PARAMETERS).is_file():
        raise ConfigError(f"{folder}: {PARAMETERS} is missing")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # lerobot prints what it does
            model = RobometerRewardModel.from_pretrained(str(folder), config=config)
    except (RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{folder / PARAMETERS}: does not fit config.json ({first_line(error)})") from None
    _require_all(model, folder / PARAMETERS)
    step = {
        "base_model_id": processor or config.base_model_id,
        "image_key": config.image_key,
        "use_multi_image": config.use_multi_image,
        "use_per_frame_progress_token": config.use_per_frame_progress_token,
    }
    return model, step


def _require_all(model: torch.nn.Module, file: Path) -> None:
    """lerobot only warns about parameters that the file lacks, and leaves them random. Raises ConfigError."""
    with safe_open(file, "pt") as opened:
        stored = set(opened.keys())
    tensors = model.state_dict(keep_vars=True)
    filled = {tensors[name].data_ptr() for name in stored if name in tensors}
    missing = [name for name, tensor in tensors.items() if tensor.data_ptr() not in filled]
    if missing:
        raise ConfigError(f"{file}: {len(missing)} parameters are missing, {missing[0]} among them")


def robometer_encoder(step: Mapping[str, Any], pictures: int) -> Any:
    """lerobot's encoder of prompts. Raises ConfigError when its processor is missing."""
    try:
        return RobometerEncoderProcessorStep(**step, max_frames=pictures)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"robometer: the processor {step['base_model_id']!r} cannot be opened ({first_line(error)}); "
            "set processor: to a folder or hub id that holds it"
        ) from None


def first_line(error: BaseException) -> str:
    return " ".join(str(error).strip().splitlines()[:1]) or type(error).__name__
