"""Robometer's prompts, run as a tree: what several prompts begin with is run once.

lerobot runs K pictures and the whole instruction for every frame of an episode. All prompts of an episode begin with
the instruction and frame 0, three neighbours share their second picture, and nothing after the last picture is read.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reward_models.prefix_cache import KeyValues, extend, stack
from reward_models.qwen_positions import IMAGE, cut_patches_by_product, rope_positions
from reward_models.robometer_frames import FrameFeatures
from reward_models.robometer_rows import Level, prefix_tree

REMEMBERED = 256  # prompts


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """lerobot hands its processor some options that it does not know; the complaint would come for every prompt."""
    logger = logging.getLogger("transformers.processing_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`max_length` is ignored")
            yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class Prompt:
    """The tokens of one prompt; only the pictures differ between the prompts of an episode."""

    ids: Tensor  # int64 (N,), cut after the last token that is read
    positions: Tensor  # int64 (3, N)
    pictures: tuple[int, ...]  # place of the first token of each picture
    picture_tokens: int

    @property
    def continuation(self) -> tuple[int, ...]:
        """The tokens after the part that all prompts of an episode share; episodes with equal ones go together."""
        return (self.picture_tokens, *self.ids[self.pictures[1] :].tolist())

    def piece(self, depth: int) -> slice:
        """Tokens added by the picture `depth`; the first piece contains the instruction too."""
        end = self.pictures[depth + 1] if depth + 1 < len(self.pictures) else len(self.ids)
        return slice(self.pictures[depth] if depth else 0, end)


@dataclass
class Episode:
    """An episode on its way through the model."""

    number: int
    prompt: Prompt
    features: FrameFeatures
    rows: np.ndarray  # int64 (frames, K)
    prefix: KeyValues | None = field(default=None, repr=False)  # instruction and frame 0


@dataclass(frozen=True)
class Batch:
    """Rows of one or more episodes whose prompts continue alike."""

    episodes: list[Episode]
    episode: np.ndarray  # int64 (R,): place in `episodes`
    frame: np.ndarray  # int64 (R,): the row's last frame


class RobometerPass:
    """Runs batches of prompts; gives progress and success at the last picture of each."""

    def __init__(self, reward_model: Any, encoder: Any) -> None:
        """lerobot's `RobometerRewardModel` and its `RobometerEncoderProcessorStep`, in multi-image mode."""
        self.reward_model, self.encoder = reward_model, encoder
        self.model = reward_model.model.model
        cut_patches_by_product(self.model)
        self.tokens = 0  # tokens that went through the language model so far
        self._prompts: dict[tuple[str, tuple[int, int], int], Prompt] = {}

    def prompt(self, instruction: str, size: tuple[int, int], pictures: int) -> Prompt:
        """Tokens for this instruction and frames of (height, width), made by lerobot's encoder."""
        key = (instruction, size, pictures)
        if key not in self._prompts:
            if len(self._prompts) >= REMEMBERED:
                self._prompts.clear()
            self._prompts[key] = self._make_prompt(instruction, size, pictures)
        return self._prompts[key]

    def _make_prompt(self, instruction: str, size: tuple[int, int], pictures: int) -> Prompt:
        blank = np.zeros((pictures, *size, 3), np.uint8)
        with quiet():
            encoded = self.encoder.encode_samples([(blank, instruction)])
        device = self.model.device
        ids = encoded["input_ids"][0].to(device)
        pad = self.model.config.image_token_id
        places = (ids == pad).nonzero()[:, 0]
        count = len(places) // pictures
        if self.reward_model.config.use_per_frame_progress_token:
            end = int((ids == encoded["prog_token_id"]).nonzero()[-1, 0])
        else:
            end = int((ids == encoded["vision_end_token_id"]).nonzero()[-1, 0])
        positions = rope_positions(self.model, ids, encoded["image_grid_thw"].to(device), IMAGE, pad)
        firsts = tuple(int(place) for place in places[::count])
        return Prompt(ids[: end + 1], positions[:, : end + 1], firsts, count)

    @torch.inference_mode()
    def run(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Progress logits (R, bins) or progress (R,), and success logits (R,)."""
        for episode in batch.episodes:
            if episode.prefix is None:
                features = episode.features.take(np.zeros(1, np.int64))
                _, episode.prefix = self._extend([episode], np.zeros(1, np.int64), features, 0, None)
        rows = np.stack([batch.episodes[e].rows[t] for e, t in zip(batch.episode, batch.frame, strict=True)])
        levels, leaves = prefix_tree(batch.episode, rows)
        past = stack([episode.prefix for episode in batch.episodes if episode.prefix is not None])
        hidden = torch.empty(0)
        for depth, level in enumerate(levels, start=1):
            features = self._features(batch.episodes, level)
            parents = past.rows(torch.from_numpy(level.parent).to(self.model.device))
            hidden, past = self._extend(batch.episodes, level.episode, features, depth, parents)
        read = self._read(hidden, batch.episodes[0].prompt)[torch.from_numpy(leaves).to(hidden.device)]
        progress, success = self.reward_model._apply_heads_to_hidden_states(read)
        return progress, success

    def _features(self, episodes: list[Episode], level: Level) -> Tensor:
        parts = []
        for number, episode in enumerate(episodes):
            frames = level.frame[level.episode == number]
            if len(frames):
                parts.append(episode.features.take(frames))
        return torch.cat(parts)  # nodes are sorted by episode

    def _extend(
        self, episodes: list[Episode], which: np.ndarray, features: Tensor, depth: int, past: KeyValues | None
    ) -> tuple[Tensor, KeyValues]:
        prompt = episodes[0].prompt
        piece = prompt.piece(depth)
        begin = prompt.pictures[depth] - piece.start
        ids = prompt.ids[piece]
        embeds = self.model.language_model.embed_tokens(ids).repeat(len(which), 1, 1)
        embeds[:, begin : begin + prompt.picture_tokens] = features[:, 0].to(embeds)
        visual = torch.zeros(embeds.shape[:2], dtype=torch.bool, device=embeds.device)
        visual[:, begin : begin + prompt.picture_tokens] = True
        positions = torch.stack([episodes[e].prompt.positions[:, episodes[e].prompt.piece(depth)] for e in which], 1)
        deep = [features[:, layer].flatten(0, 1) for layer in range(1, features.shape[1])]
        self.tokens += len(which) * len(ids)
        return extend(self.model.language_model, embeds, positions, past, visual=visual, deep=deep)

    def _read(self, hidden: Tensor, prompt: Prompt) -> Tensor:
        """What the heads read of the last piece (rows, tokens, D): its progress token, or its picture pooled."""
        if self.reward_model.config.use_per_frame_progress_token:
            return hidden[:, -1]
        start, end = -1, int(prompt.ids[-1])  # any number for the start that is no token
        ids = torch.cat([prompt.ids.new_tensor([start]), prompt.ids[prompt.piece(len(prompt.pictures) - 1)]])
        pool = self.reward_model._extract_hidden_states_from_token_pairs
        return torch.cat([pool(torch.cat([row[:1], row]), ids, start, end) for row in hidden])


def batches(episodes: Iterable[Episode], size: int) -> Iterator[Batch]:
    """Rows in order, `size` at a time, across episodes where their prompts continue alike."""
    waiting: list[tuple[Episode, np.ndarray]] = []
    count = 0
    for episode in episodes:
        if waiting and waiting[0][0].prompt.continuation != episode.prompt.continuation:
            yield _batch(waiting)
            waiting, count = [], 0
        frame = 0
        while frame < len(episode.rows):
            taken = np.arange(frame, min(len(episode.rows), frame + size - count))
            waiting.append((episode, taken))
            frame, count = frame + len(taken), count + len(taken)
            if count == size:
                yield _batch(waiting)
                waiting, count = [], 0
    if waiting:
        yield _batch(waiting)


def _batch(parts: list[tuple[Episode, np.ndarray]]) -> Batch:
    place = np.repeat(np.arange(len(parts)), [len(frames) for _, frames in parts])
    return Batch([episode for episode, _ in parts], place, np.concatenate([frames for _, frames in parts]))
