"""Configuration of CompactVLA, registered with lerobot as policy type `compact_vla`."""

from __future__ import annotations

from dataclasses import dataclass, field

from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature, PreTrainedConfig
from lerobot.optim.optimizers import AdamWConfig
from lerobot.optim.schedulers import CosineDecayWithWarmupSchedulerConfig


@PreTrainedConfig.register_subclass("compact_vla")
@dataclass
class CompactVLAConfig(PreTrainedConfig):
    """Sizes and habits of CompactVLA (see `CompactVLAPolicy`)."""

    chunk_size: int = 8  # actions predicted at once
    n_action_steps: int = 4  # of which so many are executed before looking again
    n_obs_steps: int = 1

    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            "VISUAL": NormalizationMode.IDENTITY,
            "STATE": NormalizationMode.MEAN_STD,
            "ACTION": NormalizationMode.MEAN_STD,
        }
    )

    channels: int = 48  # of the convolutional trunk
    queries: int = 16  # of the language pool, a camera
    text_dim: int = 64
    context_dim: int = 256
    head_width: int = 320
    head_blocks: int = 3
    denoise_steps: int = 5  # Euler steps at inference
    flow_draws: int = 6  # (noise, time) pairs for every encoded frame in training
    regression_weight: float = 0.5  # of the auxiliary direct prediction of the chunk

    optimizer_lr: float = 1e-3
    optimizer_weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise ValueError(
                f"n_action_steps must be between 1 and chunk_size ({self.chunk_size}), got {self.n_action_steps}"
            )
        if self.n_obs_steps != 1:
            raise ValueError(f"CompactVLA sees one moment: n_obs_steps must be 1, got {self.n_obs_steps}")

    def get_optimizer_preset(self) -> AdamWConfig:
        return AdamWConfig(lr=self.optimizer_lr, weight_decay=self.optimizer_weight_decay)

    def get_scheduler_preset(self) -> CosineDecayWithWarmupSchedulerConfig:
        return CosineDecayWithWarmupSchedulerConfig(
            peak_lr=self.optimizer_lr,
            decay_lr=self.optimizer_lr * 0.05,
            num_warmup_steps=50,
            num_decay_steps=20_000,
        )

    def validate_features(self) -> None:
        if not self.image_features:
            raise ValueError("CompactVLA needs at least one camera among its input features")
        if self.robot_state_feature is None:
            raise ValueError("CompactVLA needs 'observation.state' among its input features")
        if self.action_feature is None:
            raise ValueError("CompactVLA needs 'action' among its output features")

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> list[int]:
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> None:
        return None


def features_for(cameras: dict[str, tuple[int, int]], state_dim: int, action_dim: int) -> dict[str, dict]:
    """lerobot's feature tables for bare camera names -> (H, W): keyword arguments of `CompactVLAConfig`."""
    inputs = {
        f"observation.images.{name}": PolicyFeature(type=FeatureType.VISUAL, shape=(3, *size))
        for name, size in cameras.items()
    }
    inputs["observation.state"] = PolicyFeature(type=FeatureType.STATE, shape=(state_dim,))
    outputs = {"action": PolicyFeature(type=FeatureType.ACTION, shape=(action_dim,))}
    return {"input_features": inputs, "output_features": outputs}
