"""Gradient steps that can be stopped anywhere: a step depends on its number and the seed, checkpoints hold the rest."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reward_models.training import one_cycle
from robo_rl.errors import DataError, RewardError

Report = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How many and how large."""

    count: int
    learning_rate: float
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    checkpoint_every: int = 50


def gradient_steps(
    parameters: Mapping[str, nn.Parameter],
    losses_at: Callable[[int], dict[str, Tensor]],
    steps: Steps,
    *,
    seed: int,
    checkpoint: Path | None = None,
    what: str = "",
    report: Report | None = None,
) -> dict[str, list[float]]:
    """AdamW on the sum of `losses_at(step)`, one learning rate cycle; curves of each loss and of "total".

    With a `checkpoint` file it goes on from there and ends with the same parameters; `what` names this fit, so that a
    checkpoint of another one is refused.

    Raises RewardError when the loss is not finite, DataError for a checkpoint that is damaged or of another fit.
    """
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in parameters.values():
        groups.setdefault(steps.weight_decay if parameter.ndim >= 2 else 0.0, []).append(parameter)
    optimiser = torch.optim.AdamW(
        [{"params": chosen, "weight_decay": decay} for decay, chosen in groups.items()], betas=(0.9, 0.98)
    )
    curves: dict[str, list[float]] = {}
    first = 0
    if checkpoint is not None and checkpoint.exists():
        first, curves = _continue(checkpoint, parameters, optimiser, what)
    for step in range(first, steps.count):
        for group in optimiser.param_groups:
            group["lr"] = steps.learning_rate * one_cycle(step, steps.count)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 1_000_003 + step)  # dropout of a step depends on (seed, step) only
            losses = losses_at(step)
        total = torch.stack(list(losses.values())).sum()
        if not torch.isfinite(total):
            raise RewardError(f"judge: the loss is {float(total)} at step {step}; lower judge.fit.learning_rate")
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(list(parameters.values()), steps.clip_norm)
        optimiser.step()
        for name, loss in {"total": total, **losses}.items():
            curves.setdefault(name, []).append(float(loss.detach()))
        last = step + 1 == steps.count
        if checkpoint is not None and (last or (step + 1) % steps.checkpoint_every == 0):
            _save(checkpoint, parameters, optimiser, {"what": what, "step": step + 1, "curves": curves})
        if report is not None:
            report(step + 1, steps.count)
    return curves


def _save(checkpoint: Path, parameters: Mapping[str, nn.Parameter], optimiser: Any, facts: dict[str, Any]) -> None:
    held = {name: parameter.detach() for name, parameter in parameters.items()}
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    temporary = checkpoint.with_name(f"{checkpoint.name}.partial-{os.getpid()}")
    torch.save({**facts, "parameters": held, "optimiser": optimiser.state_dict()}, temporary)
    os.replace(temporary, checkpoint)


def _continue(
    checkpoint: Path, parameters: Mapping[str, nn.Parameter], optimiser: Any, what: str
) -> tuple[int, dict[str, list[float]]]:
    try:
        facts = torch.load(checkpoint, weights_only=True, map_location="cpu")
        if facts["what"] != what or facts["parameters"].keys() != parameters.keys():
            raise DataError(f"{checkpoint}: belongs to another fit (other settings, episodes or seed); remove it")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(facts["parameters"][name])
        optimiser.load_state_dict(facts["optimiser"])
        return int(facts["step"]), facts["curves"]
    except (RuntimeError, ValueError, KeyError, EOFError, OSError, pickle.UnpicklingError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{checkpoint}: damaged checkpoint ({reason}); remove it to begin again") from None
