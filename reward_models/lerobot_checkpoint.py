"""Open what `lerobot-train` writes for a reward model: its configuration, parameters and normalisation."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import errors as hub_errors
from huggingface_hub import snapshot_download
from lerobot.configs.rewards import RewardModelConfig
from lerobot.lerobot_types import TransitionKey
from lerobot.processor import NormalizerProcessorStep
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file
from torch import Tensor

from reward_models.hub import fingerprint
from robo_rl.errors import ConfigError, DataError

Statistics = dict[str, dict[str, np.ndarray]]  # feature -> "mean", "std", ... -> values


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: str  # as the user gave it
    folder: Path
    config: Any  # lerobot's configuration, of the wanted kind
    revision: str  # fingerprint of its files


def open_checkpoint(path: str, kind: type[RewardModelConfig], *, revision: str = "", device: str) -> Checkpoint:
    """A folder or hub id. Raises ConfigError where there is none, DataError when it is damaged or of another kind."""
    require_device(device)
    folder = _folder(path, revision)
    file = folder / "config.json"
    try:
        found = json.loads(file.read_text()).get("type")
    except FileNotFoundError:
        raise ConfigError(f"{path}: not a checkpoint of lerobot, config.json is missing") from None
    except (ValueError, AttributeError) as error:
        raise DataError(f"{file}: cannot be read ({error})") from None
    wanted = RewardModelConfig.get_choice_name(kind)
    if found != wanted:
        raise DataError(f"{path}: not a {wanted} of lerobot, config.json says type {found!r}")
    try:
        config = RewardModelConfig.from_pretrained(folder, cli_overrides=[f"--device={device}"])
    except Exception as error:  # noqa: BLE001 - draccus wraps whatever its decoders raise
        raise DataError(f"{file}: lerobot cannot read it ({_line(error)})") from None
    return Checkpoint(path=path, folder=folder, config=config, revision=fingerprint(folder))


def _folder(path: str, revision: str) -> Path:
    folder = Path(path).expanduser()
    if folder.is_dir():
        if revision:
            raise ConfigError(f"{path}: a folder has no revision; remove revision={revision!r}, or give a hub id")
        nested = folder / "pretrained_model"  # a step of lerobot-train
        return nested if nested.is_dir() and not (folder / "config.json").exists() else folder
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ConfigError(f"{path}: no such checkpoint folder")
    try:
        return Path(snapshot_download(path, revision=revision or None, allow_patterns=["*.json", "*.safetensors"]))
    except (hub_errors.HfHubHTTPError, hub_errors.LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ConfigError(f"{path}: no such folder, and the hub does not give it ({_line(error)})") from None


def load_parameters(kind: Any, checkpoint: Checkpoint) -> Any:
    """The checkpoint's model in evaluation mode. Raises DataError unless all of its parameters are there and fit.

    lerobot only logs what is missing, and cannot be strict where modules share parameters, which are saved once.
    """
    file = checkpoint.folder / "model.safetensors"
    try:
        saved = load_torch_file(file)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; copy the checkpoint again") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"{file}: cannot be read ({_line(error)}); copy the checkpoint again") from None
    try:
        model = kind(checkpoint.config)
    except (ValueError, OSError, ImportError) as error:
        raise ConfigError(f"{checkpoint.path}: lerobot cannot build the model ({_line(error)})") from None
    own = model.state_dict()
    there = {own[name].data_ptr() for name in saved if name in own}
    wrong = [name for name in saved if name not in own or own[name].shape != saved[name].shape]
    wrong += [name for name, tensor in own.items() if tensor.data_ptr() not in there]
    if wrong:
        raise DataError(f"{file}: the parameters do not fit config.json: {wrong[0]} is missing, or of another size")
    model.load_state_dict(saved, strict=False)
    return model.to(checkpoint.config.device).eval()


class Normaliser:
    """lerobot's own normalisation of a checkpoint's inputs; nothing where the checkpoint's mode is the identity."""

    def __init__(self, checkpoint: Checkpoint, keys: tuple[str, ...], stats: str | Mapping[str, Any]) -> None:
        config = checkpoint.config
        used = [key for key in keys if stats != "none" and _mode(config, key) != "IDENTITY"]
        known = _statistics(checkpoint, stats) if used else {}
        missing = [key for key in used if key not in known]
        if missing:
            raise ConfigError(f"{checkpoint.path}: the statistics have no {missing[0]!r}; they have {', '.join(known)}")
        self.statistics = {key: known[key] for key in used}
        self._step = NormalizerProcessorStep(
            features=config.input_features, norm_map=config.normalization_mapping, stats=self.statistics
        )

    def __call__(self, key: str, values: Tensor) -> Tensor:
        """Normalised values of one input, on their own device."""
        transition = {TransitionKey.OBSERVATION: {key: values}}
        return self._step(transition)[TransitionKey.OBSERVATION][key]

    def width(self, key: str) -> int | None:
        """How many numbers the statistics of an input have; None without statistics."""
        return int(next(iter(self.statistics[key].values())).size) if key in self.statistics else None

    def plain(self) -> dict[str, dict[str, Any]]:
        """The statistics as lists, for a `config.json`."""
        return {key: {n: v.tolist() for n, v in values.items()} for key, values in self.statistics.items()}


def _mode(config: Any, key: str) -> str:
    mode = config.normalization_mapping.get(config.input_features[key].type.value)
    return str(mode.value) if mode is not None else "IDENTITY"


def _statistics(checkpoint: Checkpoint, stats: str | Mapping[str, Any]) -> Statistics:
    if isinstance(stats, Mapping):
        return _arrays(stats)
    if not stats:
        return _saved_statistics(checkpoint)
    path = Path(stats).expanduser()
    file = path / "meta" / "stats.json" if path.is_dir() else path
    try:
        return _arrays(json.loads(file.read_text()))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such statistics; stats is a dataset folder, a stats.json, or none") from None
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{file}: cannot be read as statistics ({error})") from None


def _arrays(stats: Mapping[str, Any]) -> Statistics:
    return {
        key: {name: np.asarray(value, np.float32) for name, value in values.items() if name != "count"}
        for key, values in stats.items()
    }


def _saved_statistics(checkpoint: Checkpoint) -> Statistics:
    """Those of the data that the model was trained on, which lerobot-train keeps beside the parameters."""
    found: dict[str, dict[str, Any]] = {}
    for pipeline in sorted(checkpoint.folder.glob("*preprocessor.json")):
        for step in json.loads(pipeline.read_text()).get("steps", ()):
            if step.get("registry_name") == "normalizer_processor" and "state_file" in step:
                for name, values in load_file(checkpoint.folder / step["state_file"]).items():
                    key, kind = name.rsplit(".", 1)
                    found.setdefault(key, {})[kind] = values
    if not found:
        raise ConfigError(
            f"{checkpoint.path}: no statistics of its training data are kept in it; give stats: the dataset's folder, "
            "or stats: none to leave inputs as they are"
        )
    return _arrays(found)


def digest(*parts: Any) -> str:
    """10 hex digits of plain values, for a judge's revision."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:10]


def as_tensor(features: Any) -> Tensor:
    """What `get_image_features` and `get_text_features` give, whichever way the transformers version wraps it."""
    return features if isinstance(features, Tensor) else features.pooler_output


def require_device(device: str) -> None:
    """Raises ConfigError for a device that this machine lacks; lerobot would silently take another one."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"judge: device {device!r} is not available on this machine; use cpu")


def write_options(
    folder: Path | str, kind: str, model_id: str, options: Mapping[str, Any], paths: Sequence[str]
) -> None:
    """A judge's folder that only says where its models are; local `paths` among the options are made absolute."""
    folder = Path(folder)
    where = {
        name: str(Path(options[name]).resolve()) for name in paths if options[name] and Path(options[name]).is_dir()
    }
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    facts = {"type": kind, "model_id": model_id, "options": {**options, **where}}
    (temporary / "config.json").write_text(json.dumps(facts, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def read_options[J](folder: Path | str, kind: str, build: Callable[[Mapping[str, Any]], J]) -> J:
    """The judge of a folder of `write_options`. Raises DataError when it is damaged or its models have changed."""
    file = Path(folder) / "config.json"
    try:
        facts = json.loads(file.read_text())
        if facts["type"] != kind:
            raise DataError(f"{folder}: holds no {kind} judge, config.json says type {facts['type']!r}")
        judge: Any = build(facts["options"])
    except FileNotFoundError:
        raise DataError(f"{folder}: not a judge folder, config.json is missing") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: damaged judge: {_line(error)}") from None
    if judge.model_id != facts["model_id"]:
        raise DataError(f"{folder}: saved as {facts['model_id']}, but its models are now those of {judge.model_id}")
    return judge


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
