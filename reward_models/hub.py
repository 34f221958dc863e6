"""Open a Hugging Face model by hub id or folder, at a pinned revision, with errors that say what to do."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import errors as hub_errors

from robo_rl.errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SAMPLED = 1 << 20  # bytes read at the start, middle and end of a weights file for its fingerprint


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a pretrained model comes from. Raises ConfigError."""

    path: str  # hub id ("Qwen/Qwen3-VL-4B-Instruct") or folder
    revision: str = ""  # of a hub id: a commit or tag; "" is the newest
    dtype: str = "fp32"  # fp32 | bf16 | fp16
    attention: str = "sdpa"  # eager | sdpa | flash_attention_2
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("judge: the model's path is empty; give a hub id or a folder")
        if self.dtype not in DTYPES:
            raise ConfigError(f"judge: dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.attention not in ("eager", "sdpa", "flash_attention_2"):
            raise ConfigError(f"judge: attention must be eager, sdpa or flash_attention_2, got {self.attention!r}")


@dataclass(frozen=True)
class Pretrained:
    """A model with its processor (tokenizer and image processor)."""

    model: Any
    processor: Any
    source: Source

    @property
    def revision(self) -> str:
        """The hub's commit, or a fingerprint of the folder's files."""
        commit = getattr(self.model.config, "_commit_hash", None)
        return str(commit)[:12] if commit else fingerprint(Path(self.source.path))


def load_vlm(source: Source) -> Pretrained:
    """A generative image-text model (Qwen3-VL, SmolVLM2, PaliGemma, Gemma 3, ...), in evaluation mode.

    Raises ConfigError when the model or its processor is missing, gated, or of another kind.
    """
    return _load(source, transformers.AutoModelForImageTextToText, "an image-text model that writes text")


def load_dual_encoder(source: Source) -> Pretrained:
    """A model with `get_image_features` and `get_text_features` (CLIP, SigLIP), in evaluation mode.

    Raises ConfigError when the model or its processor is missing, gated, or of another kind.
    """
    loaded = _load(source, transformers.AutoModel, "a model")
    if not (hasattr(loaded.model, "get_image_features") and hasattr(loaded.model, "get_text_features")):
        kind = type(loaded.model).__name__
        raise ConfigError(f"{source.path}: {kind} has no joint image and text features; use a CLIP or SigLIP model")
    return loaded


def _load(source: Source, kind: Any, what: str) -> Pretrained:
    _check_folder(source)
    where = {"revision": source.revision} if source.revision else {}
    try:
        model = kind.from_pretrained(
            source.path, dtype=DTYPES[source.dtype], attn_implementation=source.attention, **where
        )
    except ImportError as error:
        raise ConfigError(f"{source.path}: {_first_line(error)}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(_why(source, error, what)) from None
    try:
        processor = transformers.AutoProcessor.from_pretrained(source.path, **where)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(
            f"{source.path}: the model is there but not its processor ({_first_line(error)}); copy the tokenizer and "
            "preprocessor files beside it"
        ) from None
    if not hasattr(processor, "image_processor"):
        raise ConfigError(f"{source.path}: the processor has no image processor; preprocessor_config.json is missing")
    return Pretrained(model.to(source.device).eval(), processor, source)


def _check_folder(source: Source) -> None:
    path = Path(source.path)
    looks_local = path.is_absolute() or source.path.startswith((".", "~")) or source.path.count("/") != 1
    if path.is_dir():
        if not (path / "config.json").exists():
            raise ConfigError(f"{path}: not a model folder, config.json is missing")
        if source.revision:
            raise ConfigError(
                f"{path}: a folder has no revision; remove revision={source.revision!r}, or give a hub id"
            )
    elif looks_local:
        raise ConfigError(f"{path}: no such model folder")


def _why(source: Source, error: BaseException, what: str) -> str:
    at = f"{source.path}@{source.revision}" if source.revision else source.path
    for cause in _causes(error):
        if isinstance(cause, hub_errors.GatedRepoError):
            return f"{at}: this model is gated; accept its licence on its page, then log in with `hf auth login`"
        if isinstance(cause, hub_errors.RevisionNotFoundError):
            return f"{at}: the hub has no such revision"
        if isinstance(cause, hub_errors.RepositoryNotFoundError):
            return f"{at}: the hub has no such model, or it is private; check the name, log in with `hf auth login`"
        if isinstance(cause, (hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled)):
            return _not_cached(at)
    if "couldn't connect" in str(error) or "offline" in str(error).lower():
        return _not_cached(at)
    return f"{at}: cannot be opened as {what} ({_first_line(error)})"


def _not_cached(at: str) -> str:
    offline = any(os.environ.get(name, "0").upper() in ("1", "ON", "YES", "TRUE") for name in ("HF_HUB_OFFLINE",))
    how = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
    return f"{at}: not in the local cache, and {how}; run `hf download {at.split('@')[0]}` online, or give a folder"


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).strip().splitlines()[:1]) or type(error).__name__


def fingerprint(folder: Path) -> str:
    """12 hex digits of a model folder: small files whole, weights by size and samples (start, middle, end)."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".json", ".safetensors", ".model", ".bin")):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder)}:{size}".encode())
        with path.open("rb") as file:
            for place in (0,) if size <= SAMPLED else (0, size // 2, size - SAMPLED):
                file.seek(max(0, place))
                digest.update(file.read(SAMPLED))
    return digest.hexdigest()
