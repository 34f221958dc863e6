"""Ask any vision-language model of transformers about several pictures, and read how probable given answers are.

A prompt is text and pictures in order. Its placeholders are written into one text, because some chat templates (LLaVA-
OneVision's) move all pictures to the front. The answers' probabilities are read from logits, so that a model always
answers; text is written only where it must be parsed (`answers`).

A prompt that is read once can be asked many things: keys and values of what questions have in common are kept
(`Reading`). What comes out equals one pass a question, up to rounding.
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
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from reward_models.answers import Options, tokenised
from reward_models.hub import Pretrained, Source, fingerprint, load_vlm
from reward_models.vlm_layout import MARK, resized
from robo_rl.errors import ConfigError, RewardError

Content = Sequence[str | np.ndarray]
"""A prompt: text, and pictures uint8 (H, W, 3), in the order in which the model meets them."""

ROWS = 32  # answers that are looked at together


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
        self.pretrained = _opened(source)
        self.model, self.processor = self.pretrained.model, self.pretrained.processor
        self.revision = self.pretrained.revision
        self.path, self.image_size, self.batch_size = source.path, image_size, batch_size
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


class Reading:
    """A prompt whose keys and values are kept. Questions to it, or to a part of it, look at them and add nothing."""

    def __init__(self, asker: Asker, content: Content) -> None:
        self.asker, self.content = asker, list(content)
        self.inputs = asker.inputs([content])
        self.cache = DynamicCache()  # without a configuration: it keeps all, also where attention slides
        asker.model(**self.inputs, past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    @torch.inference_mode()
    def log_probs(
        self, options: Sequence[str], starts: Sequence[str] = ("",), *, cut: int | None = None, tail: Sequence[str] = ()
    ) -> np.ndarray:
        """Log-probability of each option after each beginning of an answer: float64 (starts, options).

        With `cut`, the prompt is its first `cut` parts and then the texts `tail`. Beginnings do not know of each other.
        """
        inputs = self.inputs
        if cut is not None:
            content = [*self.content[:cut], *tail]
            inputs = self.asker.inputs([content])
        kept = self._kept(inputs["input_ids"][0])
        if kept is None:  # a part of the prompt shows its pictures with other tokens
            return Reading(self.asker, content).log_probs(options, starts)
        made = [tokenised(self.asker.tokenizer, start, options) for start in starts]
        asked = _Questions(made)
        values = self._follow(inputs, kept, asked.rows, max(asked.scored))
        return asked.collect(values)

    def _kept(self, ids: Tensor) -> int | None:
        """How many tokens of the kept ones begin this prompt; None when what is left holds pictures."""
        own = self.inputs["input_ids"][0]
        size = min(len(own), len(ids))
        same = (own[:size] == ids[:size]).long().cumprod(0)
        kept = min(int(same.sum()), len(ids) - 1)
        return None if bool((ids[kept:] == self.asker.image_token).any()) else kept

    def _follow(self, inputs: dict[str, Tensor], kept: int, rows: list[list[int]], last: int) -> list[np.ndarray]:
        """For each row of answer tokens, the log-probabilities of its last `last` tokens or fewer, in order."""
        model, device = self.asker.model, self.asker.device
        rest = inputs["input_ids"][0, kept:].tolist()
        positions = self.asker.positions(inputs)
        found: list[np.ndarray] = []
        for chunk in _chunks(rows, ROWS):
            longest = max(len(row) for row in chunk)
            # the last token of an answer is asked for, not looked at; padding stands behind and is never looked at
            padded = torch.tensor([rest + row[:-1] + [0] * (longest - len(row)) for row in chunk], device=device)
            first = min(max(len(row) - last, 0) for row in chunk)
            seen = torch.arange(len(rest) - 1 + first, padded.shape[1], device=device)
            where: dict[str, Any] = {}
            if positions is not None:
                own = positions[:, :, kept:]
                after = own.max() + 1 + torch.arange(padded.shape[1] - len(rest), device=device)
                where["position_ids"] = torch.cat([own, after.expand(3, 1, -1)], 2).expand(-1, len(chunk), -1)
            past = _looked_at(self.cache, kept, len(chunk))
            out = model(input_ids=padded, past_key_values=past, use_cache=True, logits_to_keep=seen, **where)
            log_p = F.log_softmax(out.logits.float(), -1)
            for number, row in enumerate(chunk):
                wanted = torch.tensor(row[first:], device=device)
                found.append(log_p[number, torch.arange(len(wanted), device=device), wanted].double().cpu().numpy())
        return found


class _Questions:
    """The rows of tokens that must be run to compare options, and what their probabilities mean."""

    def __init__(self, made: Sequence[Options]) -> None:
        self.made = made
        self.rows = [[*o.shared, *branch] for o in made for branch in o.branches]
        # where options part at once their first tokens are compared, else all tokens from there on
        self.scored = [1 if o.part_at_once else len(branch) for o in made for branch in o.branches]
        self.rows = [
            row if not o.part_at_once else row[: len(o.shared) + 1]
            for o, rows in zip(made, _chunks(self.rows, len(made[0].branches)), strict=True)
            for row in rows
        ]

    def collect(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Sums over the scored tokens: (questions, options)."""
        sums = [value[len(value) - scored :].sum() for value, scored in zip(values, self.scored, strict=True)]
        return np.array(sums).reshape(len(self.made), -1)


class _Looked(DynamicLayer):
    """Keys and values that a pass looks at together with its own; nothing is added to them."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return torch.cat([self.keys, key_states], -2), torch.cat([self.values, value_states], -2)


def _looked_at(cache: DynamicCache, kept: int, rows: int) -> DynamicCache:
    """The first `kept` tokens of a cache of one row, for several rows; costs no memory."""
    made = DynamicCache()
    for layer in cache.layers:
        if layer.keys is None or layer.values is None:
            raise RewardError("a layer keeps no keys and values; this architecture is not supported")
        keys, values = (part[:, :, :kept].expand(rows, -1, -1, -1) for part in (layer.keys, layer.values))
        made.layers.append(_Looked(keys, values))
    return made


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
