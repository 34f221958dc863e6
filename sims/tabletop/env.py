"""The tabletop as a gymnasium environment."""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from robo_rl.errors import ConfigError
from sims.tabletop.arm import JOINTS
from sims.tabletop.config import TabletopConfig
from sims.tabletop.world import CONTROL_HZ, TabletopWorld

_SEEDS = 2**31 - 1


class TabletopEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """`TabletopWorld` behind `reset` and `step`; keyword arguments are those of `TabletopConfig`.

    Observation: a dict of uint8 (size, size, 3) for each camera and "state" float32 (11,), proprioception. Action
    float32 (4,) in [-1, 1]. Reward 1 at success, else 0. `info` has "is_success", "instruction", "task", "seed" and
    "index". `reset(seed=s)` starts at initial state 0 of seed s and later resets go on to 1, 2, ...;
    `reset(seed=s, options={"index": i})` starts at state i.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(CONTROL_HZ)}  # noqa: RUF012  gymnasium's own name

    def __init__(self, render_mode: str | None = None, **options: Any) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"tabletop: render_mode {render_mode!r} is not known; it is 'rgb_array' or None")
        try:
            config = TabletopConfig(**options)
        except TypeError as error:
            known = ", ".join(TabletopConfig.__dataclass_fields__)
            raise ConfigError(f"tabletop: {error}; options are: {known}") from None
        self.render_mode = render_mode
        self.world = TabletopWorld(config)
        self.action_space = spaces.Box(-1.0, 1.0, (self.world.action_dim,), np.float32)
        self.observation_space = cast(spaces.Space[dict[str, np.ndarray]], spaces.Dict(self._spaces(config)))
        self._seed: int | None = None
        self._index = 0

    @staticmethod
    def _spaces(config: TabletopConfig) -> dict[str, spaces.Space[Any]]:
        high = np.array([1.0, 1.0, 1.0, 1.0, *[4.0] * JOINTS], dtype=np.float32)
        low = np.array([-1.0, -1.0, -1.0, 0.0, *[-4.0] * JOINTS], dtype=np.float32)
        frame = (config.size, config.size, 3)
        cameras: dict[str, spaces.Space[Any]] = {name: spaces.Box(0, 255, frame, np.uint8) for name in config.cameras}
        return cameras | {"state": spaces.Box(low, high, dtype=np.float32)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Begin the next episode. Without a seed ever given, one is drawn."""
        super().reset(seed=seed)
        if seed is not None or self._seed is None:
            self._seed = seed if seed is not None else int(self.np_random.integers(_SEEDS))
            self._index = 0
        else:
            self._index += 1
        self._index = int((options or {}).get("index", self._index))
        self.world.begin(self._seed, self._index)
        return self._observation(), self._info(success=False)

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """One control step of 0.1 s. Raises SafetyError on NaN or a wrong shape."""
        result = self.world.advance(action)
        info = self._info(success=result.success)
        return self._observation(), result.reward, result.terminated, result.truncated, info

    def render(self) -> np.ndarray | None:
        """uint8 (256, 256, 3) from the front camera."""
        return self.world.draw("front", 256) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.world.close()

    def _observation(self) -> dict[str, np.ndarray]:
        seen = self.world.observe()
        return {**seen.images, "state": seen.state}

    def _info(self, success: bool) -> dict[str, Any]:
        world = self.world
        return {
            "is_success": success,
            "instruction": world.instruction,
            "task": world.task,
            "seed": self._seed,
            "index": self._index,
        }
