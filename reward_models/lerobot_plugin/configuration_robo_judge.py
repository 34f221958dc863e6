"""The configuration of a judge that lives inside lerobot."""

from __future__ import annotations

from dataclasses import dataclass, field

from lerobot.configs import NormalizationMode
from lerobot.configs.rewards import RewardModelConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.optim import AdamWConfig, CosineDecayWithWarmupSchedulerConfig

from reward_models.batches import ClipConfig
from reward_models.losses import LossConfig
from reward_models.network import CompactJudgeConfig
from robo_rl.errors import ConfigError


@RewardModelConfig.register_subclass("robo_judge")
@dataclass
class RoboJudgeConfig(RewardModelConfig):
    """What the judge is and how `lerobot-train` fits it. Raises ConfigError.

    A judge of its own folder (`judge`) brings its own network and cameras; `network` is for a new one.
    """

    judge: str = ""  # folder or YAML file of one of our judges to use or to go on fitting; "": a new compact judge
    network: CompactJudgeConfig = field(default_factory=CompactJudgeConfig)  # cameras: (): all of the dataset
    reward_output: str = "progress"  # what `compute_reward` gives: progress | success

    # Windows: the present frame and those before it. A compact judge looks back layers * (window - 1) frames; with as
    # many frames one after another, the reward is what `judge.score` says of that frame in its episode.
    frames: int = 16
    stride: int = 1  # frames of the dataset from one frame of a window to the next

    # Fitting
    demonstrations: bool = False  # episodes whose outcome the dataset does not tell are successes
    loss: LossConfig = field(default_factory=LossConfig)
    clips: ClipConfig = field(default_factory=ClipConfig)  # of it: rewind, reverse, hold, wrong_*, hop, end_weight
    learning_rate: float = 3e-3
    weight_decay: float = 0.02
    clip_norm: float = 1.0
    warmup_steps: int = 300  # of decay_steps, both shrink with shorter runs
    decay_steps: int = 3000
    target_rate: float = 0.05  # of the slow copy that success is bootstrapped from, every step
    seed: int = 0  # of a new judge's parameters

    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {"VISUAL": NormalizationMode.IDENTITY}  # judges see pictures as they are
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward_output not in ("progress", "success"):
            raise ConfigError(f"reward_model.reward_output must be progress or success, got {self.reward_output!r}")
        if self.frames < 1 or self.stride < 1:
            raise ConfigError(
                f"reward_model: frames and stride must be at least 1, got {self.frames} and {self.stride}"
            )
        for name in ("learning_rate", "clip_norm", "decay_steps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"reward_model.{name} must be positive, got {getattr(self, name)}")
        if not 0 < self.target_rate <= 1:
            raise ConfigError(f"reward_model.target_rate must lie in (0, 1], got {self.target_rate}")
        for name in ("progress", "success"):
            self.output_features.setdefault(name, PolicyFeature(type=FeatureType.REWARD, shape=(1,)))

    @property
    def observation_delta_indices(self) -> list[int]:
        """Frames of a window, relative to the sampled one, which comes last."""
        return list(range(-(self.frames - 1) * self.stride, 1, self.stride))

    def get_optimizer_preset(self) -> AdamWConfig:
        """As `robo-rl reward fit` has it."""
        return AdamWConfig(
            lr=self.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=self.weight_decay,
            grad_clip_norm=self.clip_norm,
        )

    def get_scheduler_preset(self) -> CosineDecayWithWarmupSchedulerConfig:
        """Up, then a cosine down to nothing."""
        return CosineDecayWithWarmupSchedulerConfig(
            num_warmup_steps=self.warmup_steps,
            num_decay_steps=self.decay_steps,
            peak_lr=self.learning_rate,
            decay_lr=0.0,
        )
