"""From judged experience to sample weights: critics, advantages, the gate, and its alternatives.

The critics look at frozen features (the judge's or the policy's) and are cross-fitted over episodes:
an episode's credit never comes from a critic that was trained on that episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from robo_rl.credit.baselines import aw_bc_weights, awr_weights, filtered_bc_weights, plain_bc_weights, rabc_weights
from robo_rl.credit.habc import advantages, habc_gate, habc_weights
from robo_rl.credit.kinds import WindowKind, efficiency_ok, outcome_labels
from robo_rl.credit.normalise import unit_mean, weight_summary
from robo_rl.credit.segments import frame_deltas
from robo_rl.credit.smoothing import smooth_within_episodes
from robo_rl.critics import CriticConfig, Critics, cross_fit, fit_critics
from robo_rl.data import EpisodeSet
from robo_rl.data.windows import find_windows, segments
from robo_rl.errors import DataError
from robo_rl.types import RewardSignal, Trajectory


@dataclass(frozen=True, kw_only=True)
class WeighConfig:
    """What `weigh` needs to know; the fields are those of the experiment file's `credit` section."""

    type: str = "habc"
    viability: str = "critic"
    hop: int = 8
    tau_v: float = 1.0
    tau_e: float = 1.0
    clip_logit: float = 8.0
    smooth: int = 1
    demo_weight: Literal["one", "gate"] = "one"
    failure_weight: Literal["zero", "positive"] = "zero"
    critic: CriticConfig = field(default_factory=CriticConfig)
    folds: int = 3
    awr_beta: float = 0.1


def weigh_config(settings: Any) -> WeighConfig:
    """From any object with at least these fields (the experiment file's `credit` section has more)."""
    return WeighConfig(**{f.name: getattr(settings, f.name) for f in fields(WeighConfig)})


@dataclass(frozen=True, kw_only=True)
class Weighing:
    """Credit of every frame of a dataset, and the figures to log beside it."""

    weight: np.ndarray  # float32 (N,), 0 on final rows and masked frames
    kind: np.ndarray  # int8 (N,), a `WindowKind`
    gate: np.ndarray  # float32 (N,), NaN where the method has none
    viability: np.ndarray  # float32 (N,), p_v; NaN where the method has none
    efficiency: np.ndarray  # float32 (N,), V_e in frames; NaN where the method has none
    summary: dict[str, float]


def weigh(
    episodes: EpisodeSet,
    signals: Sequence[RewardSignal],
    features: np.ndarray | None,
    config: WeighConfig,
    *,
    seed: int,
) -> tuple[Weighing, Critics | None]:
    """Sample weights of all frames, and (for HABC) critics fitted to all episodes, to show the gate elsewhere.

    `features` float32 (N, D) are needed by HABC alone.

    Raises DataError when a signal is missing or belongs to another episode, or when no frame has positive weight.
    """
    windows = find_windows(episodes)
    kind = np.asarray(windows.kind)
    blank = np.full(len(kind), np.nan, np.float32)
    if len(signals) != len(episodes) and config.type not in ("bc", "filtered_bc"):
        raise DataError(f"{len(episodes)} episodes but {len(signals)} were scored; score the whole dataset first")
    _check_order(episodes, signals)
    if config.type == "habc":
        return _habc(episodes, kind, signals, features, config, seed)
    weight = _baseline(episodes, kind, signals, config)
    plain = Weighing(
        weight=weight,
        kind=kind,
        gate=blank,
        viability=blank,
        efficiency=blank,
        summary=_summary(weight, kind),
    )
    return plain, None


def _check_order(episodes: EpisodeSet, signals: Sequence[RewardSignal]) -> None:
    for episode, signal in zip(episodes, signals, strict=False):  # methods that need no judge are given none
        if signal.episode_id != episode.episode_id or len(signal.progress) != len(episode) + 1:
            raise DataError(
                f"the score of {signal.episode_id!r} ({len(signal.progress)} frames) stands where that of episode "
                f"{episode.episode_id!r} ({len(episode) + 1} frames) is due; score the dataset again"
            )


def _baseline(
    episodes: EpisodeSet, kind: np.ndarray, signals: Sequence[RewardSignal], config: WeighConfig
) -> np.ndarray:
    usable = kind != WindowKind.EXCLUDED
    lengths = np.asarray(episodes.lengths)
    if config.type == "bc":
        raw = plain_bc_weights(kind)
    elif config.type == "filtered_bc":
        raw = filtered_bc_weights(kind)
    else:
        progress = np.concatenate([signal.progress for signal in signals])
        if config.type == "awr":
            raw = awr_weights(frame_deltas(progress, lengths, config.hop, end="last_window"), beta=config.awr_beta)
        elif config.type == "ra_bc":
            raw = rabc_weights(progress, lengths, hop=config.hop)
        else:
            raw = aw_bc_weights(progress, lengths, hop=config.hop)
    return unit_mean(np.where(usable, raw, 0.0), usable & (raw > 0))


def _habc(
    episodes: EpisodeSet,
    kind: np.ndarray,
    signals: Sequence[RewardSignal],
    features: np.ndarray | None,
    config: WeighConfig,
    seed: int,
) -> tuple[Weighing, Critics]:
    if features is None:
        raise DataError("HABC needs features of every frame; score the dataset with a judge first")
    lengths = np.asarray(episodes.lengths)
    arrays = critic_arrays(episodes, kind, demos_teach_efficiency=config.demo_weight == "gate")
    fitted = cross_fit(
        features, arrays, np.asarray(episodes.episode_of_frame), folds=config.folds, config=config.critic, seed=seed
    )
    z_v, v_e = fitted.z_v, fitted.v_e
    if config.viability == "td_success":
        z_v = _success_logits(signals)
    z_v = smooth_within_episodes(z_v, lengths, config.smooth)
    v_e = smooth_within_episodes(v_e, lengths, config.smooth)
    gate = np.ones(len(kind), np.float32)
    first = np.asarray(episodes.first_frame)
    for number, episode in enumerate(episodes):
        rows = slice(first[number], first[number] + lengths[number])
        gate[rows][:-1] = episode_gate(episode, z_v[rows], v_e[rows], config)
    weight = habc_weights(kind, gate, demo_weight=config.demo_weight, failure_weight=config.failure_weight)
    summary = _summary(weight, kind) | {f"critic_{key}": float(value) for key, value in fitted.metrics.items()}
    for name in ("AUTONOMOUS_SUCCESS", "AUTONOMOUS_FAILURE", "DEMO"):
        chosen = gate[kind == WindowKind[name]]
        if len(chosen):
            summary[f"gate_mean_{name.lower()}"] = float(chosen.mean())
            summary[f"gate_std_{name.lower()}"] = float(chosen.std())
    result = Weighing(
        weight=weight,
        kind=kind,
        gate=gate,
        viability=(0.5 * (1 + np.tanh(0.5 * z_v))).astype(np.float32),
        efficiency=v_e.astype(np.float32),
        summary=summary,
    )
    owner = np.asarray(episodes.episode_of_frame)
    return result, fit_critics(features, arrays, owner, config=config.critic, seed=seed)


def episode_gate(episode: Trajectory, z_v: np.ndarray, v_e: np.ndarray, config: WeighConfig) -> np.ndarray:
    """HABC gate of every step, (T+1,), (T+1,) -> float32 (T,). V_e is 0 at the final observation of a success."""
    advantage = advantages(
        z_v,
        v_e,
        episode.outcome,
        hop=config.hop,
        segment_ids=segments(episode.controller),
        success_row=len(episode),
        scales=(config.tau_v, config.tau_e),
        clip_logit=config.clip_logit,
    )
    gate = habc_gate(advantage.viability, advantage.adv_viability, advantage.adv_efficiency)
    return np.clip(gate, 0.0, 2.0).astype(np.float32)


def critic_arrays(episodes: EpisodeSet, kind: np.ndarray, *, demos_teach_efficiency: bool) -> dict[str, np.ndarray]:
    """Labels and masks of the two critics, one row a frame (METHODS 1.2, 1.4).

    The final observation of an episode belongs to the episode's last window, and is V_e's zero in a success.
    """
    final = np.asarray(episodes.is_final)
    owner = np.asarray(episodes.episode_of_frame)
    success = np.array([episode.success for episode in episodes])[owner]
    seen = kind.copy()
    seen[final] = kind[np.flatnonzero(final) - 1]
    labels = outcome_labels(seen)
    efficient = efficiency_ok(seen, success)
    if demos_teach_efficiency:
        efficient |= (seen == WindowKind.DEMO) & success
    index = np.arange(len(kind))
    return {
        "label": np.nan_to_num(labels),
        "outcome_ok": ~np.isnan(labels),
        "ve_ok": efficient,
        "terminal_success": final & success,
        "next_index": np.where(final, index, index + 1),
    }


def _success_logits(signals: Sequence[RewardSignal]) -> np.ndarray:
    parts = []
    for signal in signals:
        if signal.success_prob is None:
            raise DataError(f"judge {signal.model_id!r} has no success head; use credit.viability: critic")
        p = np.clip(signal.success_prob.astype(np.float64), 1e-4, 1 - 1e-4)
        parts.append(np.log(p) - np.log1p(-p))
    return np.concatenate(parts)


def _summary(weight: np.ndarray, kind: np.ndarray) -> dict[str, float]:
    counted = (kind != WindowKind.EXCLUDED) & (kind != WindowKind.PRE_INTERVENTION)
    return weight_summary(weight, counted & ((weight > 0) | (kind == WindowKind.DEMO)))
