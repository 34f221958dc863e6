"""TOPReward (arXiv 2602.19313, METHODS 7): log P("True" | video so far, "... completes the task: ... True or not").

Zero-shot with any Qwen3-VL. lerobot (`rewards/topreward/compute_rabc_weights.py`) runs the whole video again for every
prefix; here one pass reads an episode (`topreward_pass`). In float32 the log-probabilities equal lerobot's to 1e-4,
which the tests require; they are kept in `RewardSignal.extra["log_prob"]`, whatever `progress` is made of.

`progress` is by default the probability itself: a failed episode can then stay low, and episodes can be compared. What
lerobot writes is the log-probability stretched to 0..1 within each episode, so the best moment of a failure counts as
complete as that of a success, and a constant episode as complete throughout: METHODS 7. `normalise: episode` gives
exactly that; it is the default only of `LeRobotTOPRewardJudge`, which stands for lerobot's own labels.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import transformers
from huggingface_hub import snapshot_download
from lerobot.rewards.topreward import TOPRewardConfig
from lerobot.rewards.topreward.configuration_topreward import DEFAULT_PROMPT_PREFIX, DEFAULT_PROMPT_SUFFIX_TEMPLATE
from lerobot.rewards.topreward.processor_topreward import TOPRewardEncoderProcessorStep

from reward_models.hub import DTYPES, Source, load_vlm
from reward_models.judge_folder import digest
from reward_models.lerobot_checkpoint import open_checkpoint, read_options, require_device, write_options
from reward_models.topreward_curve import anchors, curve, stretched
from reward_models.topreward_pass import TOPRewardPass
from reward_models.topreward_text import PromptText, read_text
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.options import configured
from robo_rl.types import RewardSignal, Trajectory

CAMERA_PREFIX = "observation.images."
DEFAULT_TASK = "perform the task"  # of lerobot's script
# what changes where and how fast a judge runs, not what it says; the model's revision stands for its path
NOT_DECIDING = ("path", "revision", "name", "device", "attention", "tokens_together")
REMEMBERED = 256  # instructions


@dataclass(frozen=True, kw_only=True)
class TOPRewardJudgeConfig:
    """Which model, and how it is asked. Raises ConfigError. The prompt is lerobot's unless it is changed."""

    path: str  # folder or hub id of a Qwen3-VL ("Qwen/Qwen3-VL-8B-Instruct")
    revision: str = ""
    name: str = "topreward"
    dtype: str = "fp32"  # fp32 | bf16 | fp16
    attention: str = "sdpa"  # sdpa | eager
    device: str = "cpu"
    camera: str = ""  # "" for the only one
    fps: float = 2.0  # of the time stamps the model reads, not of the recording; lerobot's default
    num_samples: int = 0  # prefixes scored in an episode, the rest interpolated; 0 for all
    normalise: str = "probability"  # probability | episode
    success_log_prob: float | None = None  # lerobot's success_threshold: success where the log-probability exceeds it
    prompt_prefix: str = DEFAULT_PROMPT_PREFIX
    prompt_suffix_template: str = DEFAULT_PROMPT_SUFFIX_TEMPLATE
    add_chat_template: bool = False
    default_task: str = DEFAULT_TASK  # for episodes without an instruction
    max_input_length: int = 32768  # tokens of a prompt
    tokens_together: int = 0  # of one pass, changes speed and memory only; 0: 512 on a CPU, 4096 elsewhere

    def __post_init__(self) -> None:
        if not self.name or "@" in self.name:
            raise ConfigError(f"topreward: name must be a word without '@', got {self.name!r}")
        if self.normalise not in ("probability", "episode"):
            raise ConfigError(f"topreward: normalise must be probability or episode, got {self.normalise!r}")
        if self.attention not in ("sdpa", "eager"):
            raise ConfigError(f"topreward: attention must be sdpa or eager (it needs a mask), got {self.attention!r}")
        if "{instruction}" not in self.prompt_suffix_template:
            raise ConfigError("topreward: prompt_suffix_template must contain {instruction}")
        if self.fps <= 0:
            raise ConfigError(f"topreward: fps must be positive, got {self.fps}")
        if self.num_samples < 0 or self.num_samples == 1:
            raise ConfigError(f"topreward: num_samples must be 0 (all) or at least 2, got {self.num_samples}")
        if self.max_input_length < 1 or self.tokens_together < 0:
            raise ConfigError("topreward: max_input_length and tokens_together must be positive")


class TOPRewardJudge:
    """A `Judge` without parameters of its own: a vision-language model, asked after every frame."""

    TYPE: ClassVar[str] = "topreward"
    PATHS: ClassVar[tuple[str, ...]] = ("path",)  # options that name a folder

    def __init__(self, config: TOPRewardJudgeConfig) -> None:
        """Opens the model. Raises ConfigError when it is missing or no Qwen3-VL."""
        require_device(config.device)
        self.config = config
        self.options: Any = config  # what `save` keeps
        source = Source(
            path=config.path,
            revision=config.revision,
            dtype=config.dtype,
            attention=config.attention,
            device=config.device,
        )
        loaded = load_vlm(source)
        self.model, self.revision = loaded.model, loaded.revision
        if self.model.config.model_type != "qwen3_vl":
            raise ConfigError(
                f"topreward: {config.path} is a {self.model.config.model_type} model; TOPReward needs a Qwen3-VL"
            )
        folder = config.path
        if not Path(folder).is_dir():  # lerobot's encoder takes no revision
            folder = snapshot_download(config.path, revision=config.revision or None, local_files_only=True)
        self.encoder = TOPRewardEncoderProcessorStep(
            vlm_name=folder,
            max_frames=None,
            fps=config.fps,
            prompt_prefix=config.prompt_prefix,
            prompt_suffix_template=config.prompt_suffix_template,
            add_chat_template=config.add_chat_template,
            max_length=sys.maxsize,  # checked here, with the episode's name
        )
        together = config.tokens_together or (512 if config.device == "cpu" else 4096)
        self.passes = TOPRewardPass(self.model, self.encoder._processor, tokens_together=together)
        self._texts: dict[str, PromptText] = {}

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> Self:
        """From the options of `TOPRewardJudgeConfig`. Raises ConfigError."""
        return cls(configured(TOPRewardJudgeConfig, options, f"judge.{cls.TYPE}"))

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of the model's own and of every option that decides the scores."""
        return f"{self.config.name}@{digest(self.config, NOT_DECIDING, self.TYPE, self.revision)}"

    def provenance(self) -> dict[str, str]:
        """Model, prompt, and which prefixes are scored."""
        count = self.config.num_samples
        return {
            "type": self.TYPE,
            "model": self.config.path,
            "revision": self.revision,
            "dtype": self.config.dtype,
            "camera": self.config.camera or "the only one",
            "prompt": self.config.prompt_prefix + self.config.prompt_suffix_template,
            "chat_template": str(self.config.add_chat_template),
            "fps": str(self.config.fps),
            "prefixes": f"{count} an episode, interpolated between" if count else "all",
            "normalise": self.config.normalise,
        }

    # --- judging ---------------------------------------------------------------------------------------

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order, one trajectory at a time.

        `extra["log_prob"]` holds the log-probability at every frame that was scored, NaN where it was interpolated.
        Raises RewardError naming an episode without the camera, too long for the model, or with no finite score.
        """
        return [self._score(trajectory) for trajectory in trajectories]

    def log_probs(self, trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
        """The prefix lengths that are scored, int64 (N,), and log P("True") after each, float64 (N,)."""
        frames = self._frames(trajectory)
        text = self._text(trajectory)
        lengths = anchors(len(frames), self.config.num_samples)
        try:
            self._check_length(trajectory, text, lengths.tolist())
            return lengths, self.passes.log_probs(frames, text, lengths.tolist())
        except ValueError as error:  # of the processor, about the frames' size
            raise RewardError(f"{self.model_id}: episode {trajectory.episode_id!r}: {error}") from None

    def _score(self, trajectory: Trajectory) -> RewardSignal:
        lengths, values = self.log_probs(trajectory)
        success = None
        rewards = values
        if self.config.success_log_prob is not None:
            rewards = (values > self.config.success_log_prob).astype(np.float64)
            success = curve(lengths, rewards)
        if self.config.normalise == "episode":
            progress = curve(lengths, stretched(rewards))
        else:
            progress = curve(lengths, np.exp(values))
        raw = np.full(len(trajectory) + 1, np.nan, np.float32)
        raw[lengths - 1] = values
        try:
            return RewardSignal(
                episode_id=trajectory.episode_id,
                model_id=self.model_id,
                progress=progress,
                success_prob=success,
                extra={"log_prob": raw},
            )
        except DataError as error:
            raise RewardError(f"{error}; the model's parameters or its dtype cannot be used") from None

    def _frames(self, trajectory: Trajectory) -> np.ndarray:
        cameras = tuple(trajectory.images)
        camera = self.config.camera or (cameras[0] if len(cameras) == 1 else "")
        if camera not in trajectory.images:
            what = f"no camera {camera!r}" if camera else "several cameras" if cameras else "no camera"
            raise RewardError(
                f"{self.model_id}: episode {trajectory.episode_id!r} has {what}; "
                f"set camera: to one of {', '.join(cameras) or '(none)'}"
            )
        return trajectory.images[camera]

    def _text(self, trajectory: Trajectory) -> PromptText:
        instruction = trajectory.instruction or self.config.default_task
        if instruction not in self._texts:
            if len(self._texts) >= REMEMBERED:
                self._texts.clear()
            self._texts[instruction] = read_text(self.encoder, self.model.config, instruction)
        return self._texts[instruction]

    def _check_length(self, trajectory: Trajectory, text: PromptText, lengths: list[int]) -> None:
        height, width = self._frames(trajectory).shape[1:3]
        tokens, frames = self.passes.longest_prompt((height, width), text, lengths)
        if tokens > self.config.max_input_length:
            raise RewardError(
                f"{self.model_id}: episode {trajectory.episode_id!r}: {frames} frames are {tokens} tokens, more than "
                f"max_input_length {self.config.max_input_length}; raise it, or score smaller or fewer frames"
            )

    # --- storage -----------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write `config.json`: the options and the `model_id` they meant. The model itself is not copied."""
        write_options(folder, self.TYPE, self.model_id, dataclasses.asdict(self.options), self.PATHS)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Open what `save` wrote. Raises DataError when the folder is damaged or its model has changed."""
        return read_options(folder, cls.TYPE, cls.from_config)


@dataclass(frozen=True, kw_only=True)
class LeRobotTOPRewardConfig:
    """A lerobot TOPReward config folder or hub id, and what may be set beside it."""

    path: str  # folder with lerobot's config.json (type topreward)
    revision: str = ""
    name: str = "topreward"
    vlm: str = ""  # another model than the config's vlm_name
    device: str = "cpu"
    camera: str = ""  # "" is the config's image_key
    num_samples: int = 0
    normalise: str = "episode"
    tokens_together: int = 0


class LeRobotTOPRewardJudge(TOPRewardJudge):
    """The same from a lerobot TOPReward folder, with lerobot's own labels as progress unless told otherwise."""

    TYPE: ClassVar[str] = "lerobot_topreward"
    PATHS: ClassVar[tuple[str, ...]] = ("path", "vlm")

    def __init__(self, given: LeRobotTOPRewardConfig) -> None:
        """Opens the folder's config and the model it names. Raises ConfigError."""
        theirs = open_checkpoint(given.path, TOPRewardConfig, revision=given.revision, device=given.device).config
        vlm = given.vlm or theirs.vlm_name
        threshold = theirs.success_threshold
        super().__init__(
            TOPRewardJudgeConfig(
                path=vlm,
                name=given.name,
                dtype=_dtype(theirs.torch_dtype, vlm),
                attention="eager" if theirs.attn_implementation == "eager" else "sdpa",
                device=given.device,
                camera=given.camera or theirs.image_key.removeprefix(CAMERA_PREFIX),
                fps=theirs.fps,
                num_samples=given.num_samples,
                normalise=given.normalise,
                success_log_prob=threshold if np.isfinite(threshold) else None,
                prompt_prefix=theirs.prompt_prefix,
                prompt_suffix_template=theirs.prompt_suffix_template,
                add_chat_template=theirs.add_chat_template,
                default_task=theirs.default_task or DEFAULT_TASK,
                max_input_length=theirs.max_input_length,
                tokens_together=given.tokens_together,
            )
        )
        self.options = given

    @classmethod
    def from_config(cls, options: Mapping[str, Any]) -> Self:
        """From the options of `LeRobotTOPRewardConfig`. Raises ConfigError."""
        return cls(configured(LeRobotTOPRewardConfig, options, f"judge.{cls.TYPE}"))


def _dtype(name: str, vlm: str) -> str:
    """Our name of lerobot's `torch_dtype`; "auto" is what the model was saved in. Raises ConfigError."""
    if name == "auto":
        try:
            config = transformers.AutoConfig.from_pretrained(vlm)
        except (OSError, ValueError):
            return "fp32"  # load_vlm then says what is missing
        dtype = config.dtype or getattr(config.get_text_config(), "dtype", None) or "float32"
        name = str(dtype).removeprefix("torch.")
    for ours, dtype in DTYPES.items():
        if str(dtype) == f"torch.{name}":
            return ours
    raise ConfigError(f"topreward: torch_dtype {name!r} cannot be used; one of {', '.join(map(str, DTYPES.values()))}")
