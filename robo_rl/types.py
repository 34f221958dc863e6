"""What the rooms hand to each other: experience, judgement, and who acts. Numpy only.

Arrays are validated when an object is built; nothing downstream checks them again.
T is the number of actions; a trajectory has T + 1 observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np

from robo_rl.errors import DataError


class Controller(IntEnum):
    """Who was in control of a step."""

    POLICY = 0
    HUMAN = 1
    SCRIPT = 2  # a scripted expert: demonstrations in simulation
    PAUSED = 3


class Outcome(StrEnum):
    """How an episode ended. Decided by the simulator or the operator, never by a judge."""

    SUCCESS = "success"
    FAILURE = "failure"  # truly ended and cannot succeed any more
    TIMEOUT = "timeout"  # the horizon ran out; the state itself may still be good
    ABORT = "abort"  # hardware fault, operator stopped: no label may be taken from it
    UNKNOWN = "unknown"

    @property
    def label(self) -> float | None:
        """1 for success, 0 for failure and timeout, None where no label may be taken."""
        return {"success": 1.0, "failure": 0.0, "timeout": 0.0}.get(self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What a policy sees at one moment."""

    images: Mapping[str, np.ndarray]  # camera -> uint8 (H, W, 3), RGB, row 0 at the top
    state: np.ndarray  # float32 (S,), proprioception
    instruction: str


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DataError(message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """What happened in one episode. Frozen; a judge's opinion is kept apart (`RewardSignal`)."""

    episode_id: str
    instruction: str
    images: Mapping[str, np.ndarray]  # camera -> uint8 (T+1, H, W, 3), RGB; may be a memory map
    state: np.ndarray  # float32 (T+1, S), proprioception
    actions: np.ndarray  # float32 (T, A), the command that a learner should imitate
    controller: np.ndarray  # int8 (T,), a `Controller` for every step
    outcome: Outcome
    fps: float  # control steps per second
    task: str = ""  # a short name of the task, for grouping results; the policy never sees it
    policy_id: str = ""  # who acted: "scripted-expert", or a checkpoint's name
    seed: int = 0  # with `index`, decides the initial state
    index: int = 0
    reward: np.ndarray | None = None  # float32 (T,), the simulator's own, if it has one
    true_progress: np.ndarray | None = None  # float32 (T+1,) in [0, 1]: only to evaluate judges
    note: str = ""  # free text: an injected failure, an operator's remark

    def __post_init__(self) -> None:
        where = f"episode {self.episode_id!r}"
        _require(bool(self.episode_id), "a trajectory needs an episode_id")
        steps = len(self.actions)
        _require(steps >= 1, f"{where}: no actions; a trajectory has at least one")
        _require(self.actions.ndim == 2, f"{where}: actions must be (T, A), got {self.actions.shape}")
        _require(
            self.state.ndim == 2 and len(self.state) == steps + 1,
            f"{where}: {steps} actions but state is {self.state.shape}; "
            "a trajectory has one more observation than actions",
        )
        for camera, frames in self.images.items():
            _require(
                frames.dtype == np.uint8 and frames.ndim == 4 and frames.shape[3] == 3,
                f"{where}: camera {camera!r} must be uint8 (T+1, H, W, 3), got {frames.dtype} {frames.shape}",
            )
            _require(
                len(frames) == steps + 1,
                f"{where}: {steps} actions but {len(frames)} frames of camera {camera!r}; "
                "a trajectory has one more observation than actions",
            )
        for name, array in (("state", self.state), ("actions", self.actions)):
            _require(array.dtype == np.float32, f"{where}: {name} must be float32, got {array.dtype}")
            bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
            _require(len(bad) == 0, f"{where}: {name} is not finite at frame {bad[0] if len(bad) else ''}")
        _require(
            self.controller.shape == (steps,),
            f"{where}: controller must be ({steps},), got {self.controller.shape}",
        )
        _require(self.fps > 0, f"{where}: fps must be positive, got {self.fps}")
        for label, values, length in (("reward", self.reward, steps), ("true_progress", self.true_progress, steps + 1)):
            _require(
                values is None or values.shape == (length,),
                f"{where}: {label} must be ({length},), got {None if values is None else values.shape}",
            )

    def __len__(self) -> int:
        """Number of actions T."""
        return len(self.actions)

    @property
    def success(self) -> bool:
        return self.outcome is Outcome.SUCCESS

    @property
    def terminated(self) -> bool:
        """The episode truly ended (success or failure); a timeout is truncation."""
        return self.outcome in (Outcome.SUCCESS, Outcome.FAILURE)


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardSignal:
    """A judge's opinion of one trajectory."""

    episode_id: str
    model_id: str  # name@revision: which judge said it
    progress: np.ndarray  # float32 (T+1,), 0 = start, 1 = task complete
    success_prob: np.ndarray | None = None  # float32 (T+1,), None when the judge has no success head
    tri_state: np.ndarray | None = None  # float32 (T, 3): p(progressive), p(stagnant), p(regressive) of each step
    uncertainty: np.ndarray | None = None  # float32 (T+1,)
    abstained: np.ndarray | None = None  # bool (T+1,): no answer for this frame; its progress repeats a neighbour's
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)  # float32 (T+1,) each, NaN allowed: raw log-probs ...

    def __post_init__(self) -> None:
        where = f"{self.model_id}: episode {self.episode_id!r}"
        length = len(self.progress)
        _require(length >= 2, f"{where}: progress needs at least two frames, got {length}")
        shapes = {
            "progress": (length,),
            "success_prob": (length,),
            "tri_state": (length - 1, 3),
            "uncertainty": (length,),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array is None:
                continue
            _require(array.shape == shape, f"{where}: {name} must be {shape}, got {array.shape}")
            bad = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
            _require(len(bad) == 0, f"{where}: {name} is not finite at frame {bad[0] if len(bad) else ''}")
        columns = dict(self.extra) if self.abstained is None else {"abstained": self.abstained, **self.extra}
        for name, column in columns.items():
            _require(column.shape == (length,), f"{where}: {name} must be {(length,)}, got {column.shape}")


@runtime_checkable
class RewardModel(Protocol):
    """A judge. Batch in, batch out, in order."""

    @property
    def model_id(self) -> str: ...

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one control step did to a world."""

    success: bool  # the task's own criterion holds and has been held long enough
    terminated: bool
    truncated: bool
    reward: float


@runtime_checkable
class World(Protocol):
    """A simulator that steps without rendering. Initial states depend on (seed, index) only."""

    cameras: Sequence[str]
    control_hz: float
    horizon: int  # steps before truncation
    action_dim: int
    state_dim: int
    task: str  # short name of the present task
    instruction: str

    def begin(self, seed: int, index: int) -> None:
        """Reset to initial state `index` of `seed`."""
        ...

    def advance(self, action: np.ndarray) -> StepResult:
        """One control step with float32 (A,) in [-1, 1]; nothing is drawn. Raises SafetyError on NaN."""
        ...

    def observe(self) -> Observation:
        """Draw the cameras and read the proprioception now."""
        ...

    def state(self) -> np.ndarray:
        """Proprioception only, float32 (S,); nothing is drawn."""
        ...

    def true_progress(self) -> float:
        """Ground truth in [0, 1] from the simulator's state; for evaluating judges only."""
        ...

    def close(self) -> None: ...


class Actor(Protocol):
    """Whoever drives worlds: a learned policy, a scripted expert, random actions.

    A group of worlds is stepped together; `slots` says which of them are asked.
    """

    policy_id: str
    controller: Controller
    needs_images: bool

    def begin(self, worlds: Sequence[World], rngs: Sequence[np.random.Generator]) -> None:
        """A new group of episodes starts; `rngs[i]` belongs to the episode in `worlds[i]`."""
        ...

    def act(self, slots: Sequence[int], observations: Sequence[Observation]) -> np.ndarray:
        """float32 (len(slots), k, A): k actions for each world, executed open loop."""
        ...

    def note(self, slot: int) -> str:
        """What to write into the episode's `note` ("" for nothing)."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeResult:
    """One evaluated episode, without its frames."""

    task: str
    index: int
    success: bool
    steps: int
    seconds: float
    extra: Mapping[str, Any] = field(default_factory=dict)
