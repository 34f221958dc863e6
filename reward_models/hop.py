"""Hops between states and their fusion (Robo-Dopamine, METHODS 4).

A hop is the share of the remaining way that lies between two states, or, going back, the share of the way done. The
head sees two frames' hidden states. For the comparison to be of states and not of how long the video has run, use a
backbone with `window: 1`, where a frame is seen by itself. Three perspectives give progress: adding up hops between
neighbours, the hop from the first frame, and the hop from a picture of the goal. Goals are the last frames of training
successes, kept with the judge for each instruction; for an instruction without one, two perspectives remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from reward_models.batches import ClipBatch
from reward_models.objective import Objective, Readout, head
from robo_rl.credit.shaping import consistency_weight, hop_gain
from robo_rl.errors import ConfigError

BINS = 25  # of hops, for the balance of training pairs


@dataclass(frozen=True, kw_only=True)
class HopConfig:
    """Training pairs and fusion. Raises ConfigError."""

    weight: float = 1.0
    pairs: int = 512  # of frames, in every batch
    other_clip: float = 0.5  # share of pairs whose first frame is of another clip of the same instruction
    fusion: str = "mean"  # mean | consistent (distrusted frames move it little)
    alpha: float = 1.0  # of the consistency weight; no published value is known

    def __post_init__(self) -> None:
        if self.fusion not in ("mean", "consistent"):
            raise ConfigError(f"objectives.hop.fusion must be mean or consistent, got {self.fusion!r}")
        if self.pairs < 1 or not 0 <= self.other_clip <= 1:
            raise ConfigError("objectives.hop: pairs must be positive and other_clip lie in [0, 1]")


class Hop(Objective):
    """One number in [-1, 1] for two frames."""

    kind: ClassVar[str] = "hop"

    def __init__(self, dim: int, config: HopConfig) -> None:
        super().__init__()
        self.config = config
        self.hop = head(3 * dim, dim, 1)
        self.goals = nn.ParameterDict()  # "0", "1", ...: hidden states of goal frames, (K, dim), not trained
        self._goal_of: dict[str, str] = {}

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        """Hidden states (..., dim) twice -> hops (...) in [-1, 1]."""
        return torch.tanh(self.hop(torch.cat([before, after, after - before], -1)).squeeze(-1).float())

    def loss(self, hidden: Tensor, batch: ClipBatch, slow: Tensor | None) -> dict[str, Tensor]:
        """Squared error on pairs, every bin of hops that occurs counting alike."""
        pairs = draw_pairs(batch, self.config)
        if not len(pairs):
            return {"hop": hidden.sum() * 0.0}
        flat, phi = hidden.flatten(0, 1), batch.progress.flatten()
        target = hop_targets(phi[pairs[:, 0]], phi[pairs[:, 1]])
        error = (self.between(flat[pairs[:, 0]], flat[pairs[:, 1]]) - target).square()
        place = ((target + 1.0) / 2.0 * (BINS - 1)).round().long()
        count = torch.bincount(place, minlength=BINS).float()
        weight = count.clamp(min=1.0).rsqrt()[place]
        return {"hop": self.config.weight * (error * weight).sum() / weight.sum()}

    # --- goals ---------------------------------------------------------------------------------------------

    def set_goals(self, goals: Mapping[str, Tensor]) -> None:
        """Instruction -> hidden states of goal frames (K, dim); replaces all."""
        self.goals = nn.ParameterDict(
            {
                str(n): nn.Parameter(hidden.float().clone(), requires_grad=False)
                for n, hidden in enumerate(goals.values())
            }
        )
        self._goal_of = {text: str(number) for number, text in enumerate(goals)}

    def prepare(self, facts: Mapping[str, Any]) -> None:
        names: Sequence[str] = facts.get("goals", ())
        if names:
            self._goal_of = {text: str(number) for number, text in enumerate(names)}

    def facts(self) -> dict[str, Any]:
        return {"goals": list(self._goal_of)}

    def goal(self, instruction: str) -> Tensor | None:
        """Hidden states (K, dim) of goal frames, None for an instruction without any."""
        name = self._goal_of.get(instruction)
        return None if name is None else self.goals[name]

    def reader(self, instruction: str) -> HopReader:
        return HopReader(self, self.goal(instruction))


def hop_targets(phi_from: Tensor, phi_to: Tensor) -> Tensor:
    """`credit.shaping.hop_label` on tensors: (n,) each in [0, 1] -> (n,) in [-1, 1]."""
    gain = phi_to - phi_from
    room = torch.where(gain >= 0, 1.0 - phi_from, phi_from)
    return torch.where(room > 0, gain / room.clamp(min=1e-8), torch.zeros_like(gain))


def draw_pairs(batch: ClipBatch, config: HopConfig) -> Tensor:
    """Places (n, 2) in the flattened batch of pairs of frames with known progress and one instruction.

    A function of the batch alone. About 1 pair in 20 is a frame and itself.
    """
    known = (~batch.progress.isnan() & batch.inside()).cpu().numpy()
    count = known.sum(1)
    able = np.flatnonzero(count)
    if not len(able):
        return torch.zeros(0, 2, dtype=torch.int64)
    rng = np.random.default_rng(int(batch.rows.sum()))
    texts = np.unique(batch.texts, return_inverse=True)[1][able]
    first = rng.integers(len(able), size=config.pairs)  # numbers among `able`
    second = first.copy()
    elsewhere = rng.random(config.pairs) < config.other_clip
    for text in np.unique(texts):
        mine = np.flatnonzero(elsewhere & (texts[first] == text))
        second[mine] = rng.choice(np.flatnonzero(texts == text), len(mine))
    flat, start = np.flatnonzero(known), np.cumsum(count) - count
    rows = able[np.stack([first, second])]  # (2, pairs)
    places = flat[start[rows] + (rng.random(rows.shape) * count[rows]).astype(np.int64)]
    same = rng.random(config.pairs) < 0.05
    places[1, same] = places[0, same]
    return torch.from_numpy(places.T.copy()).to(batch.progress.device)


class HopReader:
    """Fuses the perspectives frame by frame, so that a stream and a whole episode agree."""

    def __init__(self, objective: Hop, goal: Tensor | None) -> None:
        self.objective, self._goal = objective, goal
        self._first: Tensor | None = None
        self._before: Tensor | None = None
        self._phi, self._fused = 0.0, 0.0

    def append(self, hidden: Tensor) -> Readout:
        objective = self.objective
        fresh = self._first is None
        if self._first is None:
            self._first = hidden[:1]
        chain = hidden if self._before is None else torch.cat([self._before, hidden])
        hops = objective.between(chain[:-1], chain[1:]).cpu().numpy().astype(np.float64)
        forward = objective.between(self._first.expand_as(hidden), hidden).cpu().numpy().clip(0.0, 1.0)
        backward = forward if self._goal is None else self._from_goal(hidden, self._goal)
        self._before = hidden[-1:]
        return self._fuse(np.concatenate([[0.0], hops]) if fresh else hops, forward, backward, fresh)

    def _from_goal(self, hidden: Tensor, goal: Tensor) -> np.ndarray:
        """1 + H(goal, s), the mean over the goal frames."""
        count, length = len(goal), len(hidden)
        before = goal[:, None].expand(count, length, -1)
        hop = self.objective.between(before, hidden.expand(count, length, -1)).mean(0)
        return np.asarray((1.0 + hop.cpu().numpy()).clip(0.0, 1.0))

    def _fuse(self, hops: np.ndarray, forward: np.ndarray, backward: np.ndarray, fresh: bool) -> Readout:
        config, trust = self.objective.config, np.ones(len(hops))
        if self._goal is not None:
            trust = consistency_weight(forward, backward, alpha=config.alpha)
        incremental, fused = np.empty(len(hops)), np.empty(len(hops))
        for t, hop in enumerate(hops):
            middle = 0.5 * (float(forward[t]) + float(backward[t]))
            if not (fresh and t == 0):
                self._phi += float(hop_gain(self._phi, hop))
                step = middle - self._fused + float(hop_gain(self._fused, hop))
                self._fused += 0.5 * float(trust[t]) * step
            incremental[t], fused[t] = self._phi, self._fused
        if config.fusion == "mean":
            views = [incremental, forward] if self._goal is None else [incremental, forward, backward]
            fused = np.mean(views, axis=0)
        return {
            "progress": fused.clip(0.0, 1.0).astype(np.float32),
            "uncertainty": np.abs(forward - backward).astype(np.float32),
            "consistency": trust.astype(np.float32),
        }

    def whole(self, read: Readout) -> Readout:
        return read
