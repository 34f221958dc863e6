"""The controls of an audit: what is shown, what a sound judge does, and how much of it is asked. All ours [O].

Core controls can fail a judge. The others ask whether it is robust (to light, words, another view) and can only warn:
a judge for one fixed camera need not survive another one, but its user should know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reward_models import controls, metrics
from robo_rl.types import RewardSignal, Trajectory

Verdict = Literal["pass", "warn", "fail"]
Effect = Callable[[RewardSignal, RewardSignal], float]  # (opinion of the original, of the changed episode)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Pass at or beyond `good`, fail beyond `bad`, warn in between. `below`: small effects are the good ones."""

    good: float
    bad: float
    below: bool = False

    def verdict(self, effect: float) -> Verdict:
        """Undefined is no pass, and no proof of a fault either."""
        if not math.isfinite(effect):
            return "warn"
        sign = -1.0 if self.below else 1.0
        if sign * effect >= sign * self.good:
            return "pass"
        return "warn" if sign * effect >= sign * self.bad else "fail"

    @property
    def rule(self) -> str:
        """The mark as text."""
        sign, beyond = ("<=", "above") if self.below else (">=", "below")
        fails = f" (fails {beyond} {self.bad:g})" if math.isfinite(self.bad) else " (can only warn)"
        return f"effect {sign} {self.good:g}{fails}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlRow:
    """One control of successful episodes, or of failures."""

    name: str
    control: controls.Control
    effect: Effect
    what: str  # one plain sentence: what was shown and what a sound judge does
    mark: Mark
    of_failures: bool = False

    @property
    def optional(self) -> bool:
        """Left out where the data does not allow it (a single camera, no known synonym)."""
        return not math.isfinite(self.mark.bad)


def _at_least(good: float, bad: float = -math.inf) -> Mark:
    return Mark(good=good, bad=bad)


def _at_most(good: float, bad: float = math.inf) -> Mark:
    return Mark(good=good, bad=bad, below=True)


def control_rows(episodes: Sequence[Trajectory]) -> list[ControlRow]:
    """All controls, core ones first. `episodes` give other instructions and other videos."""
    return [*_of_order(), *_of_content(episodes), *_robustness(episodes)]


ENDS_LOWER = "progress ends lower than in the real video, by this much."
SCORE_LOWER = "the final success probability is lower than for the real one, by this much."


def _of_order() -> list[ControlRow]:
    """Core: frames in another order, fewer or more of them."""
    return [
        ControlRow(
            name="static",
            control=controls.static,
            effect=progress_drop,
            what=f"The first frame all the time: {ENDS_LOWER}",
            mark=_at_least(0.4, 0.2),
        ),
        ControlRow(
            name="static_last",
            control=controls.static_last,
            effect=climb_of(0.0),
            what="The last frame all the time: the score climbs by this much while nothing happens.",
            mark=_at_most(0.15, 0.4),
        ),
        ControlRow(
            name="reversed",
            control=controls.backwards,
            effect=progress_drop,
            what=f"The video backwards: {ENDS_LOWER}",
            mark=_at_least(0.4, 0.2),
        ),
        ControlRow(
            name="shuffled",
            control=controls.shuffled,
            effect=order_drop,
            what="Frames in random order: progress follows the order of showing less than in the real video, "
            "by this much.",
            mark=_at_least(0.4, 0.2),
        ),
        ControlRow(
            name="rewound",
            control=controls.rewound,
            effect=progress_drop,
            what=f"Nearly to the end, then back: {ENDS_LOWER}",
            mark=_at_least(0.3, 0.15),
        ),
        *[
            ControlRow(
                name=f"truncated_{round(100 * share)}",
                control=controls.truncated(share),
                effect=progress_drop,
                what=f"The first {share:.0%} only: {ENDS_LOWER}",
                mark=mark,
            )
            for share, mark in ((0.25, _at_least(0.4, 0.2)), (0.5, _at_least(0.2, 0.1)), (0.75, _at_least(0.05, -0.05)))
        ],
        ControlRow(
            name="padded",
            control=controls.padded,
            effect=climb_of(0.25),
            what="The first half, then a still picture for long: the score climbs by this much while nothing happens.",
            mark=_at_most(0.1, 0.25),
        ),
    ]


def _of_content(episodes: Sequence[Trajectory]) -> list[ControlRow]:
    """Core: other pictures, another instruction."""
    return [
        ControlRow(
            name="blank",
            control=controls.blank,
            effect=score_drop,
            what=f"Black pictures: {SCORE_LOWER}",
            mark=_at_least(0.3, 0.15),
        ),
        ControlRow(
            name="wrong_instruction",
            control=controls.wrong_instruction(episodes),
            effect=score_drop,
            what=f"The same video under the most alike other instruction: {SCORE_LOWER}",
            mark=_at_least(0.3, 0.1),
        ),
    ]


def _robustness(episodes: Sequence[Trajectory]) -> list[ControlRow]:
    moved = "the final success probability changes by this much."
    views = "failures may not look like successes: their final success probability rises by this much."
    same = [
        ("faster", controls.faster, f"Every second frame: {moved}"),
        ("slower", controls.slower, f"Every frame twice: {moved}"),
        ("brightness", controls.brightness, f"Darker or brighter by a quarter: {moved}"),
        ("noise", controls.noise, f"Grain of 10 grey levels: {moved}"),
        ("cropped", controls.cropped, f"The camera moved by a sixteenth of the picture: {moved}"),
        ("paraphrase", controls.paraphrase, f"The same request in other words: {moved}"),
    ]
    return [
        *[
            ControlRow(name=name, control=control, effect=score_change, what=what, mark=_at_most(0.15))
            for name, control, what in same
        ],
        *[
            ControlRow(name=name, control=control, effect=score_rise, what=what, mark=_at_most(0.15), of_failures=True)
            for name, control, what in (
                ("one_camera", controls.one_camera, f"All cameras show what the first sees: {views}"),
                ("swapped_cameras", controls.swapped_cameras, f"Cameras change places: {views}"),
            )
        ],
        ControlRow(
            name="easy_wrong_instruction",
            control=controls.wrong_instruction(episodes, hard=False),
            effect=score_drop,
            what="The same video under the least alike other instruction: the final success probability is lower.",
            mark=_at_least(0.3),
        ),
        ControlRow(
            name="other_video",
            control=controls.other_video(episodes),
            effect=score_drop,
            what="Another task's successful video under this instruction: the final success probability is lower.",
            mark=_at_least(0.3),
        ),
        ControlRow(
            name="empty_instruction",
            control=controls.empty_instruction,
            effect=score_drop,
            what="No instruction: nothing was asked, so success is less sure, by this much.",
            mark=_at_least(0.1),
        ),
    ]


# --- effects --------------------------------------------------------------------------------------------------


def final_rows(signal: RewardSignal) -> np.ndarray:
    """Success probability of every frame, progress where the judge gives none."""
    return signal.progress if signal.success_prob is None else signal.success_prob


def progress_drop(original: RewardSignal, changed: RewardSignal) -> float:
    """How much lower progress ends."""
    return float(original.progress[-1] - changed.progress[-1])


def score_drop(original: RewardSignal, changed: RewardSignal) -> float:
    """How much lower the final score is."""
    return float(final_rows(original)[-1] - final_rows(changed)[-1])


def score_rise(original: RewardSignal, changed: RewardSignal) -> float:
    """How much higher the final score is."""
    return -score_drop(original, changed)


def score_change(original: RewardSignal, changed: RewardSignal) -> float:
    """How far the final score moves, up or down."""
    return abs(score_drop(original, changed))


def order_drop(original: RewardSignal, changed: RewardSignal) -> float:
    """How much less progress follows the order of showing; NaN where one of the correlations is undefined."""
    return metrics.voc(original.progress).value - metrics.voc(changed.progress).value


def climb_of(share: float) -> Effect:
    """Progress or score at the end minus where the picture stops moving (after `share` of it), the larger of both."""

    def climb(original: RewardSignal, changed: RewardSignal) -> float:
        still = max(1, round(share * len(changed.progress))) - 1
        return float(max(row[-1] - row[still] for row in (changed.progress, final_rows(changed))))

    return climb
