"""Several judges as one: their mean, their worst word, or a lower confidence bound [O].

For progress and success_prob, at every frame over the members:
- `mean`: the mean;
- `worst`: the least, a pessimist that is hard to please by one member's mistake;
- `lcb`: mean - k deviations between members, at least 0.
tri_state is the mean of probabilities. uncertainty is the standard deviation of the members' progress, their
disagreement; what they say of their own uncertainty is kept apart, as root mean square, in `extra["own_uncertainty"]`.
`extra["progress_1"]`, ... are the members' own, in order.

Who takes part: a head (success_prob, tri_state, own uncertainty) that some members lack is that of the members that
have it, and is absent when none has it. At a frame where a member abstains it is left out; where all abstain, their
repeated values are combined and the ensemble abstains, too. A frame of one member's word alone has disagreement 0.

Members are judges in folders or descriptions (YAML); the ensemble keeps where they are, relative to its own folder,
and their model_ids: a member that has changed is noticed when it is loaded. A member that lies nowhere is saved inside.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reward_models.judge_folder import CONFIG, read_facts
from reward_models.registry import load_judge
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.options import configured
from robo_rl.types import RewardSignal, Trajectory

READOUTS = ("mean", "worst", "lcb")


@dataclass(frozen=True, kw_only=True)
class EnsembleConfig:
    """How members are combined. Raises ConfigError."""

    name: str = "ensemble"
    readout: str = "mean"  # mean | worst | lcb
    k: float = 1.0  # lcb: deviations below the mean

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name:
            raise ConfigError(f"judge.name must be a word without '@', got {self.name!r}")
        if self.readout not in READOUTS:
            raise ConfigError(f"judge.readout must be one of {', '.join(READOUTS)}, got {self.readout!r}")
        if self.k < 0:
            raise ConfigError(f"judge.k must not be negative, got {self.k}")


class EnsembleJudge:
    """A `Judge` made of judges."""

    def __init__(
        self, members: Sequence[Any], config: EnsembleConfig | None = None, *, paths: Sequence[Path | None] = ()
    ) -> None:
        """`paths`: where each member lies, None for one that lies nowhere."""
        if not members:
            raise ConfigError("judge.members: an ensemble needs at least one judge")
        self.members, self.config = list(members), config or EnsembleConfig()
        self.paths = list(paths) or [None] * len(self.members)

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> EnsembleJudge:
        """`members`: folders or YAML files, relative to where the command runs. Raises ConfigError or DataError."""
        members = options.get("members")
        if not isinstance(members, (list, tuple)) or not members:
            raise ConfigError("judge.members: list the folders or YAML files of the judges to combine")
        paths = [Path(str(member)) for member in members]
        rest = {key: value for key, value in options.items() if key != "members"}
        config = configured(EnsembleConfig, rest, "judge.ensemble")
        return cls([load_judge(path) for path in paths], config, paths=paths)

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of the members' model_ids in order and of how they are combined."""
        facts = json.dumps([asdict(self.config), [member.model_id for member in self.members]], sort_keys=True)
        return f"{self.config.name}@{hashlib.sha256(facts.encode()).hexdigest()[:10]}"

    def provenance(self) -> dict[str, str]:
        """How members are combined, and each member's own provenance under its number."""
        facts = {"type": "ensemble", "readout": self.config.readout, "k": str(self.config.k)}
        for number, member in enumerate(self.members, start=1):
            facts[f"member_{number}"] = member.model_id
            own = member.provenance() if hasattr(member, "provenance") else {}
            facts |= {f"member_{number}_{key}": value for key, value in own.items()}
        return facts

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order. Raises RewardError when a member gives none."""
        model_id = self.model_id
        said = [self._asked(member, trajectories) for member in self.members]
        return [self._combined([signals[n] for signals in said], model_id) for n in range(len(trajectories))]

    def _asked(self, member: Any, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        signals = list(member.score(trajectories))
        if len(signals) != len(trajectories):
            raise RewardError(f"{member.model_id}: {len(trajectories)} episodes, but {len(signals)} opinions")
        for number, signal in enumerate(signals):
            episode = trajectories[number]
            if signal.episode_id != episode.episode_id or len(signal.progress) != len(episode) + 1:
                raise RewardError(
                    f"{member.model_id}: episode {episode.episode_id!r} has {len(episode) + 1} observations, but the "
                    f"opinion is about {len(signal.progress)} of {signal.episode_id!r}"
                )
        return signals

    def _combined(self, signals: Sequence[RewardSignal], model_id: str) -> RewardSignal:
        progress = np.stack([signal.progress for signal in signals]).astype(np.float64)
        speaks = np.stack([_answers(signal) for signal in signals])
        silent = np.logical_not(speaks.any(0))
        extra = {f"progress_{n}": signal.progress.astype(np.float32) for n, signal in enumerate(signals, start=1)}
        own = self._part(signals, "uncertainty")
        if own is not None:
            extra["own_uncertainty"] = np.sqrt(_mean(own[0] ** 2, own[1])).astype(np.float32)
        success, direction = self._part(signals, "success_prob"), self._part(signals, "tri_state")
        return RewardSignal(
            episode_id=signals[0].episode_id,
            model_id=model_id,
            progress=self._readout(progress, speaks),
            success_prob=None if success is None else self._readout(*success),
            tri_state=None if direction is None else _steps(*direction),
            uncertainty=_deviation(progress, _someone(speaks)).astype(np.float32),
            abstained=silent,
            extra=extra,
        )

    def _part(self, signals: Sequence[RewardSignal], head: str) -> tuple[np.ndarray, np.ndarray] | None:
        """A head of those members that have it, (members, ...), and where they speak, bool (members, T+1)."""
        having = [signal for signal in signals if getattr(signal, head) is not None]
        if not having:
            return None
        values = np.stack([getattr(signal, head) for signal in having]).astype(np.float64)
        return values, np.stack([_answers(signal) for signal in having])

    def _readout(self, values: np.ndarray, speaks: np.ndarray) -> np.ndarray:
        """(members, T+1) -> float32 (T+1,)."""
        there = _someone(speaks)
        if self.config.readout == "worst":
            return np.where(there, values, np.inf).min(0).astype(np.float32)
        found = _mean(values, there)
        if self.config.readout == "lcb":
            found = np.maximum(found - self.config.k * _deviation(values, there), np.minimum(found, 0.0))
        return found.astype(np.float32)

    # --- storage ---------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write `config.json`, and members that lie nowhere under `members/`; the old folder or the new, never half."""
        folder = Path(folder).absolute()
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        entries = []
        for number, (member, path) in enumerate(zip(self.members, self.paths, strict=True), start=1):
            place = f"members/{number}"
            if path is None or _inside(path, folder):  # what lies in the old folder would go with it
                member.save(temporary / place)
            else:
                place = os.path.relpath(path.absolute(), folder)
            entries.append({"path": place, "model_id": member.model_id})
        facts = {"type": "ensemble", "model_id": self.model_id, "config": asdict(self.config), "members": entries}
        (temporary / CONFIG).write_text(json.dumps(facts, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)

    @classmethod
    def load(cls, folder: Path | str) -> EnsembleJudge:
        """Open an ensemble. Raises DataError for a damaged folder, and for a member that is gone or has changed."""
        folder = Path(folder)
        facts = read_facts(folder, "ensemble")
        try:
            config = configured(EnsembleConfig, facts["config"], f"{folder}: config")
            entries = [(Path(entry["path"]), str(entry["model_id"])) for entry in facts["members"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{folder}: damaged judge: {' '.join(str(error).split())}") from None
        members, paths = [], []
        for place, model_id in entries:
            path = place if place.is_absolute() else Path(os.path.normpath(folder.absolute() / place))
            member = load_judge(path)
            if member.model_id != model_id:
                raise DataError(f"{folder}: its member {path} was {model_id} and is {member.model_id} now")
            members.append(member)
            paths.append(path)
        judge = cls(members, config, paths=paths)
        if judge.model_id != facts.get("model_id"):
            raise DataError(f"{folder}: this is {judge.model_id}, not {facts.get('model_id')}; {CONFIG} was changed")
        return judge


def _inside(path: Path, folder: Path) -> bool:
    return path.absolute().resolve().is_relative_to(folder.resolve())


def _answers(signal: RewardSignal) -> np.ndarray:
    return np.ones(len(signal.progress), bool) if signal.abstained is None else ~signal.abstained


def _someone(speaks: np.ndarray) -> np.ndarray:
    """bool (members, frames): all of them where none speaks."""
    return speaks | ~speaks.any(0)


def _mean(values: np.ndarray, speaks: np.ndarray) -> np.ndarray:
    there = _someone(speaks)
    return (values * there).sum(0) / there.sum(0)


def _deviation(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    return np.sqrt(_mean((values - _mean(values, there)) ** 2, there))


def _steps(values: np.ndarray, speaks: np.ndarray) -> np.ndarray:
    """tri_state (members, T, 3): a step belongs to members that speak at both of its frames, or else to all."""
    there = _someone(speaks[:, :-1] & speaks[:, 1:])[..., None]
    return ((values * there).sum(0) / there.sum(0)).astype(np.float32)
