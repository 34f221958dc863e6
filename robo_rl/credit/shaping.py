"""Potential-based shaping (Ng, Harada, Russell 1999) and Robo-Dopamine's hop fusion. METHODS 4."""

from __future__ import annotations

import numpy as np

from robo_rl.errors import DataError


def shaping_reward(potential: np.ndarray, *, gamma: float, terminated: bool, chunk: int = 1) -> np.ndarray:
    """gamma^k Phi(s') - Phi(s) for each chunk of k steps: (T+1,) -> float64 (ceil(T / chunk),).

    The potential counts as 0 at a true end, success and failure alike, so that the discounted sum is
    -Phi(s_0) and no policy gains by it; at a timeout the state's own potential is kept, as the agent
    bootstraps there. `gamma` is the agent's discount of one step. A last chunk that is cut short
    is discounted by the steps it really has.

    Raises:
        DataError: fewer than 2 frames, gamma outside (0, 1], chunk < 1.
    """
    potential = np.array(potential, dtype=np.float64)
    if potential.ndim != 1 or len(potential) < 2:
        raise DataError(f"the potential must be (T+1,) with T >= 1, got {potential.shape}")
    if not 0 < gamma <= 1 or chunk < 1:
        raise DataError(f"shaping needs 0 < gamma <= 1 and chunk >= 1, got {gamma} and {chunk}")
    if terminated:
        potential[-1] = 0.0
    steps = len(potential) - 1
    begin = np.arange(0, steps, chunk)
    end = np.minimum(begin + chunk, steps)
    return gamma ** (end - begin) * potential[end] - potential[begin]


def hop_label(phi_from: np.ndarray, phi_to: np.ndarray) -> np.ndarray:
    """Hop between two states of progress in [0, 1], in [-1, 1].

    Forward (Phi_q - Phi_p) / (1 - Phi_p), the share of what is left; backward (Phi_q - Phi_p) / Phi_p, the
    share of what was reached. The paper decides by the frames' order, which is the sign for rising Phi.
    """
    phi_from, phi_to = np.asarray(phi_from, dtype=np.float64), np.asarray(phi_to, dtype=np.float64)
    gain = phi_to - phi_from
    room = np.where(gain >= 0, 1.0 - phi_from, phi_from)
    return np.divide(gain, room, out=np.zeros_like(gain), where=room > 0)


def hop_gain(phi: np.ndarray | float, hop: np.ndarray | float) -> np.ndarray:
    """Undo `hop_label`: dPhi = (1 - Phi) H for H >= 0, Phi H below. Phi + dPhi stays in [0, 1]."""
    hop = np.asarray(hop, dtype=np.float64)
    return np.where(hop >= 0, (1.0 - phi) * hop, phi * hop)


def fuse_incremental(hops: np.ndarray, *, start: float = 0.0) -> np.ndarray:
    """Phi_I: add up the hops between neighbouring states. (T,) in [-1, 1] -> float64 (T+1,) in [0, 1]."""
    phi = np.empty(len(hops) + 1)
    phi[0] = start
    for t, hop in enumerate(_hops(hops)):
        phi[t + 1] = phi[t] + hop_gain(phi[t], hop)
    return phi


def fuse_forward(hops_from_start: np.ndarray) -> np.ndarray:
    """Phi_F = H(s_init, s_t), clipped to [0, 1]: (T+1,) -> float64 (T+1,)."""
    return np.clip(_hops(hops_from_start), 0.0, 1.0)


def fuse_backward(hops_from_goal: np.ndarray) -> np.ndarray:
    """Phi_B = 1 + H(s_goal, s_t), clipped to [0, 1]: (T+1,) -> float64 (T+1,)."""
    return np.clip(1.0 + _hops(hops_from_goal), 0.0, 1.0)


def fuse_mean(incremental: np.ndarray, forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
    """Phi*: the mean of the three perspectives. (T+1,) each -> float64 (T+1,)."""
    return (np.asarray(incremental, dtype=np.float64) + forward + backward) / 3.0


def consistency_weight(forward: np.ndarray, backward: np.ndarray, *, alpha: float, epsilon: float = 1e-6) -> np.ndarray:
    """exp(-alpha D^2), D = |Phi_B - Phi_F| / (mean + epsilon): 1 where the views agree, near 0 out of distribution.

    alpha has no published value that we know of: the caller chooses.
    """
    forward, backward = np.asarray(forward, dtype=np.float64), np.asarray(backward, dtype=np.float64)
    distance = np.abs(backward - forward) / (0.5 * (forward + backward) + epsilon)
    return np.exp(-alpha * np.square(distance))


def fuse_consistent(
    forward: np.ndarray, backward: np.ndarray, hops: np.ndarray, *, alpha: float, start: float = 0.0
) -> np.ndarray:
    """Phi*_t = Phi*_{t-1} + (w/2) (mean_t - Phi*_{t-1} + dPhi_{t-1,t}): distrusted frames move it little.

    forward, backward: (T+1,) in [0, 1]; hops: (T,) between neighbours -> float64 (T+1,) in [0, 1].
    dPhi is the hop applied to Phi*_{t-1}, so a step is a mean of two values in [0, 1].
    """
    weight = consistency_weight(forward, backward, alpha=alpha)
    middle = 0.5 * (np.asarray(forward, dtype=np.float64) + np.asarray(backward, dtype=np.float64))
    if middle.shape != (len(hops) + 1,):
        raise DataError(f"{len(hops)} hops join {len(hops) + 1} states, got {middle.shape}")
    phi = np.empty(len(middle))
    phi[0] = start
    for t, hop in enumerate(_hops(hops), start=1):
        phi[t] = phi[t - 1] + 0.5 * weight[t] * (middle[t] - phi[t - 1] + hop_gain(phi[t - 1], hop))
    return phi


def _hops(hops: np.ndarray) -> np.ndarray:
    hops = np.asarray(hops, dtype=np.float64)
    bad = np.flatnonzero(~(np.abs(hops) <= 1))
    if len(bad):
        raise DataError(f"hops must lie in [-1, 1]; hop {bad[0]} is {hops[bad[0]]}")
    return hops
