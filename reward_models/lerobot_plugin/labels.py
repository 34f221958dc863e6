"""Labels of windows of frames, looked up by row: lerobot's batches carry no outcome.

lerobot's preprocessing drops every column that it does not know, so what an episode teaches is read from the dataset's
folder once and found by `index`. The same labels and changes to clips as in `reward_models.fit`, but on windows that
end at a sampled frame; and no picture is looked at here, so that standing still counts as a step like any other [O].
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reward_models import augment
from reward_models.augment import Clip
from reward_models.batches import ClipBatch, ClipBatches, ClipConfig
from reward_models.targets import episode_targets
from robo_rl.data import layout
from robo_rl.data.damage import Damage
from robo_rl.data.tables import Columns, EpisodeFacts, read_columns, read_facts, read_rows
from robo_rl.errors import DataError
from robo_rl.types import Outcome, Trajectory


class WindowLabels(ClipBatches):
    """What every row of a dataset teaches. `first_row` int64 (E,) and `lengths` int64 (E,) as in the dataset.

    With `demonstrations`, an episode of unknown outcome is a success. Raises DataError for a dataset that cannot be
    read, or in which no episode succeeded.
    """

    def __init__(self, root: Path, clips: ClipConfig, *, demonstrations: bool = False) -> None:
        try:
            info = json.loads((root / layout.INFO).read_text())
        except (OSError, ValueError) as error:
            raise DataError(f"{root / layout.INFO}: labels are read from here, but it cannot be ({error})") from None
        rows, damage = read_rows(root), Damage()
        columns = read_columns(root, info, rows, damage)
        found = read_facts(root, info, columns, rows, damage)
        spans = [slice(int(a), int(a + n)) for a, n in zip(found.first, found.lengths, strict=True)]
        episodes = [
            _blind(facts, columns, span, float(info["fps"]), demonstrations=demonstrations)
            for facts, span in zip(found.facts, spans, strict=True)
        ]
        if not any(episode.success for episode in episodes):
            mend = "" if demonstrations else "; if they are demonstrations, say --reward_model.demonstrations=true"
            raise DataError(f"{root}: a judge needs episodes that succeeded; none of {len(episodes)} is known to{mend}")
        super().__init__(episodes, episode_targets(episodes), found.first, clips, batch_size=1, seed=0)
        self.lengths, self.instructions = found.lengths, [episode.instruction for episode in episodes]

    def rows(self, index: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Rows that lerobot shows for sampled rows (B,): int64 (B, L), held at the start of the episode."""
        first = self.first_row[self.episode_of(index)]
        return np.maximum(index[:, None] + offsets[None, :], first[:, None])

    def clips(self, index: np.ndarray, offsets: np.ndarray, rng: np.random.Generator | None) -> ClipBatch:
        """Windows of sampled rows (B,) as clips with labels, without the padding at an episode's start.

        With `rng` some are changed (rewind, reverse, hold), and copies of windows of successes under an instruction
        that they certainly do not fulfil come on top, as many as `wrong_instruction` says.
        """
        items: list[tuple[int, str, Clip]] = []
        for e, row in zip(self.episode_of(index), index, strict=True):
            frames = row - self.first_row[e] + offsets
            clip = augment.make_clip(self.targets[e], frames[frames >= 0], self.config.hop, self.config.end_weight)
            items.append((int(e), self.instructions[e], clip))
        if rng is None:
            return self._collate(items)
        wrong = self._counterfactuals(items, rng)
        return self._collate([(e, text, self._changed(clip, e, rng)) for e, text, clip in items] + wrong)

    def _counterfactuals(
        self, items: Sequence[tuple[int, str, Clip]], rng: np.random.Generator
    ) -> list[tuple[int, str, Clip]]:
        share = self.config.wrong_instruction
        able = [place for place, (e, _, _) in enumerate(items) if self._success[e] and self._wrong[e]]
        out = []
        for place in rng.permutation(able)[: round(share / (1 - share) * len(items))]:
            e, _, clip = items[place]
            texts, odds = self._wrong[e] or ([], None)
            out.append((e, texts[int(rng.choice(len(texts), p=odds))], augment.wrong_instruction(clip)))
        return out

    def _changed(self, clip: Clip, e: int, rng: np.random.Generator) -> Clip:
        options, kind, n = self.config, rng.random(), len(clip)
        if n < 4 or np.isnan(self.targets[e].outcome):
            return clip  # nobody knows what the frames of an aborted episode show
        if kind < options.rewind:
            turn = int(rng.integers(n // 3, n))
            return self._cut(augment.rewind(clip, turn, int(rng.integers(2, turn + 2))))
        if kind < options.rewind + options.reverse:
            return augment.reverse(clip)
        if kind < options.rewind + options.reverse + options.hold:
            # never shortly before the end, where a success may be reached already but is not confirmed yet
            at, last = int(rng.integers(0, n)), len(self.targets[e].progress) - 1
            if clip.frames[at] <= 0.8 * last or clip.frames[at] == last:
                return self._cut(augment.hold(clip, at, int(rng.integers(3, options.frames))))
        return clip

    def episode_of(self, index: np.ndarray) -> np.ndarray:
        """Numbers of the episodes that rows belong to."""
        beyond = index[(index < 0) | (index >= int(self.lengths.sum()))]
        if len(beyond):
            raise DataError(f"row {beyond[0]} is not in the dataset that the labels were read from")
        return np.searchsorted(self.first_row, index, side="right") - 1


def _blind(facts: EpisodeFacts, columns: Columns, rows: slice, fps: float, *, demonstrations: bool) -> Trajectory:
    """An episode without its pictures: one grey pixel that never changes, so that no step stands still."""
    steps = rows.stop - rows.start - 1
    outcome = Outcome.SUCCESS if demonstrations and facts.outcome is Outcome.UNKNOWN else facts.outcome
    pixel: dict[str, Any] = {"none": np.broadcast_to(np.uint8(0), (steps + 1, 1, 1, 3))}
    return Trajectory(
        episode_id=facts.episode_id,
        instruction=facts.instruction,
        images=pixel,
        state=np.zeros((steps + 1, 0), np.float32),
        actions=np.zeros((steps, 1), np.float32),
        controller=columns.controller[rows][:-1],
        outcome=outcome,
        fps=fps,
        task=facts.task,
    )
