"""RL-VLM-F: a vision-language model says in which of two pictures a goal is better achieved (METHODS 7).

The paper asks for 0, 1, or -1 for "no difference or unclear"; here the answers are the letters A, B and C. Models
prefer a place whatever stands there, so each pair is asked in both orders [O]:
- `logits` [O]: the probabilities of A, B and C, averaged over both orders. A model that only ever says A gives both
  pictures the same. Where A and B differ by less than `margin`, or C is the most probable, the pair is unsure.
- `text`: the paper's way of asking; the written letters of both orders must agree, else the pair is unsure. A text
  that names none is an abstention.

`clip` > 1 shows on each side the frames that lead up to the compared one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reward_models.answers import distribution, parse_choice
from reward_models.preference_pairs import FramePair, labeller_of, read_pairs, write_pairs
from reward_models.prompting import Asker, Content
from reward_models.zero_shot import AskedConfig, AskedJudge, joined
from robo_rl.data import EpisodeSet
from robo_rl.errors import ConfigError, DataError
from robo_rl.types import Trajectory

LETTERS = ("A", "B", "C")
PROMPT = "Here are two moments of a robot at work."
QUESTION = (
    "\nThe goal is: {instruction}\n"
    "Is this goal better achieved in A or in B? Reply with one letter: A, B, or C if there is no difference or it is "
    "unclear."
)
TOKENS = 64  # of a written answer


@dataclass(frozen=True, kw_only=True)
class PreferenceVLMConfig(AskedConfig):
    """How a model is asked. Raises ConfigError."""

    name: str = "preference_vlm"
    margin: float = 0.1  # logits: A and B must differ by this much probability
    clip: int = 1  # frames shown on each side, the compared one last
    clip_stride: int = 1  # steps between them
    prompt: str = PROMPT
    question: str = QUESTION  # {instruction}

    def __post_init__(self) -> None:
        AskedConfig.__post_init__(self)
        if self.clip < 1 or self.clip_stride < 1:
            raise ConfigError(f"clip and clip_stride must be at least 1, got {self.clip} and {self.clip_stride}")
        if not 0.0 <= self.margin < 1.0:
            raise ConfigError(f"margin must lie in [0, 1), got {self.margin}")
        if "{instruction}" not in self.prompt + self.question:
            raise ConfigError("prompt or question must contain {instruction}")


class PairLabeller(AskedJudge):
    """Answers pairs; no judge of episodes by itself. `model_id` names it in the file of pairs."""

    TYPE = "preference_vlm"
    CONFIG = PreferenceVLMConfig

    def __init__(self, config: PreferenceVLMConfig, asker: Asker | None = None) -> None:
        super().__init__(config, asker)

    def check(self) -> None:
        self.asker.require_several("a comparison")

    def answer(self, episodes: Sequence[Trajectory], pairs: Sequence[FramePair]) -> list[FramePair]:
        """The pairs with their answers, in order."""
        contents = [self._content(episodes, pair, swapped=swapped) for pair in pairs for swapped in (False, True)]
        if self.config.readout == "text":
            texts = self.asker.write(contents, self.config.max_tokens or TOKENS)
            read = [parse_choice(text, LETTERS) for text in texts]
            return [pair.answered(*_agreed(*read[2 * n : 2 * n + 2])) for n, pair in enumerate(pairs)]
        share, mass = distribution(self.asker.log_probs(contents, LETTERS))
        both = share.reshape(len(pairs), 2, 3)
        mean = (both[:, 0] + both[:, 1][:, [1, 0, 2]]) / 2  # in the second order, A is the pair's b
        held = mass.reshape(len(pairs), 2).min(1)
        return [
            pair.answered(*self._verdict(row)) if enough else pair.answered("abstained", 0.0)
            for pair, row, enough in zip(pairs, mean, held >= self.config.min_mass, strict=True)
        ]

    def _verdict(self, share: np.ndarray) -> tuple[str, float]:
        """From the probabilities of (a, b, unsure)."""
        best = int(share.argmax())
        if best == 2 or abs(share[0] - share[1]) < self.config.margin:
            return "unsure", float(share[2])
        return ("a", "b")[best], float(share[best])

    def _content(self, episodes: Sequence[Trajectory], pair: FramePair, *, swapped: bool) -> Content:
        sides = [(pair.a, pair.frame_a), (pair.b, pair.frame_b)]
        instruction = ("{instruction}", episodes[pair.a].instruction)
        parts: list[Any] = [self.config.prompt.replace(*instruction)]
        for letter, (number, frame) in zip("AB", sides[::-1] if swapped else sides, strict=True):
            episode = episodes[number]
            back = np.arange(self.config.clip - 1, -1, -1) * self.config.clip_stride
            frames = np.maximum(frame - back, 0)
            parts = joined(parts, f"\n{letter}: ", *(self.shown(episode, int(f)) for f in frames))
        return [*parts, self.config.question.replace(*instruction)]


def _agreed(first: int | None, second: int | None) -> tuple[str, float]:
    """Letters written in both orders -> answer and confidence."""
    if first is None or second is None:
        return "abstained", 0.0
    return {(0, 1): ("a", 1.0), (1, 0): ("b", 1.0)}.get((first, second), ("unsure", 0.0))


def label_pairs(
    labeller: PairLabeller,
    episodes: EpisodeSet,
    pairs: Sequence[FramePair],
    path: Path | str,
    *,
    write_every: int = 64,
    progress_callback: Callable[[int, int], None] | None = None,
) -> list[FramePair]:
    """Answer pairs and keep them in a parquet file; called again, it goes on after those that the file holds.

    Raises DataError when the file holds other pairs, or answers of another labeller.
    """
    path = Path(path)
    done: list[FramePair] = []
    if path.exists():
        done = read_pairs(path, episodes)
        known = labeller_of(path)
        if known != labeller.model_id:
            who = known or "somebody else"
            raise DataError(f"{path}: answered by {who}, not by {labeller.model_id}; choose a new file")
        if [pair.shown for pair in done] != [pair.shown for pair in pairs[: len(done)]]:
            raise DataError(f"{path}: holds other pairs; choose another file, or the same pairs")
    for first in range(len(done), len(pairs), write_every):
        done += labeller.answer(episodes, pairs[first : first + write_every])
        write_pairs(path, episodes, done, labeller=labeller.model_id)
        if progress_callback is not None:
            progress_callback(len(done), len(pairs))
    return done
