"""Ask any vision-language model of transformers about several pictures, and read how probable given answers are.

A prompt is text and pictures in order. Its placeholders are written into one text, because some chat templates (LLaVA-
OneVision's) move all pictures to the front. The answers' probabilities are read from logits, so that a model always
answers; text is written only where it must be parsed (`answers`).

A prompt that is read once can be asked many things (`reading`). What comes out equals one pass a question, up to
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reward_models.answers import tokenised
from reward_models.hub import Pretrained, Source, fingerprint, load_vlm
from reward_models.reading import Reading
from reward_models.vlm_layout import MARK, resized
from robo_rl.errors import ConfigError, RewardError

Content = Sequence[str | np.ndarray]
"""A prompt: text, and pictures uint8 (H, W, 3), in the order in which the model meets them."""


_OPEN: WeakValueDictionary[tuple[Source, str], Pretrained] = WeakValueDictionary()


def _opened(source: Source) -> Pretrained:
    """A model is held once by all that ask it: nobody changes it. A folder that was written anew is opened anew."""
    folder = Path(source.path)
    key = source, fingerprint(folder) if folder.is_dir() else ""
    found = _OPEN.get(key)
    if found is None:
        found = _OPEN[key] = load_vlm(source)
    return found


class Asker:
    """A vision-language model that is asked about pictures. Raises ConfigError for one that cannot be used."""

    def __init__(self, source: Source, *, image_size: int = 0, batch_size: int = 8) -> None:
        if source.attention == "flash_attention_2":
            raise ConfigError(f"{source.path}: answers are compared with a mask, which needs attention sdpa or eager")
        self.pretrained = _opened(source)
        self.model, self.processor = self.pretrained.model, self.pretrained.processor
        self.revision = self.pretrained.revision
        self.path, self.image_size, self.batch_size = source.path, image_size, batch_size
        self.attention = source.attention
        self.has_template = bool(getattr(self.processor, "chat_template", None))
        self.image_token = int(self.model.config.image_token_id)
        self.placeholder = _placeholder(self.processor, self.image_token)
        self._before, self._after = _surroundings(self.processor)

    @property
    def tokenizer(self) -> Any:
        return self.processor.tokenizer

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def require_several(self, what: str) -> None:
        """Raises ConfigError for a model without a chat template (PaliGemma): it knows prompts of one picture only."""
        if not self.has_template:
            raise ConfigError(
                f"{self.path}: {what} shows several pictures in one prompt, but this model has no chat template and "
                "takes a single one; use a model that chats about several (Qwen3-VL, SmolVLM2, Gemma 3, InternVL 3)"
            )

    # --- what is asked -----------------------------------------------------------------------------------------

    @torch.inference_mode()
    def log_probs(self, contents: Sequence[Content], options: Sequence[str], start: str = "") -> np.ndarray:
        """Log-probability of each option as the answer, or as its continuation after `start`: float64 (N, options).

        Options are compared by their first tokens where these differ, else as whole sequences of tokens.
        """
        made = tokenised(self.tokenizer, start, options)
        if made.shared or not made.part_at_once:
            return np.concatenate([self.read(content).log_probs(options, [start]) for content in contents])
        first = [branch[0] for branch in made.branches]
        rows = []
        for chunk in _chunks(contents, self.batch_size):
            logits = self.model(**self.inputs(chunk), use_cache=False, logits_to_keep=1).logits[:, -1]
            rows.append(F.log_softmax(logits.float(), -1)[:, first].double().cpu().numpy())
        return np.concatenate(rows)

    @torch.inference_mode()
    def read(self, content: Content) -> Reading:
        """Read a prompt once, to ask several things."""
        return Reading(self, content)

    @torch.inference_mode()
    def write(self, contents: Sequence[Content], max_tokens: int) -> list[str]:
        """The most probable answer in the model's own words, token by token; at most `max_tokens` tokens."""
        texts: list[str] = []
        pad = self.tokenizer.pad_token_id
        for chunk in _chunks(contents, self.batch_size):
            inputs = self.inputs(chunk)
            ids = self.model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False, pad_token_id=pad)
            new = ids[:, inputs["input_ids"].shape[1] :]
            texts += self.tokenizer.batch_decode(new, skip_special_tokens=True)
        return texts

    # --- prompts as tokens -------------------------------------------------------------------------------------

    def inputs(self, contents: Sequence[Content]) -> dict[str, Tensor]:
        """What the model takes, padded on the left."""
        options: dict[str, Any] = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        images_processor = self.processor.image_processor
        for name in ("do_image_splitting", "crop_to_patches"):  # one tile a picture, as a video's frames are shown
            if hasattr(images_processor, name):
                options[name] = False
        made = self.processor(
            text=[self.rendered(content) for content in contents],
            images=[self._pictures(content) for content in contents],
            add_special_tokens=not self.has_template,
            input_data_format="channels_first",
            **options,
        )
        dtype = next(self.model.parameters()).dtype
        return {
            name: value.to(self.device, dtype) if value.is_floating_point() else value.to(self.device)
            for name, value in made.items()
            if name != "labels" and isinstance(value, Tensor)
        }

    def rendered(self, content: Content) -> str:
        """The prompt as text with placeholders, up to where the answer begins."""
        parts = []
        for part in content:
            if isinstance(part, str) and self.placeholder in part:
                raise RewardError(
                    f"{self.path}: the text {part!r} contains the sign of a picture, {self.placeholder!r}"
                )
            parts.append(part if isinstance(part, str) else self.placeholder)
        pictures = sum(not isinstance(part, str) for part in content)
        if self.has_template:
            return self._before + "".join(parts) + self._after
        if pictures != 1:
            self.require_several("this")
        return self.placeholder + "".join(part for part in content if isinstance(part, str))

    def _pictures(self, content: Content) -> list[Tensor]:
        pictures = [torch.from_numpy(np.array(part)) for part in content if not isinstance(part, str)]
        return [resized(picture[None], self.image_size)[0].permute(2, 0, 1).contiguous() for picture in pictures]

    def positions(self, inputs: dict[str, Tensor]) -> Tensor | None:
        """int64 (3, B, tokens) of models with rows and columns in their positions (Qwen), None of others."""
        if not hasattr(self.model.model, "get_rope_index"):
            return None
        known = ("input_ids", "mm_token_type_ids", "image_grid_thw", "attention_mask")
        return self.model.model.get_rope_index(**{name: inputs[name] for name in known if name in inputs})[0]


def _placeholder(processor: Any, image_token: int) -> str:
    """What stands for a picture in a text, as the chat template writes it."""
    token = str(getattr(processor, "image_token", None) or processor.tokenizer.convert_ids_to_tokens(image_token))
    if not getattr(processor, "chat_template", None):
        return token
    between = _templated(processor, [{"type": "text", "text": MARK}, {"type": "image"}, {"type": "text", "text": MARK}])
    # a template that moves pictures to the front leaves nothing here; then the token itself is the sign
    return between.split(MARK)[1].strip() or token


def _surroundings(processor: Any) -> tuple[str, str]:
    """What the chat template writes before a text and after it, up to where the answer begins."""
    if not getattr(processor, "chat_template", None):
        return "", ""
    before, after = _templated(processor, [{"type": "text", "text": MARK}]).split(MARK)
    return before, after


def _templated(processor: Any, content: list[dict[str, str]]) -> str:
    message = [{"role": "user", "content": content}]
    return str(processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False))


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
