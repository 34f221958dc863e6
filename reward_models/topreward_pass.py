"""log P("True" | prefix) for all prefixes of an episode in one causal pass, exact to rounding.

Tokens and pictures that go through the model grow with the frames, where a call a prefix grows with their square. What
is left of the square is attention alone: every question must look at all that came before it.

The trunk is what long prefixes contain: full groups of frames, one after the other, their keys and values kept. Each
prefix is a branch: the last frame alone if its number is odd, then the question. Trunk and branches go through the
model side by side; a mask lets a branch see the trunk up to its own place, and itself. No other text ever enters it, so
nothing drifts: attention, rotary positions and pictures are those of the prompt run by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reward_models.prefix_cache import KeyValues, extend
from reward_models.qwen_positions import VIDEO, cut_patches_by_product, picture_features, rope_positions
from reward_models.topreward_text import PromptText
from reward_models.topreward_video import Size, lengths_by_size, patches, resize


@dataclass(frozen=True)
class Branch:
    """What one prefix adds to the trunk."""

    length: int  # frames of the prefix
    groups: int  # full groups of the trunk that it follows
    tail: int  # frames of its own group; 0 when all groups are full
    ids: list[int]


@dataclass
class Trunk:
    """The part that is kept while an episode is read."""

    groups: int = 0
    tokens: int = 0
    position: int = 0
    past: KeyValues | None = None


class TOPRewardPass:
    """Reads episodes with a Qwen3-VL model."""

    def __init__(self, model: Any, processor: Any, *, tokens_together: int) -> None:
        """`model` a `Qwen3VLForConditionalGeneration`; about `tokens_together` tokens go through it in one pass."""
        self.model, self.processor = model, processor.video_processor
        cut_patches_by_product(model.model)
        self.tokens_together = tokens_together
        self.tokens = 0  # through the language model so far
        self.pictures = 0  # groups of frames through the vision tower so far
        self._relative: dict[tuple[int, int, int], Tensor] = {}  # rotary positions of a branch with a picture

    @torch.inference_mode()
    def log_probs(self, frames: np.ndarray, text: PromptText, lengths: Sequence[int]) -> np.ndarray:
        """log P(answer | first n frames) for each n, float64 (len(lengths),).

        Args:
            frames: uint8 (T, H, W, 3), may be a memory map.
            text: of the instruction.
            lengths: numbers of frames, between 1 and T.
        """
        found: dict[int, float] = {}
        height, width = frames.shape[1:3]
        for size, group in lengths_by_size(self.processor, lengths, (height, width)).items():
            found.update(self._read(frames, text, group, size))
        return np.array([found[int(n)] for n in lengths], np.float64)

    def longest_prompt(self, size: Size, text: PromptText, lengths: Sequence[int]) -> tuple[int, int]:
        """Tokens of the longest prompt of these prefixes, answer included, and the number of frames in it."""
        groups = lengths_by_size(self.processor, lengths, size)
        return max((len(text.prompt(max(group), self.picture_tokens(s))), max(group)) for s, group in groups.items())

    def picture_tokens(self, size: Size) -> int:
        side = self.processor.patch_size * self.processor.merge_size
        return (size[0] // side) * (size[1] // side)

    def _read(self, frames: np.ndarray, text: PromptText, lengths: list[int], size: Size) -> dict[int, float]:
        """Prefixes whose frames are resized alike."""
        picture = text.picture(self.picture_tokens(size))
        branches = [_branch(text, n, picture) for n in sorted(lengths)]
        last = max(branch.groups for branch in branches)
        trunk, found = Trunk(), dict[int, float]()
        while branches or trunk.groups < last:
            groups, taken = self._next(trunk, branches, last, len(picture))
            branches = branches[len(taken) :]
            scores = self._step(trunk, frames, text, size, groups, taken)
            found.update(zip([branch.length for branch in taken], scores, strict=True))
        return found

    def _next(self, trunk: Trunk, branches: list[Branch], last: int, picture: int) -> tuple[int, list[Branch]]:
        """How many groups the trunk grows by, and the branches that leave it by then, for one pass."""
        groups, taken, tokens = 0, 0, 0
        while taken < len(branches) or trunk.groups + groups < last:
            if taken < len(branches) and branches[taken].groups <= trunk.groups + groups:
                cost = len(branches[taken].ids)
                if tokens and tokens + cost > self.tokens_together:
                    break
                taken += 1
            else:
                cost = picture + TIMESTAMP
                if tokens and tokens + cost > self.tokens_together:
                    break
                groups += 1
            tokens += cost
        return groups, branches[:taken]

    def _step(
        self, trunk: Trunk, frames: np.ndarray, text: PromptText, size: Size, groups: int, branches: list[Branch]
    ) -> list[float]:
        """One pass: the trunk grows by `groups`, and the branches are scored."""
        count = self.picture_tokens(size)
        grown, ends = _trunk_ids(text, trunk.groups, groups, text.picture(count))
        ids = torch.tensor([*grown, *(i for branch in branches for i in branch.ids)], device=self.model.device)
        grid = (groups + sum(branch.tail > 0 for branch in branches), *self._grid(size))
        positions, limits, starts = self._places(trunk, ids, ends, branches, grid)
        features = self._features(frames, size, trunk.groups, groups, branches, grid)
        visual = ids == text.pad
        embeds = self.model.model.language_model.embed_tokens(ids)
        if features is not None:
            embeds[visual] = features[:, 0].flatten(0, 1).to(embeds)
        hidden, past = extend(
            self.model.model.language_model,
            embeds[None],
            positions[:, None],
            trunk.past,
            visual=None if features is None else visual[None],
            deep=[] if features is None else [features[:, n].flatten(0, 1) for n in range(1, features.shape[1])],
            mask=_mask(trunk.tokens, limits, starts, embeds.dtype) if branches else None,
        )
        self.tokens += len(ids)
        trunk.groups, trunk.tokens = trunk.groups + groups, trunk.tokens + len(grown)
        trunk.past = past.first(trunk.tokens) if trunk.tokens else None
        if grown:
            trunk.position = int(positions[0, len(grown) - 1]) + 1
        last = np.cumsum([len(branch.ids) for branch in branches]) + len(grown) - 1
        return self._answers(hidden[0, torch.from_numpy(last).to(hidden.device)], text.answer) if branches else []

    def _answers(self, hidden: Tensor, answer: int) -> list[float]:
        logits = self.model.lm_head(hidden).float()
        scores: list[float] = logits.log_softmax(-1)[:, answer].tolist()
        return scores

    def _grid(self, size: Size) -> tuple[int, int]:
        return size[0] // self.processor.patch_size, size[1] // self.processor.patch_size

    def _places(
        self, trunk: Trunk, ids: Tensor, ends: list[int], branches: list[Branch], grid: tuple[int, int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For every token: rotary position (3, N); how many trunk tokens it sees (N,); where its own text starts (N,).

        `ends[g]` is the number of new trunk tokens up to and with the g-th new group; a place counts from the trunk's
        first new token.
        """
        device, grown = ids.device, ends[-1] if ends else 0
        positions = torch.empty(3, len(ids), dtype=torch.long, device=device)
        limits = torch.full((len(ids),), trunk.tokens, device=device)
        starts = torch.zeros(len(ids), dtype=torch.long, device=device)
        if grown:
            moments = torch.tensor([[len(ends), *grid[1:]]], device=device)
            pad = self.model.config.video_token_id
            positions[:, :grown] = trunk.position + rope_positions(self.model.model, ids[:grown], moments, VIDEO, pad)
        place = grown
        for branch in branches:
            new = branch.groups - trunk.groups
            own = slice(place, place + len(branch.ids))
            if branch.groups == 0:
                begin, limits[own] = 0, 0
            elif new == 0:
                begin = trunk.position
            else:
                begin, limits[own] = int(positions[0, ends[new - 1] - 1]) + 1, trunk.tokens + ends[new - 1]
            positions[:, own] = begin + self._own_positions(ids[own], branch, grid)
            starts[own] = place
            place = own.stop
        return positions, limits, starts

    def _own_positions(self, ids: Tensor, branch: Branch, grid: tuple[int, int, int]) -> Tensor:
        if not branch.tail:
            return torch.arange(len(ids), device=ids.device).expand(3, -1)
        pad = self.model.config.video_token_id
        key = (int((ids == pad).nonzero()[0, 0]), len(ids), grid[1] * 100_000 + grid[2])
        if key not in self._relative:
            moment = torch.tensor([[1, *grid[1:]]], device=ids.device)
            self._relative[key] = rope_positions(self.model.model, ids, moment, VIDEO, pad)
        return self._relative[key]

    def _features(
        self,
        frames: np.ndarray,
        size: Size,
        first: int,
        groups: int,
        branches: list[Branch],
        grid: tuple[int, int, int],
    ) -> Tensor | None:
        """Pictures of the trunk's new groups, then of the branches that have one; None when there are none."""
        if not grid[0]:
            return None
        together = self.processor.temporal_patch_size
        tails = [(branch.groups * together, branch.length) for branch in branches if branch.tail]
        begin = min([first * together] * bool(groups) + [begin for begin, _ in tails])
        end = max([(first + groups) * together] * bool(groups) + [end for _, end in tails])
        ready = resize(self.processor, frames[begin:end], size)
        clips = [ready[first * together - begin :][: groups * together]] if groups else []
        clips += [ready[start - begin : stop - begin] for start, stop in tails]
        self.pictures += grid[0]
        return picture_features(self.model.model, patches(self.processor, clips), grid)


TIMESTAMP = 10  # tokens of "<12.5 seconds>", about: only to guess how much goes into one pass


def _branch(text: PromptText, length: int, picture: list[int]) -> Branch:
    groups, tail = divmod(length, text.group)
    own = [*text.before(groups * text.group, tail), *picture] if tail else []
    return Branch(length, groups, tail, [*own, *text.question])


def _trunk_ids(text: PromptText, first: int, groups: int, picture: list[int]) -> tuple[list[int], list[int]]:
    """Tokens of full groups from number `first` on, and how many there are up to the end of each."""
    ids: list[int] = []
    ends = []
    for group in range(first, first + groups):
        ids += [*text.before(group * text.group, text.group), *picture]
        ends.append(len(ids))
    return ids, ends


def _mask(past: int, limits: Tensor, starts: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive (1, 1, N, past + N): a token sees the trunk up to its limit, and its own text up to itself."""
    places = torch.arange(len(limits), device=limits.device)
    columns = torch.arange(-past, len(limits), device=limits.device)
    trunk = columns[None] < (limits - past)[:, None]
    own = (columns[None] >= starts[:, None]) & (columns[None] <= places[:, None])
    mask = torch.zeros(own.shape, dtype=dtype, device=limits.device)
    return mask.masked_fill(~(trunk | own), torch.finfo(dtype).min)[None, None]
