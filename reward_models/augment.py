"""Clips of an episode with their labels, and changes to them whose right answer is known.

A clip lists frame numbers of one episode, so it costs no pixels and works on cached feature maps. Every function
takes a clip and gives a new one. Rewind and wrong instruction are ReWiND's (METHODS 7); hold, part and speed are ours
[O]; a part of an episode is simply a clip of fewer frames. All of them attack the same thing, a judge that tells the
time instead of watching.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reward_models.heads import PROGRESSIVE, REGRESSIVE, STAGNANT, UNKNOWN
from reward_models.targets import UNLABELLED, EpisodeTargets


@dataclass(frozen=True, kw_only=True, slots=True)
class Clip:
    """n frames of one episode in the order in which they are shown.

    Success targets are made while training (METHODS 2.7): where `label` is known it is the target. Elsewhere it
    is (1 - m) p_target(frame `link`) + m `outcome`, or p_target alone where `outcome` is NaN. `link` -1: no target.
    """

    frames: np.ndarray  # int64 (n,), frame numbers
    progress: np.ndarray  # float32 (n,), NaN: no target
    label: np.ndarray  # float32 (n,), NaN: none
    outcome: np.ndarray  # float32 (n,), NaN: not taught by an outcome
    link: np.ndarray  # int64 (n,), place in the clip to bootstrap from, -1: none
    weight: np.ndarray  # float32 (n,), of the success loss
    incomplete: np.ndarray  # bool (n,): certainly not the completed task

    def __len__(self) -> int:
        return len(self.frames)


def make_clip(targets: EpisodeTargets, frames: np.ndarray, hop: int, end_weight: float = 1.0) -> Clip:
    """A clip of rising frame numbers (n,). `end_weight` is the weight of the episode's last observation.

    Where the clip stops before the episode does, how it ended is not seen: its last frame has no label of its own.
    """
    frames = np.asarray(frames, dtype=np.int64)
    n, last = len(frames), len(targets.progress) - 1
    label, outcome = np.full(n, np.nan, np.float32), np.full(n, np.nan, np.float32)
    weight = np.ones(n, np.float32)
    taught = targets.by_policy[frames] & ~np.isnan(targets.outcome)
    outcome[taught] = targets.outcome
    link = np.minimum(np.searchsorted(frames, frames + hop), n - 1)
    link[~taught] = -1
    link[-1] = -1
    if frames[-1] == last:
        label[-1], weight[-1] = targets.outcome, end_weight
    return Clip(
        frames=frames,
        progress=targets.progress[frames],
        label=label,
        outcome=outcome,
        link=link,
        weight=weight,
        incomplete=np.full(n, targets.incomplete),
    )


def speed(first: int, last: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """At most `count` rising frame numbers from `first` to `last`, both kept, at an uneven speed: int64."""
    span = last - first
    count = min(count, span + 1)
    if count <= 2:
        return np.unique([first, last])
    pace = rng.uniform(0.5, 1.5, count - 1)
    place = np.concatenate([[0.0], np.cumsum(pace)]) / pace.sum()
    return np.unique(np.round(first + place * span).astype(np.int64))


def reverse(clip: Clip) -> Clip:
    """The whole clip backwards: progress runs backwards with the frames, and it ends in no success.

    The first third has no success target but its first frame's own: from there the end cannot be foreseen.
    """
    n = len(clip)
    back = _take(clip, np.arange(n)[::-1])
    back.link[:] = -1
    return _ends_badly(back, np.arange(max(1, n // 3), n))


def rewind(clip: Clip, turn: int, back: int) -> Clip:
    """Up to frame `turn`, then the `back` frames before it in reverse order; what was done is undone.

    What comes before the turn keeps its labels; nothing is bootstrapped across the turn.
    """
    back = min(back, turn)
    order = np.concatenate([np.arange(turn + 1), np.arange(turn - 1, turn - 1 - back, -1)])
    clip = _take(clip, order)
    link = np.where(np.arange(len(order)) < turn, np.minimum(clip.link, turn), clip.link)
    link[turn] = -1
    return _ends_badly(replace(clip, link=link), np.arange(turn + 1, len(order)))


def hold(clip: Clip, at: int, count: int) -> Clip:
    """Up to frame `at`, which then stands still for `count` frames more.

    A success that stands still stays a success. Anything else that stands still for good gets nowhere: it ends in 0.
    """
    order = np.concatenate([np.arange(at + 1), np.full(count, at)])
    link = np.minimum(clip.link, at)
    held = replace(_take(clip, order), link=_take(replace(clip, link=link), order).link)
    tail = np.arange(at + 1, len(order))
    if clip.label[at] == 1.0:
        return held  # with the label of the frame that is repeated
    held.label[at] = np.nan
    held.link[at] = -1
    return _ends_badly(held, tail)


def wrong_instruction(clip: Clip) -> Clip:
    """The same frames under an instruction that they certainly do not fulfil: progress and success are 0 throughout.

    At the start nobody can know yet, so the weight of the success loss grows along the clip [O].
    """
    n = len(clip)
    return replace(
        clip,
        progress=np.zeros(n, np.float32),
        label=np.zeros(n, np.float32),
        outcome=np.full(n, np.nan, np.float32),
        link=np.full(n, -1, np.int64),
        weight=np.linspace(0.0, 1.0, n, dtype=np.float32),
        incomplete=np.ones(n, dtype=bool),
    )


def mix_failures(chosen: np.ndarray, failed: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Replace successes among the `chosen` episodes until `share` of them failed: int64 (n,), (F,) -> int64 (n,).

    A judge of a policy that mostly succeeds hardly sees what failing looks like. No failed episodes, no change.
    """
    missing = round(share * len(chosen)) - int(np.isin(chosen, failed).sum())
    if missing <= 0 or not len(failed):
        return chosen
    places = rng.permutation(np.flatnonzero(~np.isin(chosen, failed)))[:missing]
    mixed = chosen.copy()
    mixed[places] = rng.choice(failed, len(places))
    return mixed


def drop_cameras(clips: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Which camera shows black in each clip, float64 (clips,): a share of all cameras in [0, 1), NaN for none."""
    return np.where(rng.random(clips) < share, rng.random(clips), np.nan)


def tri_state_targets(clip: Clip, still: np.ndarray, direction: np.ndarray | None = None) -> np.ndarray:
    """Class of every step of the clip, or -1: int64 (n-1,) [O, METHODS 3.2].

    The same frame again is stagnant, whoever acts. Where progress is known, a step forward (backward) in time is
    progressive (regressive), or stagnant if nothing moved in the frames that it spans. Under a wrong
    instruction every known progress is 0, and every step is stagnant. A person's `direction`, int8 (T,), goes before
    all that (METHODS 3.2: the paper's labels are human judgements); back in time it is turned round.
    """
    before, after = clip.frames[:-1], clip.frames[1:]
    moving = np.concatenate([[0], np.cumsum(~still)])
    forward = moving[after] - moving[before]
    known = ~np.isnan(clip.progress[:-1]) & ~np.isnan(clip.progress[1:])
    out = np.full(len(before), UNKNOWN, np.int64)
    out[known] = np.where(forward > 0, PROGRESSIVE, np.where(forward < 0, REGRESSIVE, STAGNANT))[known]
    nothing = known & (clip.progress[:-1] == 0.0) & (clip.progress[1:] == 0.0) & clip.incomplete[1:]
    out[nothing | (before == after)] = STAGNANT
    if direction is not None:
        for place in np.flatnonzero(~nothing & (before != after)):
            low, high = sorted((before[place], after[place]))
            given = np.unique(direction[low:high][direction[low:high] != UNLABELLED])
            if len(given) == 1:
                sign = given[0] * (1 if after[place] > before[place] else -1)
                out[place] = {1: PROGRESSIVE, 0: STAGNANT, -1: REGRESSIVE}[int(sign)]
    return out


def _take(clip: Clip, order: np.ndarray) -> Clip:
    """The clip's frames in another order. Links still point at places of the old order."""
    return Clip(**{name: getattr(clip, name)[order].copy() for name in Clip.__dataclass_fields__})


def _ends_badly(clip: Clip, tail: np.ndarray) -> Clip:
    """The places `tail` lead to 0 at the end, bootstrapping one place ahead; no outcome is mixed in."""
    label, outcome, link = clip.label.copy(), clip.outcome.copy(), clip.link.copy()
    label[tail], outcome[tail] = np.nan, np.nan
    link[tail] = tail + 1
    if len(tail):
        label[tail[-1]], link[tail[-1]] = 0.0, -1
    return replace(clip, label=label, outcome=outcome, link=link)
