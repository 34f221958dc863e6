"""Batches of clips for the judge: a function of (seed, step), so that a run can be repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reward_models import augment
from reward_models.augment import Clip
from reward_models.counterfactual import from_dataset, from_words, merged
from reward_models.heads import UNKNOWN
from reward_models.targets import EpisodeTargets, Part
from robo_rl.errors import ConfigError
from robo_rl.nets import tokenize
from robo_rl.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class ClipConfig:
    """What clips are like. At most one of rewind, reverse and hold happens to one. Raises ConfigError."""

    frames: int = 24  # longest clip
    hop: int = 4  # n of METHODS 2.7, frames of the episode between a state and the one it bootstraps from
    end_weight: float = 8.0  # of an episode's last observation, the only frame that shows the outcome
    wrong_instruction: float = 0.3  # share of a batch: copies of successful clips under another instruction
    wrong_words: bool = False  # also instructions with one word changed ("red" for "blue"), not only the dataset's own
    failures: float = 0.0  # least share of failed episodes among the clips drawn; 0: as often as they are in the data
    drop_camera: float = 0.0  # share of clips in which one of several cameras shows black
    rewind: float = 0.2
    reverse: float = 0.1
    hold: float = 0.15
    part: float = 0.5  # share of clips that show a part of the episode
    max_stride: float = 3.0  # frames skipped at most, on average over a clip

    def __post_init__(self) -> None:
        if self.frames < 8 or self.hop < 1 or self.max_stride < 1:
            raise ConfigError(
                "judge.fit.clips: needs frames >= 8, hop >= 1 and max_stride >= 1, "
                f"got {self.frames}, {self.hop} and {self.max_stride}"
            )
        changes = self.rewind + self.reverse + self.hold
        if not (0 <= self.failures < 1 and 0 <= self.drop_camera <= 1):
            raise ConfigError("judge.fit.clips: failures must lie in [0, 1) and drop_camera in [0, 1]")
        if not (0 <= self.wrong_instruction < 1 and 0 <= changes <= 1):
            raise ConfigError(
                "judge.fit.clips: wrong_instruction must lie in [0, 1) and rewind + reverse + hold in [0, 1], "
                f"got {self.wrong_instruction} and {changes}"
            )


@dataclass(frozen=True, slots=True)
class ClipBatch:
    """B clips, padded at the end to L frames. Padding has no targets and changes nothing before it."""

    rows: np.ndarray  # int64 (B, L), frame rows of the dataset
    instructions: Tensor  # int64 (B, bytes)
    progress: Tensor  # float32 (B, L), NaN: none
    label: Tensor  # float32 (B, L), NaN: none
    outcome: Tensor  # float32 (B, L), NaN: none
    link: Tensor  # int64 (B, L), -1: none
    weight: Tensor  # float32 (B, L)
    incomplete: Tensor  # bool (B, L)
    tri_state: Tensor  # int64 (B, L - 1), -1: none
    texts: tuple[str, ...]  # the B instructions
    length: Tensor  # int64 (B,): frames of every clip before its padding
    dropped: np.ndarray | None = None  # float (B,) in [0, 1): which camera shows black, as a share of all; NaN: none
    preferred: Tensor = field(default_factory=lambda: torch.zeros(0, 2, dtype=torch.int64))  # (better, worse) clips

    def last(self) -> Tensor:
        """Place of every clip's last frame, int64 (B,)."""
        return self.length - 1

    def inside(self) -> Tensor:
        """bool (B, L): not padding."""
        places = torch.arange(self.progress.shape[1], device=self.progress.device)
        return places[None, :] < self.length[:, None]

    def to(self, device: torch.device) -> ClipBatch:
        """The same batch with its tensors on another device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name in self.__slots__ if isinstance(value := getattr(self, name), Tensor)
        }
        return replace(self, **moved)


class ClipBatches:
    """Draws clips of a set of episodes."""

    def __init__(
        self,
        episodes: Sequence[Trajectory],
        targets: Sequence[EpisodeTargets],
        first_row: np.ndarray,
        config: ClipConfig,
        *,
        batch_size: int,
        seed: int,
        preferences: Sequence[tuple[Part, Part]] = (),
        rewrites: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.targets, self.first_row, self.config = targets, first_row, config
        self.batch_size, self.seed, self.preferences = batch_size, seed, list(preferences)
        self._instruction = [episode.instruction for episode in episodes]
        self._success = [episode.success for episode in episodes]
        self._failed = np.flatnonzero([episode.outcome.label == 0.0 for episode in episodes])
        texts = {episode.instruction for episode in episodes}
        words = {text: from_words(text) for text in texts} if config.wrong_words else {}
        self._wrong = merged(episodes, from_dataset(episodes), words, rewrites or {})

    def __call__(self, step: int) -> ClipBatch:
        rng = np.random.default_rng([self.seed, step])
        counterfactual = round(self.config.wrong_instruction * self.batch_size)
        chosen = rng.integers(len(self.targets), size=self.batch_size - counterfactual)
        chosen = augment.mix_failures(chosen, self._failed, self.config.failures, rng)
        items = [(int(e), self._instruction[e], self._clip(int(e), rng)) for e in chosen]
        able = [place for place, (e, _, _) in enumerate(items) if self._success[e] and self._wrong[e]]
        for place in rng.permutation(able)[:counterfactual]:
            items.append(self._counterfactual(items[place][0], rng))
        preferred = torch.tensor(self._add_preferences(items, rng), dtype=torch.int64).reshape(-1, 2)
        dropped = augment.drop_cameras(len(items), self.config.drop_camera, rng) if self.config.drop_camera else None
        return replace(self._collate(items), preferred=preferred, dropped=dropped)

    def _add_preferences(self, items: list[tuple[int, str, Clip]], rng: np.random.Generator) -> list[tuple[int, int]]:
        """Parts of episodes that a person compared, as many pairs as an eighth of the batch; their places in it."""
        places: list[tuple[int, int]] = []
        if self.preferences:
            for number in rng.integers(len(self.preferences), size=max(1, self.batch_size // 8)):
                places.append((len(items), len(items) + 1))
                for e, first, last in self.preferences[number]:
                    items.append((e, self._instruction[e], self._span(e, first, last, rng)))
        return places

    def _span(self, e: int, first: int, last: int, rng: np.random.Generator) -> Clip:
        """Frames first ... last (-1: to the end), at a speed that fits into a clip."""
        last = last if last >= 0 else len(self.targets[e].progress) - 1
        pace = rng.uniform(1.0, self.config.max_stride)
        count = max(3, min(self.config.frames, round((last - first) / pace) + 1))
        frames = augment.speed(first, last, count, rng)
        return augment.make_clip(self.targets[e], frames, self.config.hop, self.config.end_weight)

    def _clip(self, e: int, rng: np.random.Generator) -> Clip:
        targets, options = self.targets[e], self.config
        last = len(targets.progress) - 1
        begin, end = 0, last
        if last > 6 and rng.random() < options.part:
            begin = int(rng.integers(0, last // 2))
            end = int(rng.integers(begin + 4, last + 1))
        stride = rng.uniform(1.0, options.max_stride)
        count = max(3, min(self.config.frames, round((end - begin) / stride) + 1))
        clip = augment.make_clip(
            targets, augment.speed(begin, end, count, rng), self.config.hop, self.config.end_weight
        )
        kind, n = rng.random(), len(clip)
        if n < 4 or np.isnan(targets.outcome):
            return clip  # nobody knows what the last frames of an aborted episode show
        if kind < options.rewind:
            turn = int(rng.integers(n // 3, n))
            return self._cut(augment.rewind(clip, turn, int(rng.integers(2, turn + 2))))
        if kind < options.rewind + options.reverse:
            return augment.reverse(clip)
        if kind < options.rewind + options.reverse + options.hold:
            # Half of the time the end: a success that lasts, or a failure that is padded. Never shortly before the
            # end, where a success may be reached already but is not confirmed yet.
            at = n - 1 if rng.random() < 0.5 else int(rng.integers(0, max(1, int(0.8 * (n - 1)))))
            return self._cut(augment.hold(clip, at, int(rng.integers(3, self.config.frames))))
        return clip

    def _cut(self, clip: Clip) -> Clip:
        """Longer clips keep their last frames, where the change is; links shift with them."""
        extra = len(clip) - self.config.frames
        if extra <= 0:
            return clip
        parts = {name: getattr(clip, name)[extra:] for name in Clip.__dataclass_fields__}
        parts["link"] = np.where(parts["link"] >= 0, parts["link"] - extra, -1)
        return Clip(**parts)

    def _counterfactual(self, e: int, rng: np.random.Generator) -> tuple[int, str, Clip]:
        clip = self._span(e, 0, -1, rng)
        texts, odds = self._wrong[e] or ([], None)
        return e, texts[int(rng.choice(len(texts), p=odds))], augment.wrong_instruction(clip)

    def _collate(self, items: Sequence[tuple[int, str, Clip]]) -> ClipBatch:
        length = max(len(clip) for _, _, clip in items)
        fill = {"progress": np.nan, "label": np.nan, "outcome": np.nan, "link": -1, "weight": 0.0, "incomplete": False}
        padded = {name: np.stack([_pad(getattr(c, name), length, v) for _, _, c in items]) for name, v in fill.items()}
        rows = np.stack([_pad(self.first_row[e] + c.frames, length, self.first_row[e]) for e, _, c in items])
        steps = [
            _pad(augment.tri_state_targets(c, self.targets[e].still, self.targets[e].direction), length - 1, UNKNOWN)
            for e, _, c in items
        ]
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in padded.items()}
        return ClipBatch(
            rows=rows,
            instructions=tokenize([text for _, text, _ in items]),
            tri_state=torch.from_numpy(np.stack(steps)),
            texts=tuple(text for _, text, _ in items),
            length=torch.tensor([len(clip) for _, _, clip in items]),
            **tensors,
        )


def _pad(array: np.ndarray, length: int, value: float) -> np.ndarray:
    return np.concatenate([array, np.full(length - len(array), value, array.dtype)])
