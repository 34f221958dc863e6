"""What judges have in common on disk and in a description: options checked by name, folders written whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from robo_rl.errors import DataError

CONFIG, PARAMETERS = "config.json", "model.safetensors"


def digest(config: Any, leave_out: Iterable[str], *more: str, tensors: Mapping[str, Tensor] | None = None) -> str:
    """10 hex digits of what decides a judge's scores: its options but those left out, further words, parameters."""
    skipped = set(leave_out)
    facts = {key: value for key, value in dataclasses.asdict(config).items() if key not in skipped}
    total = hashlib.sha256(json.dumps([facts, *more], sort_keys=True).encode())
    for name, tensor in sorted((tensors or {}).items()):
        total.update(name.encode())
        total.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:10]


def write_folder(folder: Path | str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> None:
    """Write `config.json` and, if there are tensors, `model.safetensors`; the old folder or the new one, never half."""
    folder = Path(folder)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    (temporary / CONFIG).write_text(json.dumps(facts, indent=1))
    if tensors is not None:
        save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, temporary / PARAMETERS)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def read_facts(folder: Path | str, kind: str) -> dict[str, Any]:
    """`config.json` of a judge of type `kind`. Raises DataError."""
    path = Path(folder) / CONFIG
    try:
        facts = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder}: not a judge folder, {CONFIG} is missing") from None
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if not isinstance(facts, dict) or facts.get("type") != kind:
        given = facts.get("type") if isinstance(facts, dict) else None
        raise DataError(f"{folder}: holds no {kind} judge, {CONFIG} says type {given!r}")
    return facts


def read_tensors(folder: Path | str) -> dict[str, Tensor]:
    """`model.safetensors` of a folder. Raises DataError."""
    path = Path(folder) / PARAMETERS
    try:
        return load_file(path)
    except FileNotFoundError:
        raise DataError(f"{folder}: not a judge folder, {PARAMETERS} is missing") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: damaged ({' '.join(str(error).split())})") from None


def require_same(folder: Path | str, facts: Mapping[str, Any], *, revision: str, model_id: str) -> None:
    """Raises DataError when a judge that was loaded is not the one that was saved: another model, other parameters."""
    if facts.get("revision") != revision:
        path = facts.get("config", {}).get("path", "its model")
        raise DataError(f"{folder}: made for {path} at {facts.get('revision')}, but {revision} is there now")
    if facts.get("model_id") != model_id:
        raise DataError(f"{folder}: this is {model_id}, not {facts.get('model_id')}; one of its files was exchanged")
