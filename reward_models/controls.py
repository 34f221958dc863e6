"""Videos whose right judgement is known: changes to an episode that a sound judge must notice.

Each takes an episode and a generator and gives another episode, or None where it cannot be made. Only pictures, length
and instruction change, so any `RewardModel` can be asked about the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from reward_models.wording import certainly_different, likeness
from robo_rl.types import Trajectory

Control = Callable[[Trajectory, np.random.Generator], Trajectory | None]


def show(episode: Trajectory, frames: np.ndarray, name: str) -> Trajectory:
    """The episode with its observations replaced by the frame numbers (n,), n >= 2, in this order.

    Actions and rewards no longer fit the pictures; they are kept as far as they go, because a judge sees none of them.
    """
    frames = np.asarray(frames, dtype=np.int64)
    steps = frames[:-1].clip(max=len(episode) - 1)
    return replace(
        episode,
        episode_id=f"{episode.episode_id}/{name}",
        images={camera: np.ascontiguousarray(pixels[frames]) for camera, pixels in episode.images.items()},
        state=episode.state[frames],
        actions=episode.actions[steps],
        controller=episode.controller[steps],
        reward=None,
        true_progress=None,
    )


def static(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The first frame all the time."""
    return show(episode, np.zeros(len(episode) + 1), "static")


def backwards(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The last frame first."""
    return show(episode, np.arange(len(episode), -1, -1), "reversed")


def shuffled(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """All frames in random order."""
    return show(episode, rng.permutation(len(episode) + 1), "shuffled")


def rewound(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """Nearly to the end, then back to the first fifth: what was done is undone."""
    turn, back = round(0.9 * len(episode)), round(0.2 * len(episode))
    return show(episode, np.concatenate([np.arange(turn + 1), np.arange(turn - 1, back - 1, -1)]), "rewound")


def truncated(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The first half."""
    return show(episode, np.arange(max(2, (len(episode) + 1) // 2)), "truncated")


def padded(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The first half, whose last frame then stands still until the video is twice as long as the episode was."""
    half = np.arange(max(2, (len(episode) + 1) // 2))
    return show(episode, np.concatenate([half, np.full(2 * (len(episode) + 1) - len(half), half[-1])]), "padded")


def blank(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """Black frames."""
    images = {camera: np.zeros(pixels.shape, np.uint8) for camera, pixels in episode.images.items()}
    return replace(episode, episode_id=f"{episode.episode_id}/blank", images=images)


def wrong_instruction(episodes: Sequence[Trajectory]) -> Control:
    """Another instruction of the same data that the episode certainly does not fulfil, one of the most alike."""
    asked = sorted({(episode.task, episode.instruction) for episode in episodes})

    def change(episode: Trajectory, rng: np.random.Generator) -> Trajectory | None:
        others = [
            (likeness(episode.instruction, text), text)
            for task, text in asked
            if certainly_different(episode.instruction, text, episode.task, task)
        ]
        if not others:
            return None
        best = max(others)[0]
        nearest = [text for alike, text in others if alike == best]
        text = nearest[int(rng.integers(len(nearest)))]
        return replace(episode, episode_id=f"{episode.episode_id}/wrong", instruction=text)

    return change
