"""The one trainer: device, precision, schedule, clipping, averaging, checkpoints, logs, progress."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

import torch
from torch import Tensor, nn

from robo_rl.errors import DataError
from robo_rl.precision import autocast


class Algorithm(Protocol):
    """An algorithm is a loss."""

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]: ...


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How long and how fast to train."""

    steps: int = 1000
    batch_size: int = 64
    learning_rate: float = 1e-3
    final_lr_share: float = 0.05  # the cosine ends here
    warmup_steps: int = 50
    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    ema: float = 0.995  # decay of the averaged parameters that are kept; 0 keeps the last ones
    precision: str = "auto"  # auto | bf16 | fp32
    device: str = "cpu"
    log_every: int = 20
    checkpoint_every_s: float = 30.0


class Trainer:
    """Fits a module to batches. A batch is a function of its step number, so a run can stop anywhere."""

    def __init__(self, config: TrainerConfig, folder: Path, *, seed: int) -> None:
        self._config, self._folder, self._seed = config, folder, seed

    def fit(
        self,
        module: nn.Module,
        algorithm: Algorithm,
        batch_at: Callable[[int], dict[str, Tensor]],
        *,
        on_step: Callable[[int, float], None] | None = None,
    ) -> None:
        """Train in place; `module` ends with the averaged parameters. Continues from the folder's checkpoint.

        Raises DataError naming the step when the loss is not finite.
        """
        config = self._config
        self._folder.mkdir(parents=True, exist_ok=True)
        module.to(config.device).train()
        parameters = [p for p in module.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            parameters, lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.95)
        )
        average = [p.detach().clone() for p in parameters]
        first = self._resume(module, optimizer, average)
        with self._open_log(first) as log:
            saved = time.monotonic()
            for step in range(first, config.steps):
                for group in optimizer.param_groups:
                    group["lr"] = self._rate(step)
                loss, metrics = self._step(algorithm, batch_at(step), step)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                norm = float(nn.utils.clip_grad_norm_(parameters, config.clip_norm))
                optimizer.step()
                self._average(average, parameters, step)
                value = float(loss.detach())
                if step % config.log_every == 0 or step + 1 == config.steps:
                    row = {"step": step + 1, "loss": value, "grad_norm": norm, "lr": self._rate(step), **metrics}
                    log.write(json.dumps(row) + "\n")
                    log.flush()
                if on_step is not None:
                    on_step(step + 1, value)
                if time.monotonic() - saved > config.checkpoint_every_s:
                    self._checkpoint(step + 1, module, optimizer, average)
                    saved = time.monotonic()
        with torch.no_grad():
            for kept, own in zip(average, parameters, strict=True):
                own.copy_(kept)
        module.eval()

    def _step(self, algorithm: Algorithm, batch: dict[str, Tensor], step: int) -> tuple[Tensor, dict[str, float]]:
        # Noise and dropout of a step depend on (seed, step) only, so that a resumed run is the same run.
        torch.manual_seed(self._seed * 1_000_003 + step)
        batch = {key: value.to(self._config.device, non_blocking=True) for key, value in batch.items()}
        with autocast(torch.device(self._config.device).type, self._config.precision):
            loss, metrics = algorithm.loss(batch)
        if not bool(torch.isfinite(loss)):
            raise DataError(
                f"the loss is {float(loss.detach())} at step {step}; try a smaller learning rate or precision=fp32"
            )
        return loss, metrics

    def _rate(self, step: int) -> float:
        config = self._config
        if step < config.warmup_steps:
            return config.learning_rate * (step + 1) / config.warmup_steps
        done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
        low = config.final_lr_share
        return config.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * done)))

    @torch.no_grad()
    def _average(self, average: list[Tensor], parameters: Sequence[Tensor], step: int) -> None:
        decay = min(self._config.ema, (step + 1) / (step + 10))
        torch._foreach_lerp_(average, list(parameters), 1 - decay)

    @property
    def _state_file(self) -> Path:
        return self._folder / "training_state.pt"

    def _checkpoint(
        self, step: int, module: nn.Module, optimizer: torch.optim.Optimizer, average: list[Tensor]
    ) -> None:
        temporary = self._state_file.with_suffix(".partial")
        state = {"step": step, "module": module.state_dict(), "optimizer": optimizer.state_dict(), "average": average}
        torch.save(state, temporary)
        os.replace(temporary, self._state_file)

    def _resume(self, module: nn.Module, optimizer: torch.optim.Optimizer, average: list[Tensor]) -> int:
        if not self._state_file.exists():
            return 0
        state = torch.load(self._state_file, map_location=self._config.device, weights_only=True)
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        for own, kept in zip(average, state["average"], strict=True):
            own.copy_(kept)
        return int(state["step"])

    def _open_log(self, first: int) -> TextIO:
        """The metrics file, without the rows a resumed run is about to write again."""
        path = self._folder / "metrics.jsonl"
        kept = []
        if first and path.exists():
            kept = [line for line in path.read_text().splitlines() if json.loads(line)["step"] <= first]
        path.write_text("".join(line + "\n" for line in kept))
        return path.open("a")
