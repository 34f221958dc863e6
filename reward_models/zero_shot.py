"""What judges have in common that ask a vision-language model without training it.

Such a judge looks at some frames of an episode, its anchors; progress between them is interpolated. An answer that is
missing is an abstention: the frame repeats the nearest answered one and is marked, it never counts as 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from reward_models.hub import Source
from reward_models.judge_folder import digest, read_facts, require_same, write_folder
from reward_models.maps import require_cameras
from reward_models.prompting import Asker, Content
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.options import configured
from robo_rl.types import RewardSignal, Trajectory

# what changes where and how fast a judge runs, not what it says; the model's revision stands for its path
NOT_DECIDING = ("path", "revision", "device", "attention", "batch_size")


@dataclass(frozen=True, kw_only=True)
class AskedConfig:
    """Which model is asked, what it is shown, how its answer is read. Raises ConfigError."""

    path: str  # hub id or folder of an image-text model
    revision: str = ""
    dtype: str = "fp32"  # fp32 | bf16 | fp16
    attention: str = "sdpa"  # eager | sdpa
    device: str = "cpu"
    name: str = "asked"
    cameras: tuple[str, ...] = ()  # shown together for every frame; empty: the episode's first camera
    image_size: int = 0  # frames are resized to this square before the model's own preprocessing; 0: not
    readout: str = "logits"  # logits: probabilities of given answers | text: what the model writes, parsed
    min_mass: float = 0.0  # logits: where the given answers hold less probability than this together, it abstains
    max_tokens: int = 0  # text: most tokens of an answer; 0: enough
    batch_size: int = 8  # prompts that go through the model together

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name:
            raise ConfigError(f"judge.name must be a word without '@', got {self.name!r}")
        if self.readout not in ("logits", "text"):
            raise ConfigError(f"judge.readout must be logits or text, got {self.readout!r}")
        if not 0.0 <= self.min_mass <= 1.0:
            raise ConfigError(f"judge.min_mass must lie in [0, 1], got {self.min_mass}")
        if self.image_size < 0 or self.max_tokens < 0 or self.batch_size < 1:
            raise ConfigError("judge: image_size and max_tokens must not be negative, batch_size at least 1")
        if isinstance(self.cameras, str):
            raise ConfigError(f"judge.cameras must be a list, got {self.cameras!r}")
        self.source()

    def source(self) -> Source:
        return Source(
            path=self.path, revision=self.revision, dtype=self.dtype, attention=self.attention, device=self.device
        )


class AskedJudge:
    """A `Judge` without parameters of its own; subclasses say what is asked."""

    TYPE: ClassVar[str]
    CONFIG: ClassVar[type[AskedConfig]]

    def __init__(self, config: Any, asker: Asker | None = None) -> None:
        self.config = config
        self.asker = asker or Asker(config.source(), image_size=config.image_size, batch_size=config.batch_size)
        self.check()

    def check(self) -> None:
        """Raises ConfigError where the model cannot be asked this way."""

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> Self:
        """A judge as a YAML file describes it. Raises ConfigError."""
        return cls(configured(cls.CONFIG, options, f"judge.{cls.TYPE}"))

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of the model's own and of every option that decides the scores."""
        return f"{self.config.name}@{digest(self.config, NOT_DECIDING, self.TYPE, self.asker.revision)}"

    def provenance(self) -> dict[str, str]:
        """Model, revision, prompt, sampling of frames: every option as text."""
        facts = {key: str(value) for key, value in dataclasses.asdict(self.config).items() if key != "name"}
        facts["cameras"] = ",".join(self.config.cameras)
        return {"type": self.TYPE, **facts, "revision": self.asker.revision}

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order. Raises RewardError naming an episode without any answer."""
        raise NotImplementedError

    def save(self, folder: Path | str) -> None:
        """Write `config.json`; the model stays where it is, its path and revision are kept."""
        facts = {"type": self.TYPE, "model_id": self.model_id, "revision": self.asker.revision}
        write_folder(folder, facts | {"config": dataclasses.asdict(self.config)})

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Open a judge. Raises DataError for a damaged folder, ConfigError when its model is gone."""
        facts = read_facts(folder, cls.TYPE)
        try:
            judge = cls.from_config(facts["config"])
        except (KeyError, AttributeError) as error:
            raise DataError(f"{folder}: damaged judge, {error} is missing from config.json") from None
        require_same(folder, facts, revision=judge.asker.revision, model_id=judge.model_id)
        return judge

    # --- frames ------------------------------------------------------------------------------------------------

    def cameras(self, episode: Trajectory) -> tuple[str, ...]:
        """The cameras that are shown. Raises DataError where the episode lacks one."""
        chosen = tuple(self.config.cameras) or tuple(episode.images)[:1]
        if not chosen:
            raise DataError(f"episode {episode.episode_id!r}: it has no camera to look through")
        require_cameras(episode, chosen)
        return chosen

    def shown(self, episode: Trajectory, frame: int) -> list[str | np.ndarray]:
        """One frame as parts of a prompt; several cameras by their names."""
        cameras = self.cameras(episode)
        if len(cameras) == 1:
            return [np.asarray(episode.images[cameras[0]][frame])]
        return [part for camera in cameras for part in (f" {camera}: ", np.asarray(episode.images[camera][frame]))]

    def signal(self, episode: Trajectory, spread: Spread, extra: Mapping[str, np.ndarray]) -> RewardSignal:
        """The opinion of an episode from what was read at its anchors."""
        columns = {name: spread.at_anchors(values) for name, values in extra.items()}
        return RewardSignal(
            episode_id=episode.episode_id,
            model_id=self.model_id,
            progress=spread.progress,
            success_prob=spread.columns.get("success_prob"),
            uncertainty=spread.columns.get("uncertainty"),
            abstained=spread.abstained,
            extra=columns,
        )


def anchor_frames(steps: int, count: int) -> np.ndarray:
    """At most `count` frames spread over 0, ..., `steps`, both ends among them; only the end if `count` is 1."""
    if count == 1:
        return np.array([steps])
    return np.unique(np.round(np.linspace(0, steps, count)).astype(np.int64))


class Spread:
    """Answers at anchors as values of all T + 1 frames."""

    def __init__(
        self,
        episode: Trajectory,
        anchors: np.ndarray,
        progress: np.ndarray,
        *,
        first_is_given: bool = False,
        **more: np.ndarray,
    ) -> None:
        """`progress` and `more` float (anchors,), NaN in `progress` where there is no answer.

        `first_is_given`: the first anchor's value was told to the model, not asked; no other frame repeats it.
        Raises RewardError naming the episode when there is no answer at all.
        """
        self.length, self.anchors = len(episode) + 1, anchors
        answered = np.isfinite(progress)
        place = np.flatnonzero(answered)[int(first_is_given) :]
        if not len(place):
            asked = len(anchors) - first_is_given
            raise RewardError(
                f"episode {episode.episode_id!r}: the model answered none of {asked} questions; read its logits "
                "(readout: logits), ask differently (prompt), or allow longer answers (max_tokens)"
            )
        self.abstained = ~answered[_nearest(np.arange(self.length), anchors)]
        # an anchor without an answer takes that of the nearest with one
        taken = np.where(answered, np.arange(len(anchors)), place[_nearest(anchors, anchors[place])])
        self.progress = self._everywhere(progress[taken])
        self.columns = {name: self._everywhere(values[taken]) for name, values in more.items()}

    def _everywhere(self, values: np.ndarray) -> np.ndarray:
        return np.interp(np.arange(self.length), self.anchors, values).astype(np.float32)

    def at_anchors(self, values: np.ndarray) -> np.ndarray:
        """(anchors,) -> float32 (T+1,), NaN between."""
        column = np.full(self.length, np.nan, np.float32)
        column[self.anchors] = values
        return column


def _nearest(frames: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Number of the anchor nearest to each frame; the earlier of two."""
    return np.searchsorted((anchors[1:] + anchors[:-1]) / 2, frames, side="left")


def joined(*parts: str | Content) -> list[str | np.ndarray]:
    """Parts of a prompt in one list."""
    return [item for part in parts for item in ([part] if isinstance(part, str) else part)]
