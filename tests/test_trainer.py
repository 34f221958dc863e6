"""The trainer: stopping anywhere changes nothing, and a bad loss is named."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from robo_rl.errors import DataError
from robo_rl.trainer import Trainer, TrainerConfig


class Regression:
    """Fit y = 3 x, with dropout so that randomness matters."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def loss(self, batch):
        error = (self.module(batch["x"]) - 3 * batch["x"]) ** 2
        return error.mean(), {"error": float(error.mean().detach())}


def batch_at(step: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(16, 1, generator=torch.Generator().manual_seed(step))}


def make_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))


CONFIG = TrainerConfig(steps=40, batch_size=16, learning_rate=1e-2, warmup_steps=5, log_every=5, precision="fp32")


def fit(folder, config=CONFIG, stop_at=None):
    module = make_module()

    def on_step(step, loss):
        if step == stop_at:
            raise KeyboardInterrupt

    Trainer(config, folder, seed=3).fit(module, Regression(module), batch_at, on_step=on_step)
    return module


def test_a_run_stopped_and_continued_is_the_same_run(tmp_path):
    whole = fit(tmp_path / "whole")
    every_step = TrainerConfig(**{**CONFIG.__dict__, "checkpoint_every_s": 0.0})
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "parts", every_step, stop_at=23)
    continued = fit(tmp_path / "parts", every_step)
    for one, two in zip(whole.parameters(), continued.parameters(), strict=True):
        assert torch.equal(one, two)
    assert (tmp_path / "whole/metrics.jsonl").read_text() == (tmp_path / "parts/metrics.jsonl").read_text()


def test_the_seed_decides_the_result(tmp_path):
    one, two = fit(tmp_path / "a"), fit(tmp_path / "b")
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))
    module = make_module()
    Trainer(CONFIG, tmp_path / "c", seed=4).fit(module, Regression(module), batch_at)
    assert not all(torch.equal(p, q) for p, q in zip(one.parameters(), module.parameters(), strict=True))


def test_the_loss_falls_and_is_logged(tmp_path):
    fit(tmp_path, TrainerConfig(**{**CONFIG.__dict__, "steps": 300}))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["step"] == 1
    assert rows[-1]["step"] == 300
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert rows[-1]["lr"] < 0.1 * max(row["lr"] for row in rows)  # the cosine has come down


def test_a_loss_that_is_not_finite_names_the_step(tmp_path):
    class Broken(Regression):
        def loss(self, batch):
            loss, metrics = super().loss(batch)
            return loss * float("nan"), metrics

    module = make_module()
    with pytest.raises(DataError, match="loss is nan at step 0"):
        Trainer(CONFIG, tmp_path, seed=0).fit(module, Broken(module), batch_at)


def test_without_averaging_the_last_parameters_are_kept(tmp_path):
    # with decay 0 the average is the parameters themselves; with decay near 1 it lags behind them
    last = fit(tmp_path / "a", TrainerConfig(**{**CONFIG.__dict__, "ema": 0.0}))
    slow = fit(tmp_path / "b", TrainerConfig(**{**CONFIG.__dict__, "ema": 0.999}))
    start = make_module()

    def moved(module):
        return sum((p - q).norm().item() for p, q in zip(module.parameters(), start.parameters(), strict=True))

    assert moved(slow) < moved(last)
