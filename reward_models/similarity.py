"""Similarity of pictures to what is wanted, in the space of a CLIP or SigLIP: zero-shot, or fine-tuned.

What is wanted is a text or a demonstration:
- text: the cosine of a frame and the instruction. With a `baseline` text, VLM-RM's goal-baseline projection
  (arXiv 2310.12921, equation 3 and its code): R = 1 - |P (s - g)|^2 / 2 with P = alpha d d' / |d|^2 + (1 - alpha) I,
  d = g - b, for unit vectors s of the picture, g of the instruction, b of the baseline. alpha 0 is the cosine.
- demonstration: the cosine of the video so far and a demonstration of the same instruction (RoboCLIP, METHODS 7).

A video's vector is the mean of its frames' vectors, of length 1 again [O]; RoboCLIP uses a video network, S3D.
`window` 1 looks at single frames, w at the last w, 0 at all so far. `when: last` is RoboCLIP's: one value for the
whole video at its last frame, 0 before. Several cameras: the mean of their similarities [O].

progress = scale similarity + shift, clipped to [0, 1]; by default (1 + similarity) / 2 [O]. `calibrate` chooses scale
and shift so that first frames of successes have 0 and last ones 1 in the mean [O]. `extra["similarity"]` is raw.
A cosine with an instruction knows little of time and detail: audit such a judge before training on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reward_models.dual_encoder import DualEncoder, frame_features
from reward_models.hub import Source
from reward_models.judge_folder import digest, read_facts, read_tensors, require_same, write_folder
from robo_rl.data import read_episodes
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.options import configured
from robo_rl.types import RewardSignal, Trajectory

NOT_DECIDING = ("path", "revision", "device", "attention", "batch_size", "demonstrations")
DEMONSTRATION = "demonstration."  # and the number of an instruction


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig:
    """What is compared with what. Raises ConfigError."""

    path: str  # hub id or folder of a CLIP or SigLIP
    revision: str = ""
    dtype: str = "fp32"  # fp32 | bf16 | fp16
    attention: str = "sdpa"  # eager | sdpa | flash_attention_2
    device: str = "cpu"
    name: str = "similarity"
    cameras: tuple[str, ...] = ()  # empty: all of an episode's
    target: str = "text"  # text | demonstration
    prompt: str = "{instruction}"  # the text, e.g. "a robot that has done this: {instruction}"
    baseline: str = ""  # text: how it looks before, e.g. "a robot arm at a table"; "": no projection
    alpha: float = 0.5  # of the projection, 0 none, 1 entirely on the line from baseline to goal
    demonstrations: str = ""  # demonstration: folder of a dataset; read when the judge is made, kept in its folder
    window: int = 1  # frames of a video's vector: 1 single frames, 0 all so far
    when: str = "every"  # every | last
    scale: float = 0.5  # progress = scale * similarity + shift
    shift: float = 0.5
    batch_size: int = 64  # pictures that go through the model together

    def __post_init__(self) -> None:
        for name, choices in (("target", ("text", "demonstration")), ("when", ("every", "last"))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"judge.{name} must be {' or '.join(choices)}, got {getattr(self, name)!r}")
        if not self.name or "@" in self.name:
            raise ConfigError(f"judge.name must be a word without '@', got {self.name!r}")
        if isinstance(self.cameras, str):
            raise ConfigError(f"judge.cameras must be a list, got {self.cameras!r}")
        if self.window < 0 or self.batch_size < 1:
            raise ConfigError(
                f"judge: window must not be negative, batch_size at least 1; got {self.window}, {self.batch_size}"
            )
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(f"judge.alpha must lie in [0, 1], got {self.alpha}")
        if "{instruction}" not in self.prompt:
            raise ConfigError("judge.prompt must contain {instruction}")
        if self.target == "demonstration" and self.baseline:
            raise ConfigError("judge.baseline is a text and goes with target: text")
        self.source()

    def source(self) -> Source:
        return Source(
            path=self.path, revision=self.revision, dtype=self.dtype, attention=self.attention, device=self.device
        )


class SimilarityJudge:
    """A `Judge`: how similar what is seen is to what is wanted."""

    def __init__(self, config: SimilarityConfig) -> None:
        self.config = config
        self.encoder = DualEncoder(config.source())
        self.tuned: dict[str, Any] = {}  # what `fit_similarity` trained: vision_layers, text_layers, lora_rank
        self.demonstrated: dict[str, Tensor] = {}  # instruction -> float32 (cameras, D)

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> SimilarityJudge:
        """A judge as a YAML file describes it. Raises ConfigError or DataError."""
        judge = cls(configured(SimilarityConfig, options, "judge.similarity"))
        if judge.config.target == "demonstration":
            if not judge.config.demonstrations:
                raise ConfigError("judge.demonstrations: name the dataset that shows how the tasks are done")
            judge.demonstrate(read_episodes(Path(judge.config.demonstrations)))
        return judge

    def demonstrate(self, episodes: Sequence[Trajectory]) -> None:
        """Take the mean vector of the demonstrations of each instruction, but of those that are known to have failed.

        Raises DataError when none is left.
        """
        shown = [episode for episode in episodes if episode.outcome.label != 0.0]
        if not shown:
            raise DataError(f"{self.config.name}: all of {len(episodes)} demonstrations failed; one must not have")
        vectors: dict[str, list[np.ndarray]] = {}
        for episode, features in zip(shown, self._features(shown), strict=True):
            vectors.setdefault(episode.instruction, []).append(video_vectors(features, self.config.window)[-1])
        for text, found in vectors.items():
            if len({vector.shape for vector in found}) > 1:
                raise DataError(
                    f"demonstrations of {text!r} have different cameras; name those to use in judge.cameras"
                )
        self.demonstrated = {text: torch.from_numpy(_unit(np.mean(found, 0))) for text, found in vectors.items()}

    def calibrate(self, episodes: Sequence[Trajectory]) -> None:
        """Choose `scale` and `shift` so that progress of successes goes from 0 to 1, in the mean over episodes.

        Raises DataError when there are no successes, or their last frames are no more similar than their first ones.
        """
        successes = [episode for episode in episodes if episode.success]
        if not successes:
            raise DataError(
                f"{self.config.name}: none of {len(episodes)} episodes succeeded; nothing to calibrate with"
            )
        every = dataclasses.replace(self.config, when="every")
        ends = np.array([self._similarity(e, f, every)[[0, -1]] for e, f in self._with_features(successes)])
        first, last = ends.mean(0)
        if last - first < 1e-6:
            raise DataError(
                f"{self.config.name}: last frames of successes are no more similar to what is wanted ({last:.4f}) than "
                f"first ones ({first:.4f}); fine-tune it, or use another model, prompt or camera"
            )
        scale = float(1.0 / (last - first))
        self.config = dataclasses.replace(self.config, scale=scale, shift=float(-first * scale))

    # --- judging ---------------------------------------------------------------------------------------------------

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of the model's own, of options, demonstrations and what was trained."""
        more = (self.encoder.revision, *sorted(self.demonstrated))
        return f"{self.config.name}@{digest(self.config, NOT_DECIDING, *more, tensors=self._tensors())}"

    def provenance(self) -> dict[str, str]:
        """Model, revision, texts, windows, what was trained: every option as text."""
        facts = {key: str(value) for key, value in dataclasses.asdict(self.config).items() if key != "name"}
        facts |= {"type": "similarity", "cameras": ",".join(self.config.cameras), "revision": self.encoder.revision}
        trained = [f"{key} {value}" for key, value in self.tuned.items() if key != "parameters"]
        return facts | {"tuned": ", ".join(trained) or "no"}

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order.

        Raises RewardError for an instruction that nobody demonstrated.
        """
        model_id, signals = self.model_id, []
        for episode, features in self._with_features(trajectories):
            raw = self._similarity(episode, features, self.config)
            mapped = np.clip(self.config.scale * raw + self.config.shift, 0.0, 1.0)
            signals.append(
                RewardSignal(
                    episode_id=episode.episode_id,
                    model_id=model_id,
                    progress=np.nan_to_num(mapped, nan=0.0).astype(np.float32),
                    extra={"similarity": raw.astype(np.float32)},
                )
            )
        return signals

    def _features(self, episodes: Sequence[Trajectory]) -> Any:
        return frame_features(self.encoder, episodes, self.config.cameras, self.config.batch_size)

    def _with_features(self, episodes: Sequence[Trajectory]) -> Any:
        for number, features in enumerate(self._features(episodes)):
            yield episodes[number], features

    def _similarity(self, episode: Trajectory, features: np.ndarray, config: SimilarityConfig) -> np.ndarray:
        """(T+1,), NaN before the end with `when: last`."""
        vectors = video_vectors(features, config.window)
        if config.when == "last":
            vectors = vectors[-1:]
        if config.target == "text":
            goal, base = self._goal(episode.instruction)
            found = projected(vectors, goal, base, config.alpha).mean(1)
        else:
            found = (vectors * self._demonstration(episode, vectors.shape[1])).sum(-1).mean(1)
        return np.concatenate([np.full(len(features) - len(found), np.nan), found])

    @torch.inference_mode()
    def _goal(self, instruction: str) -> tuple[np.ndarray, np.ndarray | None]:
        texts = [self.config.prompt.replace("{instruction}", instruction), self.config.baseline]
        found = self.encoder.texts(texts if self.config.baseline else texts[:1]).cpu().numpy()
        return found[0], found[1] if self.config.baseline else None

    def _demonstration(self, episode: Trajectory, cameras: int) -> np.ndarray:
        where = f"{self.config.name}: episode {episode.episode_id!r}"
        if episode.instruction not in self.demonstrated:
            known = ", ".join(repr(text) for text in sorted(self.demonstrated)[:5]) or "none"
            raise RewardError(f"{where}: nobody demonstrated {episode.instruction!r}; demonstrated: {known}")
        found = self.demonstrated[episode.instruction].numpy()
        if len(found) != cameras:
            raise RewardError(
                f"{where}: {cameras} cameras, but the demonstration has {len(found)}; name some in judge.cameras"
            )
        return found

    # --- storage ---------------------------------------------------------------------------------------------------

    def trained(self) -> dict[str, Tensor]:
        """Parameters that `fit_similarity` changed, by name."""
        if not self.tuned:
            return {}
        chosen = dict(self.encoder.model.named_parameters())
        return {name: chosen[name].detach() for name in self.tuned["parameters"]}

    def _tensors(self) -> dict[str, Tensor]:
        shown = {f"{DEMONSTRATION}{n}": self.demonstrated[text] for n, text in enumerate(sorted(self.demonstrated))}
        return {**shown, **self.trained()}

    def save(self, folder: Path | str) -> None:
        """Write `config.json` and, where something was trained or demonstrated, `model.safetensors` with that alone."""
        facts = {
            "type": "similarity",
            "model_id": self.model_id,
            "revision": self.encoder.revision,
            "config": dataclasses.asdict(self.config),
            "tuned": self.tuned,
            "demonstrated": sorted(self.demonstrated),
        }
        write_folder(folder, facts, self._tensors() or None)

    @classmethod
    def load(cls, folder: Path | str) -> SimilarityJudge:
        """Open a judge. Raises DataError for a damaged folder, ConfigError when its model is gone."""
        facts = read_facts(folder, "similarity")
        try:
            judge = cls(configured(SimilarityConfig, facts["config"], f"{folder}: config"))
            tuned, texts = facts["tuned"], facts["demonstrated"]
            tensors = read_tensors(folder) if tuned or texts else {}
            judge.demonstrated = {text: tensors[f"{DEMONSTRATION}{number}"] for number, text in enumerate(texts)}
            if tuned:
                judge.take(tuned, {name: tensors[name] for name in tuned["parameters"]})
        except (KeyError, TypeError, RuntimeError) as error:
            raise DataError(f"{folder}: damaged judge: {' '.join(str(error).split())}") from None
        require_same(folder, facts, revision=judge.encoder.revision, model_id=judge.model_id)
        return judge

    def take(self, tuned: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
        """Put trained parameters in their places."""
        own = self.encoder.train_part(**{key: value for key, value in tuned.items() if key != "parameters"})
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(parameters[name])
        self.encoder.model.requires_grad_(False)
        self.tuned = dict(tuned)


def video_vectors(features: np.ndarray, window: int) -> np.ndarray:
    """(T+1, cameras, D) unit vectors of frames -> at each time, of the last `window` frames; 0: of all so far."""
    if window == 1:
        return features
    sums = np.cumsum(features, axis=0, dtype=np.float64)
    if window:
        sums[window:] -= sums[:-window].copy()
    return _unit(sums)


def projected(vectors: np.ndarray, goal: np.ndarray, base: np.ndarray | None, alpha: float) -> np.ndarray:
    """VLM-RM's reward of unit vectors (..., D): the cosine without a baseline, else 1 - |P (s - g)|^2 / 2 -> (...)."""
    if base is None:
        return vectors @ goal
    difference, line = vectors - goal, goal - base
    along = difference @ (line / max(float(np.linalg.norm(line)), 1e-12))
    # |alpha a u + (1 - alpha) v|^2 with a = u'v, |u| = 1
    square = (2 * alpha - alpha**2) * along**2 + (1 - alpha) ** 2 * (difference**2).sum(-1)
    return 1.0 - square / 2


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(min=1e-12)).astype(np.float32)
