"""`robo-rl reward show`: several judges' opinions of a dataset on one page."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robo_rl.app.fit_file import episode_numbers
from robo_rl.data import EpisodeSet, read_episodes, read_reward_table
from robo_rl.data.subtasks import Subtasks, read_subtasks
from robo_rl.errors import DataError
from robo_rl.report.episode import EpisodeView, replace_file
from robo_rl.report.judges import JudgedEpisode, JudgeFigures, render_judges
from robo_rl.types import RewardSignal, Trajectory

EPISODES = 6  # shown when nobody says which
FRAMES, HEIGHT = 300, 160  # of a video on the page, at most


def command(options: argparse.Namespace) -> int:
    """Write the page."""
    episodes = read_episodes(options.data)
    names = _names(options.tables)
    signals = {name: read_reward_table(path, episodes) for name, path in zip(names, options.tables, strict=True)}
    if options.episodes is None:
        numbers = list(range(min(EPISODES, len(episodes))))
    else:
        numbers = episode_numbers(options.episodes, len(episodes))
    subtasks = {} if options.subtasks is None else read_subtasks(options.subtasks, episodes)
    page = render(episodes, signals, numbers, subtasks)
    replace_file(options.out, page.encode())
    print(f"page: {options.out}")
    return 0


def render(
    episodes: EpisodeSet,
    signals: Mapping[str, Sequence[RewardSignal]],
    numbers: Sequence[int],
    subtasks: Mapping[int, Subtasks],
) -> str:
    """The page as text: `signals` of all episodes by judge, `numbers` of the episodes that are shown."""
    chosen = {number: episodes[number] for number in numbers}
    truths = {number: _truth(episode, subtasks.get(number)) for number, episode in chosen.items()}
    judged = [
        _judged(number, episode, {name: given[number] for name, given in signals.items()}, truths, subtasks)
        for number, episode in chosen.items()
    ]
    figures = [_figures(name, [given[n] for n in numbers], chosen, truths) for name, given in signals.items()]
    name = episodes.root.resolve().name
    thinned = " Videos on this page are thinned and small; curves are complete." if judged else ""
    facts = (
        f"{len(numbers)} of {len(episodes)} episodes of {name}, {episodes.fps:g} frames a second, "
        f"{len(signals)} judge{'s' if len(signals) != 1 else ''}.{thinned}"
    )
    return render_judges(f"Judges on {name}", facts, figures, judged)


def _names(tables: Sequence[Path]) -> list[str]:
    """A word for each table: its file's name. Raises DataError when two are alike."""
    names = [path.stem for path in tables]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two tables are called {twice!r}; copy one to another name")
    return names


def _truth(episode: Trajectory, subtasks: Subtasks | None) -> np.ndarray | None:
    """Annotated progress: from sub-task boundaries, else the simulator's."""
    from reward_models.targets import boundary_progress

    if subtasks is not None:
        return boundary_progress(subtasks.frames, len(episode) + 1)
    return episode.true_progress


def _judged(
    number: int,
    episode: Trajectory,
    opinions: Mapping[str, RewardSignal],
    truths: Mapping[int, np.ndarray | None],
    subtasks: Mapping[int, Subtasks],
) -> JudgedEpisode:
    marks: list[tuple[int, str]] = []
    if number in subtasks:
        own = subtasks[number]
        marks = [
            (int(frame), name or f"part {place + 1}")
            for place, (frame, name) in enumerate(zip(own.frames[:-1], own.names, strict=True))
        ]
    progress = {name: signal.progress for name, signal in opinions.items()}
    title = f"Episode {number}: {episode.episode_id}"
    return JudgedEpisode(
        title=title,
        instruction=episode.instruction,
        outcome=episode.outcome,
        fps=episode.fps,
        progress=progress,
        truth=truths[number],
        marks=marks,
        view=_view(number, title, episode, progress, truths[number], [frame for frame, _ in marks]),
    )


def _view(
    number: int,
    title: str,
    episode: Trajectory,
    progress: Mapping[str, np.ndarray],
    truth: np.ndarray | None,
    marks: Sequence[int],
) -> EpisodeView:
    """Fewer and smaller frames, evenly spread, and the curves at those."""
    step = max(1, -(-(len(episode) + 1) // FRAMES))
    frames: np.ndarray = np.arange(0, len(episode) + 1, step)
    if len(frames) < 2:
        frames = np.array([0, len(episode)])
    names = list(progress)
    return EpisodeView(
        key=f"episode-{number}",
        title=title,
        group="demonstration",
        instruction=episode.instruction,
        task=episode.task,
        outcome=episode.outcome,
        index=number,
        policy=episode.policy_id,
        fps=episode.fps / step,
        frames={camera: _small(pixels, frames) for camera, pixels in episode.images.items()},
        progress=progress[names[0]][frames],
        others={name: progress[name][frames] for name in names[1:]},
        true_progress=None if truth is None else truth[frames].astype(np.float32),
        marks=[frame / step for frame in marks],
        note=episode.note,
    )


def _small(pixels: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Some frames, at most HEIGHT high: every k-th row and column, averaged."""
    k = -(-pixels.shape[1] // HEIGHT)
    if k == 1:
        return np.ascontiguousarray(pixels[frames])
    height, width = pixels.shape[1] // k * k, pixels.shape[2] // k * k
    out = np.empty((len(frames), height // k, width // k, 3), np.uint8)
    for place, frame in enumerate(frames):
        cut = pixels[frame, :height, :width].reshape(height // k, k, width // k, k, 3)
        out[place] = cut.mean((1, 3)).round()
    return out


def _figures(
    name: str,
    signals: Sequence[RewardSignal],
    episodes: Mapping[int, Trajectory],
    truths: Mapping[int, np.ndarray | None],
) -> JudgeFigures:
    from scipy.stats import pearsonr

    from reward_models.metrics import mean_defined, voc

    order = mean_defined([voc(s.progress) for s, e in zip(signals, episodes.values(), strict=True) if e.success])
    known = [(s.progress, t) for s, n in zip(signals, episodes, strict=True) if (t := truths[n]) is not None]
    correlations = [float(pearsonr(p, t).statistic) for p, t in known if np.ptp(p) > 0 and np.ptp(t) > 0]
    undefined: dict[str, str] = {}
    if not order.defined:
        undefined["voc"] = order.reason or "no episode succeeded"
    if not known:
        undefined |= dict.fromkeys(("pearson", "mse"), "no annotated progress; give --subtasks")
    elif not correlations:
        undefined["pearson"] = "progress is constant"
    squares: Any = [np.square(p - t) for p, t in known]
    return JudgeFigures(
        name=name,
        model_id=signals[0].model_id,
        frames=sum(len(signal.progress) for signal in signals),
        abstained=sum(int(signal.abstained.sum()) for signal in signals if signal.abstained is not None),
        voc=order.value if order.defined else None,
        pearson=float(np.mean(correlations)) if correlations else None,
        mse=float(np.concatenate(squares).mean()) if known else None,
        undefined=undefined,
    )
