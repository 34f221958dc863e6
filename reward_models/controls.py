"""Videos whose right judgement is known: changes to an episode that a sound judge must notice.

Each takes an episode and a generator and gives another episode, or None where it cannot be made. Only pictures, length
and instruction change, so any `RewardModel` can be asked about the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from reward_models.wording import certainly_different, likeness, reworded
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


def static_last(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The last frame all the time."""
    return show(episode, np.full(len(episode) + 1, len(episode)), "static-last")


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


def truncated(share: float) -> Control:
    """The first `share` of the frames, at least two."""

    def change(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
        return show(episode, np.arange(max(2, int(share * (len(episode) + 1)))), f"truncated-{share:g}")

    return change


def faster(episode: Trajectory, rng: np.random.Generator) -> Trajectory | None:
    """Every second frame, and the last."""
    frames = np.unique(np.append(np.arange(0, len(episode) + 1, 2), len(episode)))
    return show(episode, frames, "faster") if len(frames) >= 2 else None


def slower(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """Every frame twice."""
    return show(episode, np.repeat(np.arange(len(episode) + 1), 2), "slower")


def padded(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The first half, whose last frame then stands still until the video is twice as long as the episode was."""
    half = np.arange(max(2, (len(episode) + 1) // 2))
    return show(episode, np.concatenate([half, np.full(2 * (len(episode) + 1) - len(half), half[-1])]), "padded")


def blank(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """Black frames."""
    images = {camera: np.zeros(pixels.shape, np.uint8) for camera, pixels in episode.images.items()}
    return replace(episode, episode_id=f"{episode.episode_id}/blank", images=images)


def one_camera(episode: Trajectory, rng: np.random.Generator) -> Trajectory | None:
    """Every camera shows what the first one sees; None for a single camera or for pictures of different sizes."""
    return _cameras(episode, lambda cameras: [cameras[0]] * len(cameras), "one-camera")


def swapped_cameras(episode: Trajectory, rng: np.random.Generator) -> Trajectory | None:
    """Every camera shows what its neighbour sees."""
    return _cameras(episode, lambda cameras: [*cameras[1:], cameras[0]], "swapped")


def _cameras(episode: Trajectory, order: Callable[[list[str]], list[str]], name: str) -> Trajectory | None:
    cameras = list(episode.images)
    if len(cameras) < 2 or len({pixels.shape for pixels in episode.images.values()}) > 1:
        return None
    images = {camera: episode.images[shown] for camera, shown in zip(cameras, order(cameras), strict=True)}
    return replace(episode, episode_id=f"{episode.episode_id}/{name}", images=images)


def _pictures(episode: Trajectory, change: Callable[[np.ndarray], np.ndarray], name: str) -> Trajectory:
    """All pictures through a function of float32 (n, H, W, 3); a few frames at a time."""
    images = {}
    for camera, pixels in episode.images.items():
        out = np.empty(pixels.shape, np.uint8)
        for first in range(0, len(pixels), 64):
            out[first : first + 64] = np.clip(change(pixels[first : first + 64].astype(np.float32)), 0, 255)
        images[camera] = out
    return replace(episode, episode_id=f"{episode.episode_id}/{name}", images=images)


def brightness(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """Three quarters as bright, or 1.25 times."""
    factor = 0.75 if rng.random() < 0.5 else 1.25
    return _pictures(episode, lambda pixels: pixels * factor, "brightness")


def noise(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """Grain with a deviation of 10 grey levels, new in every frame."""
    return _pictures(episode, lambda pixels: pixels + rng.normal(0, 10, pixels.shape).astype(np.float32), "noise")


def cropped(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The camera moved: pictures shifted by 1/16 of their width and height, the edge repeated."""
    down, right = (int(sign) for sign in rng.choice([-1, 1], 2))

    def shift(pixels: np.ndarray) -> np.ndarray:
        rows = (np.arange(pixels.shape[1]) + down * (pixels.shape[1] // 16)).clip(0, pixels.shape[1] - 1)
        columns = (np.arange(pixels.shape[2]) + right * (pixels.shape[2] // 16)).clip(0, pixels.shape[2] - 1)
        return pixels[:, rows][:, :, columns]

    return _pictures(episode, shift, "cropped")


def empty_instruction(episode: Trajectory, rng: np.random.Generator) -> Trajectory:
    """No instruction at all."""
    return replace(episode, episode_id=f"{episode.episode_id}/empty", instruction="")


def paraphrase(episode: Trajectory, rng: np.random.Generator) -> Trajectory | None:
    """The same request in other words; None where no word of it is known to have a synonym."""
    text = reworded(episode.instruction)
    if text is None:
        return None
    return replace(episode, episode_id=f"{episode.episode_id}/paraphrase", instruction=text)


def other_video(episodes: Sequence[Trajectory]) -> Control:
    """The video of another successful episode whose instruction is certainly a different one."""

    def change(episode: Trajectory, rng: np.random.Generator) -> Trajectory | None:
        others = [
            other
            for other in episodes
            if other.success and certainly_different(episode.instruction, other.instruction, episode.task, other.task)
        ]
        if not others:
            return None
        shown = others[int(rng.integers(len(others)))]
        return replace(
            shown,
            episode_id=f"{episode.episode_id}/other-video",
            instruction=episode.instruction,
            task=episode.task,
            true_progress=None,
        )

    return change


def wrong_instruction(episodes: Sequence[Trajectory], *, hard: bool = True) -> Control:
    """Another instruction of the same data that the episode certainly does not fulfil.

    `hard`: one of the most alike ("red" for "blue"); otherwise one of the least alike (another task).
    """
    asked = sorted({(episode.task, episode.instruction) for episode in episodes})

    def change(episode: Trajectory, rng: np.random.Generator) -> Trajectory | None:
        others = [
            (likeness(episode.instruction, text), text)
            for task, text in asked
            if certainly_different(episode.instruction, text, episode.task, task)
        ]
        if not others:
            return None
        best = max(others)[0] if hard else min(others)[0]
        nearest = [text for alike, text in others if alike == best]
        text = nearest[int(rng.integers(len(nearest)))]
        return replace(episode, episode_id=f"{episode.episode_id}/wrong", instruction=text)

    return change
