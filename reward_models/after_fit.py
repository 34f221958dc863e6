"""What is measured on a fitted judge: goals of hops, worth of a tri-state step, calibration, soft outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from reward_models.calibrate import Calibration, fit_calibration
from reward_models.judge import CausalJudge, looked_at
from reward_models.soft_targets import soft_failure_targets
from reward_models.targets import EpisodeTargets
from reward_models.tri_state import TriState
from robo_rl.credit.arm import step_from_tri_state, unit_step
from robo_rl.errors import DataError
from robo_rl.types import Trajectory

GOALS = 4  # goal frames kept for an instruction
SUCCESSES = 32  # at most, for the worth of a step
FRAMES = 64  # of an episode, for its embedding


@torch.inference_mode()
def goal_states(judge: CausalJudge, episodes: Sequence[Trajectory]) -> dict[str, Tensor]:
    """Instruction -> hidden states (K, dim) of the last frames of successes, each seen by itself."""
    found: dict[str, list[Tensor]] = {}
    network, backbone = judge.network, judge.network.backbone
    for episode in episodes:
        if episode.success and len(found.setdefault(episode.instruction, [])) < GOALS:
            last = {c: torch.from_numpy(np.array(episode.images[c][-1:])) for c in backbone.cameras}
            hidden = network(backbone.encode(last)[None], [episode.instruction])
            found[episode.instruction].append(hidden[0, 0].float().cpu())
    return {text: torch.stack(parts) for text, parts in found.items() if parts}


def measure_unit(judge: CausalJudge, part: TriState, episodes: Sequence[Trajectory]) -> None:
    """A mean step's worth on training successes (METHODS 3.3); unchanged where none adds up to anything."""
    successes = [episode for episode in episodes if episode.success][:SUCCESSES]
    steps = []
    for signal in judge.score(successes):
        if signal.tri_state is not None:
            frames = looked_at(len(signal.progress), judge.config.stride)
            steps.append(step_from_tri_state(signal.tri_state[frames[:-1]]))
    try:
        part.prepare({"unit": unit_step(steps, [len(part) for part in steps])})
    except DataError:
        return


def calibrated(judge: CausalJudge, held: Sequence[Trajectory]) -> Calibration:
    """Fit and set the calibration of the first success head, on episodes that were not fitted to."""
    success = judge.network.success()
    if success is None or not held:
        return Calibration(reason="no success head, or no episodes held out")
    logits, device = [], next(success.parameters()).device
    for hidden in judge.embed(held):
        with torch.inference_mode():
            found = success.success_logits(torch.from_numpy(hidden).to(device))
        logits.append(np.zeros(len(hidden)) if found is None else found.cpu().numpy())
    made = fit_calibration(logits, np.array([episode.outcome.label for episode in held], dtype=np.float64))
    success.calibrate(made.scale, made.shift)
    return made


@torch.inference_mode()
def with_soft_outcomes(
    judge: CausalJudge, episodes: Sequence[Trajectory], targets: Sequence[EpisodeTargets]
) -> list[EpisodeTargets]:
    """Targets whose failures have soft outcomes (METHODS 2.3).

    The paper embeds episodes with V-JEPA 2; here an episode is the mean of the backbone's own image features over
    frames and places [O].
    """
    labelled = [number for number, target in enumerate(targets) if not np.isnan(target.outcome)]
    if not labelled:
        return list(targets)
    embedding = np.stack([_embedding(judge, episodes[number]) for number in labelled])
    success = np.array([targets[number].outcome == 1.0 for number in labelled])
    soft = soft_failure_targets(embedding, success, [_task(episodes[number]) for number in labelled])
    made = list(targets)
    for number, outcome in zip(labelled, soft, strict=True):
        made[number] = replace(targets[number], outcome=float(outcome))
    return made


def _task(episode: Trajectory) -> str:
    return episode.task or episode.instruction


def _embedding(judge: CausalJudge, episode: Trajectory) -> np.ndarray:
    backbone = judge.network.backbone
    frames = np.unique(np.linspace(0, len(episode), FRAMES).round().astype(np.int64))
    images = {c: torch.from_numpy(np.ascontiguousarray(episode.images[c][frames])) for c in backbone.cameras}
    features = backbone.encode(images).float()
    wide = features.flatten(3).mean(-1) if features.ndim > 4 else features  # maps: mean over places
    return np.asarray(wide.mean((0, 1)).cpu().numpy() if wide.ndim == 3 else wide.mean(0).cpu().numpy())
