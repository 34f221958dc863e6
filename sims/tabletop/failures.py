"""What may go wrong in a demonstration, drawn once an episode.

Imperfections (hesitation, detour, undo, regrasp) cost time and usually end in success: they give a judge stagnant and
regressive stretches, and an improver something to remove. Failures (drop, miss, wrong_object, wrong_goal, stop_short)
go unnoticed by the actor and usually end in failure.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from robo_rl.errors import ConfigError

IMPERFECTIONS = ("hesitation", "detour", "undo", "regrasp")
FAILURES = ("drop", "miss", "wrong_object", "wrong_goal", "stop_short")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImperfectionConfig:
    """Probability of each in an episode. The four imperfections are independent; at most one failure is drawn."""

    hesitation: float = 0.0  # stands still for several steps, one to three times, in any phase
    detour: float = 0.0  # goes to another object first
    undo: float = 0.0  # puts the cube down again or goes back with it, then tries again
    regrasp: float = 0.0  # closes beside the cube, notices, tries again
    drop: float = 0.0  # lets go on the way (a push, which holds nothing, stops short instead)
    miss: float = 0.0  # closes beside the cube, or pushes beside it
    wrong_object: float = 0.0  # does the task with another cube
    wrong_goal: float = 0.0  # takes the right cube somewhere else
    stop_short: float = 0.0  # stands still on the way, for good

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"imperfections.{item.name} must be a probability in [0, 1], got {value}")
        total = sum(getattr(self, name) for name in FAILURES)
        if total > 1.0 + 1e-9:
            raise ConfigError(
                f"imperfections: the failures' probabilities add up to {total:.3g}; at most 1 can be drawn"
            )


@dataclass(frozen=True, slots=True)
class Script:
    """What will go wrong in one episode, and how."""

    planned: frozenset[str]
    pauses: tuple[tuple[int, int], ...]  # (step at which a pause may begin, its length)
    fraction: float  # share of the way to the goal at which undo, drop or stop_short happens
    side: float  # -1 or +1: the side on which a grasp or a push misses
    puts_down: bool  # an undo puts the cube down (else goes back with it)
    choice: float  # in [0, 1): picks the other object or goal

    def has(self, name: str) -> bool:
        return name in self.planned

    @property
    def blind(self) -> bool:
        """Whether a failure is planned: the actor then does not notice what goes wrong."""
        return any(name in self.planned for name in FAILURES)


def draw_script(config: ImperfectionConfig, rng: np.random.Generator) -> Script:
    """Draw one episode's script. Takes the same number of draws whatever the rates are."""
    lots = rng.uniform(size=len(IMPERFECTIONS) + 1)
    planned = {name for name, lot in zip(IMPERFECTIONS, lots, strict=False) if lot < getattr(config, name)}
    bounds = np.cumsum([getattr(config, name) for name in FAILURES])
    failure = int(np.searchsorted(bounds, lots[-1], side="right"))
    if failure < len(FAILURES):
        planned.add(FAILURES[failure])
    number = int(rng.integers(1, 4))
    starts, lengths = np.sort(rng.integers(1, 26, size=3)), rng.integers(3, 9, size=3)
    pauses = tuple((int(a), int(b)) for a, b in zip(starts[:number], lengths[:number], strict=True))
    return Script(
        planned=frozenset(planned),
        pauses=pauses if "hesitation" in planned else (),
        fraction=float(rng.uniform(0.25, 0.7)),
        side=float(rng.choice((-1.0, 1.0))),
        puts_down=bool(rng.integers(2)),
        choice=float(rng.uniform()),
    )


NOTHING = draw_script(ImperfectionConfig(), np.random.default_rng(0))
