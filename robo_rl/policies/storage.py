"""Policies on disk, in lerobot's layout: config.json, model.safetensors, the two processor pipelines."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.processor import PolicyProcessorPipeline

import robo_rl.policies.compact_vla  # noqa: F401  (registers the policy type with lerobot)

from lerobot.configs import PreTrainedConfig  # isort: skip  (after the registration)
from robo_rl.errors import DataError

EPSILON = 1e-8  # lerobot's NormalizerProcessorStep divides by std + 1e-8


@dataclass(frozen=True, kw_only=True)
class Normaliser:
    """Mean and standard deviation of proprioception and actions: what the processors apply, as arrays."""

    state_mean: np.ndarray  # float32 (S,)
    state_std: np.ndarray  # float32 (S,)
    action_mean: np.ndarray  # float32 (A,)
    action_std: np.ndarray  # float32 (A,)

    @classmethod
    def from_stats(cls, stats: Mapping[str, Mapping[str, object]]) -> Normaliser:
        """From a dataset's `meta.stats` (or the statistics kept in a preprocessor)."""

        def read(key: str, field: str) -> np.ndarray:
            return np.asarray(stats[key][field], dtype=np.float32).reshape(-1)

        return cls(
            state_mean=read("observation.state", "mean"),
            state_std=read("observation.state", "std"),
            action_mean=read("action", "mean"),
            action_std=read("action", "std"),
        )

    def state(self, raw: np.ndarray) -> np.ndarray:
        """(..., S) as recorded -> (..., S) as the network sees it."""
        return (raw - self.state_mean) / (self.state_std + EPSILON)

    def action(self, raw: np.ndarray) -> np.ndarray:
        """(..., A) as recorded -> (..., A) as the network predicts it."""
        return (raw - self.action_mean) / (self.action_std + EPSILON)

    def raw_action(self, normalised: np.ndarray) -> np.ndarray:
        """(..., A) as predicted -> (..., A) as a robot takes it."""
        return normalised * (self.action_std + EPSILON) + self.action_mean

    def as_stats(self) -> dict[str, dict[str, torch.Tensor]]:
        """lerobot's statistics table, enough for mean / std normalisation."""
        return {
            "observation.state": {
                "mean": torch.from_numpy(self.state_mean),
                "std": torch.from_numpy(self.state_std),
            },
            "action": {"mean": torch.from_numpy(self.action_mean), "std": torch.from_numpy(self.action_std)},
        }


def measure(states: np.ndarray, actions: np.ndarray) -> Normaliser:
    """Statistics of (N, S) states and (N, A) actions; a constant entry gets std 1 so that it maps to 0."""

    def spread(values: np.ndarray) -> np.ndarray:
        std = values.std(0, dtype=np.float64)
        return np.where(std < 1e-6, 1.0, std).astype(np.float32)

    return Normaliser(
        state_mean=states.mean(0, dtype=np.float64).astype(np.float32),
        state_std=spread(states),
        action_mean=actions.mean(0, dtype=np.float64).astype(np.float32),
        action_std=spread(actions),
    )


@dataclass(frozen=True, kw_only=True)
class LoadedPolicy:
    """A policy with everything needed to run it on raw observations."""

    policy: PreTrainedPolicy
    normaliser: Normaliser
    preprocessor: PolicyProcessorPipeline
    postprocessor: PolicyProcessorPipeline


def save_policy(folder: Path, policy: PreTrainedPolicy, normaliser: Normaliser) -> None:
    """Write a policy so that `from_pretrained` and lerobot's tools open it; never leaves half a folder."""
    temporary = folder.with_name(folder.name + ".partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    policy.save_pretrained(temporary)
    before, after = make_pre_post_processors(policy.config, dataset_stats=normaliser.as_stats())
    before.save_pretrained(temporary)
    after.save_pretrained(temporary)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def load_policy(folder: Path, device: str = "cpu") -> LoadedPolicy:
    """Open a policy folder. Raises DataError when the folder or a part of it is missing."""
    for name in ("config.json", "model.safetensors", "policy_preprocessor.json"):
        if not (folder / name).exists():
            raise DataError(f"{folder}: not a policy folder, {name} is missing; train one with `robo-rl train`")
    config = PreTrainedConfig.from_pretrained(folder)
    config.device = device
    with contextlib.redirect_stdout(io.StringIO()):  # lerobot prints where it loads from
        policy = get_policy_class(config.type).from_pretrained(folder, config=config, strict=True)
    before, after = make_pre_post_processors(
        config,
        pretrained_path=str(folder),
        preprocessor_overrides={"device_processor": {"device": device}},
    )
    stats = next((step.stats for step in before.steps if getattr(step, "stats", None)), None)
    if stats is None:
        raise DataError(f"{folder}: the preprocessor holds no normalisation statistics")
    return LoadedPolicy(
        policy=policy, normaliser=Normaliser.from_stats(stats), preprocessor=before, postprocessor=after
    )
