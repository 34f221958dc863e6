"""A learned policy at the controls of a group of worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from robo_rl.errors import DataError
from robo_rl.nets import tokenize
from robo_rl.policies.compact_vla.modeling_compact_vla import TOKENS
from robo_rl.policies.storage import LoadedPolicy, load_policy
from robo_rl.precision import autocast
from robo_rl.types import Controller, Observation, World


class PolicyActor:
    """Runs a policy chunk by chunk; the sampling noise of an episode comes from that episode's generator.

    `noise_scale` stretches the starting noise of the flow: above 1 explores, 0 always takes the same
    path. `bold_share` is the share of episodes that use it; the others act as they are evaluated.
    """

    controller = Controller.POLICY
    needs_images = True

    def __init__(self, loaded: LoadedPolicy, *, policy_id: str, noise_scale: float = 1.0, bold_share: float = 1.0):
        self.policy_id = policy_id
        self._loaded = loaded
        self._policy = loaded.policy
        self._execute = loaded.policy.config.n_action_steps
        self._noise_scale, self._bold_share = noise_scale, bold_share
        self._rngs: Sequence[np.random.Generator] = ()
        self._scales: list[float] = []

    def begin(self, worlds: Sequence[World], rngs: Sequence[np.random.Generator]) -> None:
        wanted = {key.removeprefix("observation.images.") for key in self._policy.config.image_features}
        missing = wanted - set(worlds[0].cameras)
        if missing:
            raise DataError(
                f"policy {self.policy_id!r} needs camera {sorted(missing)[0]!r}; "
                f"the world has {', '.join(worlds[0].cameras)}"
            )
        sizes = {"state": self._policy.config.robot_state_feature, "action": self._policy.config.action_feature}
        for name, feature in sizes.items():
            found = getattr(worlds[0], f"{name}_dim")
            if feature.shape[0] != found:
                raise DataError(
                    f"policy {self.policy_id!r} was made for {name}s of {feature.shape[0]} numbers; "
                    f"this world's have {found}"
                )
        self._rngs = rngs
        self._scales = [self._noise_scale if rng.random() < self._bold_share else 1.0 for rng in rngs]

    def act(self, slots: Sequence[int], observations: Sequence[Observation]) -> np.ndarray:
        config = self._policy.config
        device = next(self._policy.parameters()).device
        states = self._loaded.normaliser.state(np.stack([seen.state for seen in observations]))
        batch = {
            "observation.state": torch.from_numpy(states).to(device),
            TOKENS: tokenize([seen.instruction for seen in observations]).to(device),
        }
        for key in config.image_features:
            camera = key.removeprefix("observation.images.")
            frames = np.stack([seen.images[camera] for seen in observations])
            wanted = tuple(config.image_features[key].shape[1:])
            if frames.shape[1:3] != wanted:
                raise DataError(
                    f"policy {self.policy_id!r} was made for frames of {wanted} pixels; "
                    f"this world's camera {camera!r} draws {frames.shape[1:3]}"
                )
            batch[key] = torch.from_numpy(frames).to(device).permute(0, 3, 1, 2).float() / 255.0
        shape = (config.chunk_size, config.action_feature.shape[0])
        noise = np.stack([self._scales[slot] * self._rngs[slot].standard_normal(shape, np.float32) for slot in slots])
        with torch.inference_mode(), autocast(device.type):
            chunk = self._policy.predict_action_chunk(batch, noise=torch.from_numpy(noise).to(device))
        raw = self._loaded.normaliser.raw_action(chunk.float().cpu().numpy()[:, : self._execute])
        return np.clip(raw, -1.0, 1.0).astype(np.float32)

    def note(self, slot: int) -> str:
        return "bold" if self._scales[slot] != 1.0 else ""


@dataclass(frozen=True, kw_only=True)
class MakePolicyActor:
    """Picklable recipe of a `PolicyActor`, for worker processes."""

    folder: Path
    policy_id: str
    noise_scale: float = 1.0
    bold_share: float = 1.0

    def __call__(self) -> PolicyActor:
        return PolicyActor(
            load_policy(self.folder),
            policy_id=self.policy_id,
            noise_scale=self.noise_scale,
            bold_share=self.bold_share,
        )
