"""CompactJudge: a small judge trained from scratch on a CPU. Progress, success, and the direction of every step."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from reward_models.heads import expected_progress
from reward_models.maps import frame_batches
from reward_models.network import CompactJudgeConfig, JudgeNetwork, mixed_precision
from reward_models.streaming import JudgeStream
from robo_rl.errors import ConfigError, DataError, RewardError
from robo_rl.nets import tokenize
from robo_rl.types import RewardSignal, Trajectory

__all__ = ["CompactJudge", "CompactJudgeConfig"]

_CONFIG, _PARAMETERS = "config.json", "model.safetensors"
BLOCK = 256  # frames of one episode that go through the transformer together


class CompactJudge:
    """A `RewardModel` on a CPU: watches every frame of every camera, one causal pass gives all T + 1 opinions.

    Built without cameras, it takes those of the trunks or of the data that it first meets. It sees pictures and the
    instruction, not the robot's own state: that would tell it what the arm does without looking at the task.
    """

    def __init__(self, config: CompactJudgeConfig | None = None, *, seed: int = 0) -> None:
        self.config = config or CompactJudgeConfig()
        self.seed = seed
        self.trunk_ready = False  # whether the trunk has been trained: by a policy, or here
        self._network: JudgeNetwork | None = None
        if self.config.cameras:
            self.build(self.config.cameras)

    @property
    def network(self) -> JudgeNetwork:
        if self._network is None:
            raise RewardError("this judge has not been fitted yet; fit it, or load one")
        return self._network

    def build(self, cameras: Sequence[str]) -> None:
        """Create the parameters for these cameras; nothing happens when they exist already."""
        if self._network is None:
            if not cameras:
                raise DataError("a judge needs at least one camera; the episodes have none")
            self.config = dataclasses.replace(self.config, cameras=tuple(cameras))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                self._network = JudgeNetwork(self.config, self.config.cameras).eval()

    def init_trunk(self, state_dicts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy a policy's convolutional trunks, camera -> parameters. Raises ConfigError where they do not fit."""
        self.build(self.config.cameras or tuple(state_dicts))
        for camera, trunk in zip(self.network.cameras, self.network.trunks, strict=True):
            if camera not in state_dicts:
                raise ConfigError(f"judge: no trunk for camera {camera!r}; given: {', '.join(state_dicts) or 'none'}")
            try:
                trunk.load_state_dict(dict(state_dicts[camera]))
            except RuntimeError as error:
                reason = " ".join(str(error).split())
                raise ConfigError(f"judge: the trunk of camera {camera!r} does not fit: {reason}") from None
        self.trunk_ready = True

    # --- judging ---------------------------------------------------------------------------------------

    @property
    def model_id(self) -> str:
        """`name@revision`, the revision a hash of all parameters."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return f"{self.config.name}@{digest.hexdigest()[:10]}"

    def score(self, trajectories: Sequence[Trajectory]) -> list[RewardSignal]:
        """An opinion of each trajectory, in order. Raises RewardError naming an episode that cannot be scored."""
        return [signal for signal, _ in self.observe(trajectories)]

    def embed(self, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
        """The hidden state at every observation, float32 (T+1, dim) each, in order."""
        return [hidden for _, hidden in self.observe(trajectories)]

    def observe(self, trajectories: Sequence[Trajectory]) -> Iterator[tuple[RewardSignal, np.ndarray]]:
        """Scores and hidden states of each trajectory in one pass; memory does not grow with their number."""
        network, model_id = self.network.eval(), self.model_id
        tokens: list[Tensor] = []
        batches = frame_batches(trajectories, network.cameras)
        for number, rows, images in batches:
            episode = trajectories[number]
            with torch.inference_mode():
                text = network.read(tokenize([episode.instruction]))
                with mixed_precision(self.config.precision):
                    maps = network.maps(images)
                tokens.append(network.frame_tokens(maps.float(), text.expand(len(maps), -1)))
                if rows.stop == len(episode) + 1:
                    yield self._signal(episode, torch.cat(tokens)[None], text, model_id)
                    tokens = []

    def _signal(
        self, episode: Trajectory, tokens: Tensor, text: Tensor, model_id: str
    ) -> tuple[RewardSignal, np.ndarray]:
        network, past, parts = self.network, None, []
        for first in range(0, tokens.shape[1], BLOCK):
            outputs, past = network.judge(tokens[:, first : first + BLOCK], text, past)
            parts.append(outputs)
        hidden = torch.cat([part.hidden[0] for part in parts])
        progress, spread = expected_progress(torch.cat([part.progress[0] for part in parts]))
        success = network.probability(torch.cat([part.success[0] for part in parts]))
        direction = network.heads.step(hidden[:-1], hidden[1:]).softmax(-1)
        try:
            signal = RewardSignal(
                episode_id=episode.episode_id,
                model_id=model_id,
                progress=progress.numpy(),
                success_prob=success.numpy(),
                tri_state=direction.numpy(),
                uncertainty=spread.numpy(),
            )
        except DataError as error:
            raise RewardError(f"{error}; the judge's parameters are damaged: fit it again") from None
        return signal, hidden.numpy()

    def stream(self, instruction: str) -> JudgeStream:
        """Judge a running episode frame by frame; equal to `score` on the whole."""
        return JudgeStream(self.network.eval(), instruction)

    # --- storage -----------------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write `config.json` and `model.safetensors`; the folder is the old one or the new one, never half."""
        folder = Path(folder)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        facts = {
            "type": "compact_judge",
            "model_id": self.model_id,
            "trunk_ready": self.trunk_ready,
            "seed": self.seed,
            "model": dataclasses.asdict(self.config),
        }
        (temporary / _CONFIG).write_text(json.dumps(facts, indent=1))
        save_file({k: v.contiguous() for k, v in self.network.state_dict().items()}, temporary / _PARAMETERS)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)

    @classmethod
    def load(cls, folder: Path | str) -> CompactJudge:
        """Open a judge. Raises DataError for a folder that is missing, damaged, or something else."""
        folder = Path(folder)
        try:
            facts = json.loads((folder / _CONFIG).read_text())
            if facts.get("type") != "compact_judge":
                raise DataError(f"{folder}: holds no compact judge, config.json says type {facts.get('type')!r}")
            judge = cls(CompactJudgeConfig(**facts["model"]), seed=facts["seed"])
            judge.network.load_state_dict(load_file(folder / _PARAMETERS))
            judge.trunk_ready = facts["trunk_ready"]
        except FileNotFoundError as error:
            raise DataError(f"{folder}: not a judge folder, {Path(error.filename or '').name} is missing") from None
        except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError, ConfigError) as error:
            raise DataError(f"{folder}: damaged judge: {' '.join(str(error).split())}") from None
        if judge.model_id != facts["model_id"]:
            raise DataError(f"{folder}: the parameters are not those of {facts['model_id']}; one file was exchanged")
        return judge
