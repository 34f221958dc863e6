"""What a tabletop world holds and which tasks it plays. Free of MuJoCo, so that it can be read and sent anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from robo_rl.errors import ConfigError

if TYPE_CHECKING:
    from sims.tabletop.world import TabletopWorld

FAMILIES = ("bowl", "pad", "push", "stack")
CAMERAS = ("front", "wrist")
CUBE_COLOURS = ("red", "green", "blue", "orange")
PAD_COLOURS = ("yellow", "purple")


@dataclass(frozen=True, kw_only=True, slots=True)
class TabletopConfig:
    """Calling it builds the world, so it serves as the rollout's `make_world`.

    The scene holds the first `num_cubes` of `colours`, the first `num_pads` of `pad_colours` and `num_bowls` bowls,
    whatever the task. Episode `index` plays family `tasks[index % len(tasks)]`. Raises ConfigError.
    """

    tasks: tuple[str, ...] = FAMILIES
    colours: tuple[str, ...] = ("red", "green", "blue")
    num_cubes: int = 3
    pad_colours: tuple[str, ...] = PAD_COLOURS
    num_pads: int = 2
    num_bowls: int = 1
    paraphrases: bool = True  # False: one fixed wording a family
    size: int = 64  # frames are uint8 (size, size, 3)
    cameras: tuple[str, ...] = CAMERAS
    horizon: int = 80  # control steps of 0.1 s
    success_hold: int = 3  # control steps for which the task's criterion must hold in a row
    spread: float = 1.0  # share of the table over which objects are laid out; smaller is easier
    step_m: float = 0.045  # metres a full action moves the gripper's target in one control step

    def __post_init__(self) -> None:
        self._check_names("tasks", self.tasks, FAMILIES)
        self._check_names("colours", self.colours, CUBE_COLOURS)
        self._check_names("pad_colours", self.pad_colours, PAD_COLOURS, may_be_empty=True)
        self._check_names("cameras", self.cameras, CAMERAS, may_be_empty=True)
        for name, lowest, highest in (
            ("num_cubes", 1, len(self.colours)),
            ("num_pads", 0, len(self.pad_colours)),
            ("num_bowls", 0, 1),
            ("size", 8, 1024),
            ("horizon", 1, 100_000),
            ("success_hold", 1, self.horizon),
        ):
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise ConfigError(f"tabletop.{name} must be between {lowest} and {highest}, got {value}")
        if not 0.5 <= self.spread <= 1.0:
            raise ConfigError(f"tabletop.spread must be between 0.5 and 1, got {self.spread}")
        if not 0.005 <= self.step_m <= 0.06:
            raise ConfigError(f"tabletop.step_m must be between 0.005 and 0.06 m, got {self.step_m}")
        for family, number, needed in (("bowl", "num_bowls", 1), ("pad", "num_pads", 1), ("stack", "num_cubes", 2)):
            if family in self.tasks and getattr(self, number) < needed:
                raise ConfigError(f"tabletop: task {family!r} needs {number} of at least {needed}")

    def _check_names(
        self, key: str, names: tuple[str, ...], known: tuple[str, ...], may_be_empty: bool = False
    ) -> None:
        for name in names:
            if name not in known:
                raise ConfigError(f"tabletop.{key}: {name!r} is not known; there are: {', '.join(known)}")
        if len(set(names)) != len(names):
            raise ConfigError(f"tabletop.{key}: {', '.join(names)}: every name may stand once")
        if not names and not may_be_empty:
            raise ConfigError(f"tabletop.{key} is empty; name at least one of: {', '.join(known)}")

    @property
    def cubes(self) -> tuple[str, ...]:
        """Names of the cubes: "red cube" and so on."""
        return tuple(f"{colour} cube" for colour in self.colours[: self.num_cubes])

    @property
    def pads(self) -> tuple[str, ...]:
        """Names of the pads: "yellow pad" and so on."""
        return tuple(f"{colour} pad" for colour in self.pad_colours[: self.num_pads])

    @property
    def bowls(self) -> tuple[str, ...]:
        return ("bowl",) * self.num_bowls

    def __call__(self) -> TabletopWorld:
        from sims.tabletop.world import TabletopWorld

        return TabletopWorld(self)
