"""A scripted expert that sees the simulator's state, and the mistakes it can be told to make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from robo_rl.errors import ConfigError
from robo_rl.types import Controller, Observation, World
from sims.tabletop.failures import ImperfectionConfig, Script, draw_script
from sims.tabletop.movements import Manner, Movement, start_movement
from sims.tabletop.world import TabletopWorld


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertConfig:
    """Calling it builds the expert, so it serves as the rollout's `make_actor`.

    `imperfections` may be given as a mapping of rates. Raises ConfigError.
    """

    speed: float = 1.0  # longest command of a step, in (0, 1]
    jitter: float = 1.0  # how much speed, heights and places vary between episodes, in [0, 2]; 0: not at all
    imperfections: ImperfectionConfig = field(default_factory=ImperfectionConfig)

    def __post_init__(self) -> None:
        if isinstance(self.imperfections, Mapping):
            try:
                rates = ImperfectionConfig(**self.imperfections)
            except TypeError as error:
                known = ", ".join(ImperfectionConfig.__dataclass_fields__)
                raise ConfigError(f"expert.imperfections: {error}; rates are: {known}") from None
            object.__setattr__(self, "imperfections", rates)
        if not 0.1 <= self.speed <= 1.0:
            raise ConfigError(f"expert.speed must be between 0.1 and 1, got {self.speed}")
        if not 0.0 <= self.jitter <= 2.0:
            raise ConfigError(f"expert.jitter must be between 0 and 2, got {self.jitter}")

    def __call__(self) -> ScriptedExpert:
        return ScriptedExpert(self)


class _Episode:
    """One world and what is done in it."""

    def __init__(self, world: TabletopWorld, script: Script, manner: Manner) -> None:
        self.world = world
        self.script = script
        self.movement: Movement = start_movement(world, script, manner)
        self._speed = manner.speed
        self._step = 0
        self._pauses = list(script.pauses)
        self._still = 0  # steps for which a pause still lasts
        self._gripper = 1.0

    def act(self) -> np.ndarray:
        """float32 (4,): the next action."""
        self._step += 1
        if self._pauses and self._step >= self._pauses[0][0]:
            self._still = self._pauses.pop(0)[1]
            self.movement.happened.add("hesitation")
        if self._still > 0:
            self._still -= 1
            return np.array([0.0, 0.0, 0.0, self._gripper], dtype=np.float32)
        moment = self.world.moment()
        target, self._gripper = self.movement.next(moment)
        move = (target - moment.gripper) / self.world.config.step_m
        length = float(np.linalg.norm(move))
        if length > self._speed:
            move *= self._speed / length
        return np.array([*move, self._gripper], dtype=np.float32)


class ScriptedExpert:
    """Drives tabletop worlds to success from their privileged state, one action at a time.

    The actions are clean: disturbing them is the rollout's business. Everything that varies between episodes comes
    from the generators given to `begin`.
    """

    policy_id = "scripted-expert"
    controller = Controller.SCRIPT
    needs_images = False

    def __init__(self, config: ExpertConfig | None = None) -> None:
        self.config = config or ExpertConfig()
        self._episodes: list[_Episode] = []

    def begin(self, worlds: Sequence[World], rngs: Sequence[np.random.Generator]) -> None:
        """Draw what each episode will be like. Raises ConfigError for a world that is not a tabletop."""
        self._episodes = []
        for world, rng in zip(worlds, rngs, strict=True):
            if not isinstance(world, TabletopWorld):
                raise ConfigError(f"the tabletop's scripted expert cannot drive a {type(world).__name__}")
            script = draw_script(self.config.imperfections, rng)
            manner = Manner.draw(self.config.speed, self.config.jitter, rng)
            self._episodes.append(_Episode(world, script, manner))

    def act(self, slots: Sequence[int], observations: Sequence[Observation]) -> np.ndarray:
        """float32 (len(slots), 1, 4)."""
        return np.stack([self._episodes[slot].act() for slot in slots])[:, None]

    def note(self, slot: int) -> str:
        """What went wrong on purpose, e.g. "hesitation,undo"; only what has happened by now."""
        return ",".join(sorted(self._episodes[slot].movement.happened))
