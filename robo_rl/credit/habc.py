"""HABC credit (arXiv 2606.17043): advantages, gate and sample weights. METHODS 1.3, 1.4, 1.7."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from robo_rl.credit.kinds import FAILURE_KINDS, SUCCESS_KINDS, WindowKind
from robo_rl.credit.normalise import unit_mean
from robo_rl.credit.segments import look_ahead
from robo_rl.errors import DataError
from robo_rl.types import Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantages:
    """What the gate needs of each of the T steps of an episode."""

    viability: np.ndarray  # float64 (T,): p_v(s_t) = sigmoid(z_v), the mixing weight
    adv_viability: np.ndarray  # float64 (T,): A_v / tau_v
    adv_efficiency: np.ndarray  # float64 (T,): A_e / tau_e
    steps: np.ndarray  # int64 (T,): n', the steps each one really looks ahead


def sigmoid(logit: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(logit, dtype=np.float64)))


def habc_gate(viability: np.ndarray, adv_viability: np.ndarray, adv_efficiency: np.ndarray) -> np.ndarray:
    """HABC gate (METHODS 1.3): (N,), (N,), (N,) -> (N,) in [0, 2]; 1 means 'as demonstrated'.

    g = 1 + tanh((1 - p_v) A_v + p_v A_e): where success is in doubt, reward what makes it likelier;
    where it is near certain, reward what makes it sooner.
    """
    blend = (1.0 - viability) * adv_viability + viability * adv_efficiency
    return 1.0 + np.tanh(blend)


def warmup_gate(gate: np.ndarray, step: int, warmup_steps: int = 500) -> np.ndarray:
    """Gate 1 for the first `warmup_steps` gradient steps (METHODS 1.3, N_wu = 500), then the gate itself."""
    return np.ones_like(gate) if step < warmup_steps else gate


def advantages(
    z_v: np.ndarray,
    v_e: np.ndarray,
    outcome: Outcome,
    *,
    hop: int = 1,
    segment_ids: np.ndarray | None = None,
    success_row: int | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
    clip_logit: float | None = None,
) -> Advantages:
    """A_v and A_e of one episode (METHODS 1.3; hop > 1 is our reading, 1.7.1 [O]).

    With n' the steps looked ahead (at most `hop`),
        A_v = z_v(s_{t+n'}) - z_v(s_t),      A_e = -n' + V_e(s_{t+n'}) - V_e(s_t).

    Terminal rule. The paper's target is V_e = 0 *at* the terminal success step, whose own step costs
    nothing. So in a success, with L = `success_row` (the last step, T - 1), n' = min(hop, L - t), and a
    look ahead that reaches L reads 0 there instead of V_e(s_L):
        A_e = -(L - t) + 0 - V_e(s_t),   at L itself  A_e = 0 - V_e(s_L),   A_v = 0.
    On the exact countdown V_e(s_t) = -(L - t), A_e == 0 at every step, for every hop.
    In a failure (terminal too, but nothing is known of its steps to success) n' = min(hop, T - 1 - t)
    and the last step has A_v = A_e = 0. A timeout is not the end of the state: the final observation is
    read like any other, n' = min(hop, T - t); so it is for aborts and unknown ends, which carry no weight.
    A look ahead is shortened at a change of controller; the last step of a segment has A_v = A_e = 0.

    Args:
        z_v: (T+1,) viability logits of the observations.
        v_e: (T+1,) minus the expected steps to success.
        hop: frames to look ahead; 1 is the paper.
        segment_ids: (T,) one id for each run of one controller; None: a single segment.
        success_row: the row whose V_e target is 0. T - 1 is the paper; T for a critic that was taught
            0 at the final observation.
        scales: (tau_v, tau_e), divide A_v and A_e; (1, 1) is the paper. With hop n, tau_e = n keeps
            the tanh out of saturation.
        clip_logit: clip z_v to +- this before A_v (8 is our stabiliser); None is the paper.

    Raises DataError: lengths that do not agree, values that are not finite, hop < 1, scales <= 0.
    """
    z_v, v_e = _checked(z_v, v_e)
    if min(scales) <= 0:
        raise DataError(f"scales must be positive, got {scales}")
    steps = len(z_v) - 1
    segment_ids = np.zeros(steps, dtype=np.int64) if segment_ids is None else segment_ids
    if np.shape(segment_ids) != (steps,):
        raise DataError(f"segment ids must be ({steps},), got {np.shape(segment_ids)}")

    final_row = _final_row(outcome, steps, success_row)
    start, reached = np.arange(steps), look_ahead(segment_ids, hop, final_row)
    logit = z_v if clip_logit is None else np.clip(z_v, -clip_logit, clip_logit)
    v_next = v_e[reached]
    if outcome is Outcome.SUCCESS:
        v_next = np.where(reached == final_row, 0.0, v_next)
    return Advantages(
        viability=sigmoid(z_v[:steps]),
        adv_viability=(logit[reached] - logit[start]) / scales[0],
        adv_efficiency=(v_next - v_e[start] - (reached - start)) / scales[1],
        steps=reached - start,
    )


def _final_row(outcome: Outcome, steps: int, success_row: int | None) -> int:
    """The last row that a look ahead may read."""
    if outcome is Outcome.SUCCESS and success_row is not None:
        if success_row not in (steps - 1, steps):
            raise DataError(f"success_row must be the last step {steps - 1} or the final observation {steps}")
        return success_row
    return steps - 1 if outcome in (Outcome.SUCCESS, Outcome.FAILURE) else steps


def _checked(z_v: np.ndarray, v_e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z_v, v_e = np.asarray(z_v, dtype=np.float64), np.asarray(v_e, dtype=np.float64)
    if z_v.shape != v_e.shape or z_v.ndim != 1 or len(z_v) < 2:
        raise DataError(f"z_v and v_e must both be (T+1,) with T >= 1, got {z_v.shape} and {v_e.shape}")
    if not (np.isfinite(z_v).all() and np.isfinite(v_e).all()):
        bad = np.flatnonzero(~(np.isfinite(z_v) & np.isfinite(v_e)))[0]
        raise DataError(f"z_v and v_e must be finite; frame {bad} has {z_v[bad]} and {v_e[bad]}")
    return z_v, v_e


def habc_weights(
    kind: np.ndarray,
    gate: np.ndarray,
    *,
    reweight_interventions: bool = False,
    demo_weight: Literal["one", "gate"] = "one",
    failure_weight: Literal["zero", "gate", "positive"] = "zero",
    normalise: Literal["non_demo", "valid"] = "non_demo",
    count_failures: bool = False,
) -> np.ndarray:
    """Sample weights from window kinds and gates (METHODS 1.3, 1.4): (N,) int8, (N,) -> float32 (N,).

    Defaults are the paper's table: demonstrations 1, successful policy windows g, failed ones 0,
    interventions 1 (g with `reweight_interventions`), windows before an intervention 0 (masked; the
    paper does not say [O]). `gate` is read only where a weight depends on it.

    Args:
        demo_weight: "gate" weighs imperfect demonstrations by g too. Our extension [O].
        failure_weight: "gate": failed windows keep g; "positive": they keep max(g - 1, 0), the good
            parts of failed episodes. Both are our extensions [O].
        normalise: "non_demo" (the paper's Algorithm 1): everything but the demonstrations has mean 1,
            and the demonstrations have mean 1 by themselves. "valid" (the paper's text): all together.
        count_failures: whether failed windows of weight 0 count in that mean. They do not by default
            (METHODS 1.7.3 [O]): counted, successes are inflated by 1 / success rate.

    Raises:
        DataError: shapes that differ, an unknown option, a gate outside [0, 2] where it is needed, or
            no positive weight at all.
    """
    kind, gate = np.asarray(kind), np.asarray(gate, dtype=np.float64)
    if kind.shape != gate.shape or kind.ndim != 1:
        raise DataError(f"kind and gate must both be (N,), got {kind.shape} and {gate.shape}")
    demo, failure = kind == WindowKind.DEMO, np.isin(kind, FAILURE_KINDS)
    intervention = kind == WindowKind.INTERVENTION
    gated = np.isin(kind, SUCCESS_KINDS)
    gated |= intervention & reweight_interventions
    gated |= demo & (_choice("demo_weight", demo_weight, ("one", "gate")) == "gate")
    _choice("failure_weight", failure_weight, ("zero", "gate", "positive"))
    needed = gated | (failure & (failure_weight != "zero"))
    if (bad := np.flatnonzero(needed & ~((gate >= 0) & (gate <= 2)))).size:
        raise DataError(f"the gate must lie in [0, 2]; sample {bad[0]} has {gate[bad[0]]}")

    weight = np.zeros(len(kind))
    weight[demo | intervention] = 1.0
    weight[gated] = gate[gated]
    if failure_weight != "zero":
        weight[failure] = gate[failure] if failure_weight == "gate" else np.maximum(gate[failure] - 1.0, 0.0)

    usable = demo | intervention | np.isin(kind, SUCCESS_KINDS)
    valid = usable | (failure & ((weight > 0) | count_failures))
    if not (weight > 0).any():
        raise DataError(f"no sample has positive weight: {_census(kind)}")
    if _choice("normalise", normalise, ("non_demo", "valid")) == "valid":
        return unit_mean(weight, valid)
    result = np.zeros(len(kind), dtype=np.float32)
    for group in (demo, valid & ~demo):
        if weight[group].any():
            result[group] = unit_mean(weight[group])
    return result


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise DataError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def _census(kind: np.ndarray) -> str:
    counts = [(int((kind == k).sum()), k.name.lower()) for k in WindowKind]
    return ", ".join(f"{count} {name}" for count, name in counts if count) or "there are no samples"
