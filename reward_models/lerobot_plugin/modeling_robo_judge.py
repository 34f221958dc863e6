"""A judge of ours behind lerobot's interface of a reward model: rewards for its loops, training in its trainer."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from huggingface_hub import snapshot_download
from lerobot.configs.rewards import RewardModelConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.rewards.pretrained import PreTrainedRewardModel
from torch import Tensor

from reward_models.batches import ClipBatch
from reward_models.compact import CompactJudge
from reward_models.heads import expected_progress
from reward_models.lerobot_plugin.configuration_robo_judge import RoboJudgeConfig
from reward_models.lerobot_plugin.labels import WindowLabels
from reward_models.losses import judge_loss
from reward_models.network import JudgeNetwork, Outputs, mixed_precision
from reward_models.registry import TYPES, load_judge
from reward_models.training import follow, parameter_groups
from robo_rl.data.layout import camera_name
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.nets import tokenize
from robo_rl.types import Controller, Outcome, Trajectory

JUDGE = "judge"  # folder of the judge inside a checkpoint


class RoboJudgeRewardModel(PreTrainedRewardModel):
    """One of our judges. A compact judge can be trained by `lerobot-train`; any judge gives rewards.

    Pictures come as lerobot hands them over, float (B, C, H, W) or windows (B, L, C, H, W) in [0, 1], the frame that
    is judged last, under keys like `observation.images.front`; `task` has the instructions.
    Where the batch says which frames of a window are padding (`..._is_pad`), they are left out, so the reward of a
    frame near the start is what `judge.score` says there.
    """

    name = "robo_judge"
    config_class = RoboJudgeConfig

    def __init__(
        self, config: RoboJudgeConfig, dataset_stats: Any = None, dataset_meta: Any = None, judge: Any = None
    ) -> None:
        """`dataset_meta`, as `lerobot-train` passes it, tells the cameras and where labels are read from."""
        super().__init__(config)
        self.config: RoboJudgeConfig = config
        self.judge = judge if judge is not None else _judge(config, dataset_meta)
        self.network: JudgeNetwork | None = self.judge.network if isinstance(self.judge, CompactJudge) else None
        self.root = None if dataset_meta is None else Path(dataset_meta.root)
        self._labels: WindowLabels | None = None
        self._centred = False  # whether the instructions of the dataset are the centre of all
        self._slow: list[JudgeNetwork] = []  # in a list: no part of the model, and not saved with it
        if self.network is not None and dataset_meta is not None:
            # lerobot saves the optimiser's state, which copies the parameters' layout, and only if it is contiguous
            self.network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            for key, feature in dataset_meta.features.items():
                if camera_name(key) in self.network.cameras:
                    height, width, channels = feature["shape"]
                    config.input_features[key] = PolicyFeature(FeatureType.VISUAL, (channels, height, width))

    @property
    def is_trainable(self) -> bool:
        """Whether `lerobot-train` can fit it; other judges have `robo-rl reward fit`."""
        return self.network is not None

    # --- rewards -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def compute_reward(self, batch: dict[str, Any]) -> Tensor:
        """Progress, or the probability of success, of the last frame of every window: float32 (B,).

        Raises RewardError for a batch without the judge's cameras or instructions.
        """
        cameras = self._cameras(batch)
        frames = {camera: _frames(batch[key], key) for camera, key in cameras.items()}
        count, length = next(iter(frames.values())).shape[:2]
        texts = _texts(batch, count)
        padding = next((batch[f"{key}_is_pad"] for key in cameras.values() if f"{key}_is_pad" in batch), None)
        real = torch.ones(count, length, dtype=torch.bool) if padding is None else ~padding.cpu().bool()
        real[:, -1] = True  # the present frame
        if self.network is not None:
            return self._compact_rewards(self.network, frames, texts, real)
        return self._any_rewards(frames, texts, real, batch.get("observation.state"))

    def _compact_rewards(
        self, network: JudgeNetwork, frames: Mapping[str, Tensor], texts: list[str], real: Tensor
    ) -> Tensor:
        was_training, device = network.training, network.map_scale.device
        network.eval()
        try:
            maps = self._maps(network, {camera: f.flatten(0, 1) for camera, f in frames.items()}).float()
            maps = maps.unflatten(0, real.shape)
            # padding comes first in a window; it is moved behind the frames, where a causal network never sees it
            order = torch.argsort(~real, dim=1, stable=True).to(device)
            maps = torch.stack([window[places] for window, places in zip(maps, order, strict=True)])
            outputs = network(maps, tokenize(texts).to(device))
        finally:
            network.train(was_training)
        last = (real.sum(1) - 1).to(device)
        rows = torch.arange(len(real), device=device)
        if self.config.reward_output == "success":
            return network.probability(outputs.success[rows, last])
        return expected_progress(outputs.progress[rows, last])[0]

    def _any_rewards(self, frames: Mapping[str, Tensor], texts: list[str], real: Tensor, state: Any) -> Tensor:
        """Every window as a short episode. A single frame is shown twice: an episode has at least one step."""
        if isinstance(state, Tensor) and state.shape[:-1] not in (real.shape, real.squeeze(1).shape):
            raise RewardError(
                f"observation.state must be {(*real.shape, 'S')}, one a frame as the pictures, got {tuple(state.shape)}"
            )
        episodes = []
        for row, text in enumerate(texts):
            kept = real[row].nonzero().flatten()
            kept = kept if len(kept) > 1 else kept.repeat(2)
            steps = len(kept) - 1
            images = {camera: _pixels(f[row][kept]).cpu().numpy() for camera, f in frames.items()}
            states = np.zeros((steps + 1, 0), np.float32)
            if isinstance(state, Tensor):
                states = state.reshape(len(texts), real.shape[1], -1)[row][kept].float().cpu().numpy()
            episodes.append(
                Trajectory(
                    episode_id=f"window-{row}",
                    instruction=text,
                    images=images,
                    state=states,
                    actions=np.zeros((steps, 1), np.float32),
                    controller=np.full(steps, Controller.POLICY, np.int8),
                    outcome=Outcome.UNKNOWN,
                    fps=10.0,
                )
            )
        signals = self.judge.score(episodes)
        wanted = [s.success_prob if self.config.reward_output == "success" else s.progress for s in signals]
        if any(values is None for values in wanted):
            raise RewardError(f"{self.judge.model_id}: this judge has no success head; use reward_output=progress")
        return torch.tensor([float(values[-1]) for values in wanted if values is not None], device=self.config.device)

    def _cameras(self, batch: Mapping[str, Any]) -> dict[str, str]:
        """Camera -> key of the batch, in the judge's order; all pictures for a judge that takes any."""
        keys = {camera_name(key): key for key in batch if key.startswith("observation.image") and "_is_pad" not in key}
        wanted = self.network.cameras if self.network is not None else tuple(keys)
        missing = [camera for camera in wanted if camera not in keys]
        if missing or not wanted:
            named = f" of camera {missing[0]!r}" if missing else ""
            raise RewardError(f"the batch has no picture{named}; it has {', '.join(keys) or 'none'}")
        return {camera: keys[camera] for camera in wanted}

    def _maps(self, network: JudgeNetwork, frames: Mapping[str, Tensor]) -> Tensor:
        """camera -> (N, C, H, W) in [0, 1] to maps (N, cameras, channels, s, s)."""
        with mixed_precision(network.config.precision):
            return network.maps({camera: _pixels(f) for camera, f in frames.items()})

    # --- training ------------------------------------------------------------------------------------------

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, float]]:
        """The compact judge's loss on windows of sampled rows, and its parts; labels are found by `batch["index"]`.

        Every distinct row of a batch goes through the convolutions once. While training, windows are changed and
        copied under wrong instructions (`clips`), with random numbers drawn from torch's generator, which lerobot keeps
        in its checkpoints.

        Raises ConfigError without a dataset or for a judge that is not compact, RewardError when the loss is not
        finite.
        """
        network, labels = self._trainable()
        index = batch["index"].detach().cpu().numpy().astype(np.int64).reshape(-1)
        offsets = np.array(self.config.observation_delta_indices)
        rng = np.random.default_rng(int(torch.randint(2**62, ())))
        clips = labels.clips(index, offsets, rng if self.training else None)
        rows, first, at = np.unique(labels.rows(index, offsets), return_index=True, return_inverse=True)
        frames = {c: _frames(batch[key], key).flatten(0, 1) for c, key in self._cameras(batch).items()}
        if len(at.ravel()) != len(next(iter(frames.values()))):
            raise ConfigError(
                f"the batch has {len(next(iter(frames.values())))} frames, {len(at.ravel())} are expected of "
                f"{len(index)} windows; the dataset must be read with the model's observation_delta_indices"
            )
        shown = {camera: f[torch.from_numpy(first).to(f.device)] for camera, f in frames.items()}
        if bool((network.map_scale == 1.0).all()):
            texts = [labels.instructions[e] for e in labels.episode_of(rows)]
            _measure(network, {camera: _pixels(f) for camera, f in shown.items()}, texts)
        maps = self._maps(network, shown)
        places = np.minimum(np.searchsorted(rows, clips.rows), len(rows) - 1)  # padding may be any frame
        loss, parts = self._loss(network, maps[torch.from_numpy(places).to(maps.device)], clips)
        if not torch.isfinite(loss):
            raise RewardError(f"judge: the loss is {float(loss)}; lower --reward_model.learning_rate")
        return loss, {name: float(part.detach()) for name, part in parts.items()}

    def _loss(self, network: JudgeNetwork, maps: Tensor, clips: ClipBatch) -> tuple[Tensor, dict[str, Tensor]]:
        if not self._slow:
            self._slow.append(copy.deepcopy(network).eval().requires_grad_(False))
        slow, instructions = self._slow[0].to(maps.device), clips.instructions.to(maps.device)
        with mixed_precision(network.config.precision):
            said = network(maps, instructions)
            with torch.no_grad():
                ahead = torch.sigmoid(slow(maps, instructions).success.float()).cpu()
        # a few numbers a frame, which the labels wait for on the CPU
        outputs = Outputs(said.hidden, said.progress.cpu(), said.success.cpu(), said.tri_state.cpu())
        return judge_loss(outputs, ahead, clips, self.config.loss)

    def update(self) -> None:
        """Called by lerobot after every gradient step: the slow copy follows (theta-, METHODS 2.3).

        It is not kept in checkpoints; a resumed run starts it from the network, as a warm start does.
        """
        if self._slow and self.network is not None:
            follow(self._slow[0], self.network, self.config.target_rate)
            self.judge.trunk_ready = True

    def get_optim_params(self) -> Any:
        """Groups: matrices decay, others do not; the image encoder learns slowly."""
        if self.network is None:
            return self.parameters()
        return parameter_groups(self.network, self.config.learning_rate, self.config.weight_decay)

    def _trainable(self) -> tuple[JudgeNetwork, WindowLabels]:
        if self.network is None:
            raise ConfigError(
                f"{self.judge.model_id}: only compact judges are fitted by lerobot-train; use `robo-rl reward fit`"
            )
        if self._labels is None:
            if self.root is None:
                raise ConfigError("robo_judge: labels are read from the dataset; pass dataset_meta=dataset.meta")
            clips = replace(self.config.clips, frames=max(8, self.config.frames))
            self._labels = WindowLabels(self.root, clips, demonstrations=self.config.demonstrations)
        if self.training and not self._centred:
            self._centred = True
            self.network.set_reference(tokenize(self._labels.instructions).to(self.network.map_scale.device))
        return self.network, self._labels

    # --- storage ---------------------------------------------------------------------------------------------

    def _save_pretrained(self, save_directory: Path) -> None:
        """`config.json` for lerobot, and the judge in its own folder, where `load_judge` opens it."""
        self.judge.save(save_directory / JUDGE)
        kept, self.config.judge = self.config.judge, ""
        try:
            self.config._save_pretrained(save_directory)
        finally:
            self.config.judge = kept

    @classmethod
    def from_pretrained(
        cls,
        pretrained_name_or_path: str | Path,
        *,
        config: RoboJudgeConfig | None = None,
        revision: str | None = None,
        dataset_stats: Any = None,
        dataset_meta: Any = None,
        **hub: Any,
    ) -> Self:
        """A checkpoint of `lerobot-train`, a folder or YAML file of one of our judges, or a hub id of the former.

        Raises DataError or ConfigError with what is wrong and where.
        """
        path = Path(pretrained_name_or_path)
        if not path.exists():
            path = Path(snapshot_download(str(pretrained_name_or_path), revision=revision, **_known(hub)))
        inside = path / JUDGE if _is_checkpoint(path) else path
        if config is None:
            config = _config(path) if _is_checkpoint(path) else RoboJudgeConfig(device="cpu")
        judge = load_judge(inside)
        model = cls(config, dataset_stats=dataset_stats, dataset_meta=dataset_meta, judge=judge)
        return model.to(config.device).eval()


def _judge(config: RoboJudgeConfig, dataset_meta: Any) -> Any:
    if config.judge:
        return load_judge(config.judge)
    cameras = config.network.cameras
    if not cameras and dataset_meta is not None:
        cameras = tuple(camera_name(key) for key in dataset_meta.camera_keys if key not in dataset_meta.depth_keys)
    if not cameras:
        raise ConfigError(
            "robo_judge: a new judge needs cameras; pass dataset_meta, or name --reward_model.network.cameras"
        )
    return CompactJudge(replace(config.network, cameras=cameras), seed=config.seed)


def _is_checkpoint(path: Path) -> bool:
    try:
        return json.loads((path / "config.json").read_text()).get("type") not in TYPES
    except (OSError, ValueError, AttributeError):
        return False  # `load_judge` says what is wrong with it


def _config(path: Path) -> RoboJudgeConfig:
    config = RewardModelConfig.from_pretrained(path)
    if not isinstance(config, RoboJudgeConfig):
        raise DataError(f"{path}: a checkpoint of lerobot's {config.type}, not of robo_judge")
    return config


def _known(hub: Mapping[str, Any]) -> dict[str, Any]:
    return {key: hub[key] for key in ("token", "cache_dir", "local_files_only", "force_download") if hub.get(key)}


def _frames(values: Tensor, key: str) -> Tensor:
    """(B, C, H, W) or (B, L, C, H, W) -> (B, L, C, H, W)."""
    if values.ndim not in (4, 5):
        raise RewardError(f"{key} must be (B, C, H, W) or (B, L, C, H, W), got {tuple(values.shape)}")
    return values if values.ndim == 5 else values.unsqueeze(1)


def _pixels(values: Tensor) -> Tensor:
    """(..., C, H, W) in [0, 1], or uint8, -> uint8 (..., H, W, C); exact for pictures that were uint8."""
    whole = values if values.dtype == torch.uint8 else (values.float() * 255.0).round().clamp(0, 255).to(torch.uint8)
    return whole.movedim(-3, -1)


def _texts(batch: Mapping[str, Any], count: int) -> list[str]:
    given = batch.get("task")
    texts = [given] if isinstance(given, str) else list(given or ())
    texts = texts * count if len(texts) == 1 else texts
    if len(texts) != count:
        raise RewardError(f"the batch has {count} windows, but {len(texts)} instructions in 'task'")
    return texts


@torch.no_grad()
def _measure(network: JudgeNetwork, frames: Mapping[str, Tensor], texts: list[str]) -> None:
    """Bring a new network's inputs to scale on the first batch, as `reward_models.maps.measure` does on a sample."""
    was_training = network.training
    network.eval()
    maps = network.maps(dict(frames))
    network.map_scale.copy_(maps.square().mean((0, 2, 3, 4)).clamp(min=1e-12).rsqrt())
    scaled = maps * network.map_scale[:, None, None, None]
    network.measure_look(scaled, tokenize(texts).to(maps.device))
    network.train(was_training)
