"""`robo-rl reward show`: several judges' opinions of a dataset on one page."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from robo_rl.app.fit_file import episode_numbers
from robo_rl.data import EpisodeSet, read_episodes, read_reward_table
from robo_rl.data.subtasks import Subtasks, read_subtasks
from robo_rl.errors import DataError
from robo_rl.report.episode import EpisodeView, replace_file
from robo_rl.report.judges import JudgedEpisode, JudgeFigures, render_judges
from robo_rl.report.video import resized
from robo_rl.statistics import Estimate
from robo_rl.types import RewardSignal, Trajectory

EPISODES = 6  # shown when nobody says which
FRAMES, ALL_FRAMES, FEWEST = 300, 6000, 30  # of one video at most; of all together, as long as each keeps FEWEST
PIXELS = 110_000  # of all cameras of one frame together: 221 x 165 each for three
CHUNK = 32  # large frames in memory at once

Signals = Mapping[str, Sequence[RewardSignal | None]]  # judge -> one an episode, None where it skipped that


def command(options: argparse.Namespace) -> int:
    """Write the page."""
    episodes = read_episodes(options.data)
    if options.episodes is None:
        numbers = list(range(min(EPISODES, len(episodes))))
    else:
        numbers = episode_numbers(options.episodes, len(episodes))
    chosen = episodes.select(numbers)
    names = table_names(options.tables)
    signals = {
        name: read_reward_table(path, chosen, allow_missing=True)
        for name, path in zip(names, options.tables, strict=True)
    }
    subtasks = {} if options.subtasks is None else read_subtasks(options.subtasks, episodes)
    parts = {place: subtasks[number] for place, number in enumerate(numbers) if number in subtasks}
    page = render(chosen, signals, numbers=numbers, total=len(episodes), subtasks=parts)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(options.out, page.encode())
    print(f"page: {options.out}")
    return 0


def table_names(tables: Sequence[Path]) -> list[str]:
    """A short word for each table: its file's name, with as many folders as tell it from the others.

    Raises DataError when one is given twice.
    """
    whole = [path.resolve().with_suffix("") for path in tables]
    twice = next((path for path in whole if whole.count(path) > 1), None)
    if twice is not None:
        raise DataError(f"{tables[whole.index(twice)]}: this table is given twice; once is enough")
    for depth in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(names)) == len(names):
            break
    return names


def render(
    episodes: EpisodeSet,
    signals: Signals,
    *,
    numbers: Sequence[int],
    total: int,
    subtasks: Mapping[int, Subtasks],
) -> str:
    """The page as text. `signals` and `subtasks` are of `episodes`, which are `numbers` of a dataset of `total`."""
    truths = [_truth(episode, subtasks.get(place)) for place, episode in enumerate(episodes)]
    figures = [_figures(name, given, episodes, truths) for name, given in signals.items()]
    plans = [_plan(episode, len(episodes)) for episode in episodes]
    judged = (
        _judged(
            place,
            numbers[place],
            episodes,
            {name: given[place] for name, given in signals.items()},
            truths[place],
            subtasks.get(place),
            plans[place],
        )
        for place in range(len(episodes))
    )
    name = episodes.root.resolve().name
    ids = ", ".join(figure.model_id for figure in figures)
    about = (
        f"{len(numbers)} of {total} episode{'s' if total != 1 else ''} of {name}, {episodes.fps:g} frames a second, as "
        f"{len(signals)} judge{'s' if len(signals) != 1 else ''} saw {'it' if len(numbers) == 1 else 'them'}: {ids}."
    )
    return render_judges(f"Judges on {name}", about, _pictures(plans, episodes), figures, judged)


def _truth(episode: Trajectory, subtasks: Subtasks | None) -> np.ndarray | None:
    """Annotated progress: from sub-task boundaries, else the simulator's."""
    from reward_models.targets import boundary_progress

    if subtasks is not None:
        return boundary_progress(subtasks.frames, len(episode) + 1)
    return episode.true_progress


# ---- pictures


@dataclass(frozen=True)
class _Plan:
    """Which frames of an episode the page has, and how large."""

    frames: np.ndarray  # int64 (n,), first and last among them
    sizes: Mapping[str, tuple[int, int]]  # camera -> height, width


def _plan(episode: Trajectory, episodes: int) -> _Plan:
    """Frames spread evenly over the whole episode: at i / (n - 1) of its time, to the nearest frame."""
    length = len(episode) + 1
    count = min(length, FRAMES, max(FEWEST, ALL_FRAMES // episodes))
    area = sum(pixels.shape[1] * pixels.shape[2] for pixels in episode.images.values())
    scale = min(1.0, (PIXELS / area) ** 0.5) if area else 1.0
    sizes = {
        camera: (max(1, round(pixels.shape[1] * scale)), max(1, round(pixels.shape[2] * scale)))
        for camera, pixels in episode.images.items()
    }
    return _Plan(np.linspace(0, length - 1, count).round().astype(np.int64), sizes)


def _pictures(plans: Sequence[_Plan], episodes: EpisodeSet) -> str:
    """What was done to the videos, in one sentence."""
    said = []
    thinned = [(len(plan.frames), int(length)) for plan, length in zip(plans, episodes.lengths, strict=True)]
    if any(kept < length for kept, length in thinned):
        kept, length = max(thinned, key=lambda pair: pair[1] / pair[0])
        said.append(f"thinned to at most {max(k for k, _ in thinned)} frames (the longest from {length:,} to {kept})")
    large = {camera: pixels.shape[1:3] for camera, pixels in episodes[0].images.items()}
    smaller = {
        f"{large[camera][1]} x {large[camera][0]} to {width} x {height} pixels"
        for camera, (height, width) in plans[0].sizes.items()
        if (height, width) != large[camera]
    }
    if smaller:
        said.append(f"made smaller (each camera from {' or '.join(sorted(smaller))})")
    if not said:
        return "Videos have every frame at full size."
    return f"To keep this page small, videos are {' and '.join(said)}; curves have every frame."


def _small(episodes: EpisodeSet, pixels: np.ndarray, frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Some frames in another size; the large ones are given back as soon as a few are read."""
    out = np.empty((len(frames), *size, 3), np.uint8)
    for place, frame in enumerate(frames):
        out[place] = resized(pixels[frame], *size)
        if place % CHUNK == CHUNK - 1:
            episodes.forget_frames()
    return out


# ---- one episode


def _judged(
    place: int,
    number: int,
    episodes: EpisodeSet,
    signals: Mapping[str, RewardSignal | None],
    truth: np.ndarray | None,
    subtasks: Subtasks | None,
    plan: _Plan,
) -> JudgedEpisode:
    episode = episodes[place]
    given = {name: signal for name, signal in signals.items() if signal is not None}
    marks: list[tuple[int, str]] = []
    if subtasks is not None:
        begins = zip(subtasks.frames[:-1].tolist(), subtasks.names, strict=True)
        marks = [(frame, name or f"part {part}") for part, (frame, name) in enumerate(begins, start=1)]
    judged = JudgedEpisode(
        title=f"Episode {number}: {episode.episode_id}",
        instruction=episode.instruction,
        outcome=episode.outcome,
        fps=episode.fps,
        progress={name: _answered(signal.progress, signal) for name, signal in given.items()},
        success={
            name: _answered(signal.success_prob, signal)
            for name, signal in given.items()
            if signal.success_prob is not None
        },
        truth=truth,
        truth_name="simulator's" if subtasks is None else "annotated",
        marks=marks,
        end=None if subtasks is None else int(subtasks.frames[-1]),
    )
    return replace(judged, view=_view(number, episodes, episode, judged, plan)) if episode.images else judged


def _answered(values: np.ndarray, signal: RewardSignal) -> np.ndarray:
    return values if signal.abstained is None else np.where(signal.abstained, np.float32(np.nan), values)


def _view(number: int, episodes: EpisodeSet, episode: Trajectory, judged: JudgedEpisode, plan: _Plan) -> EpisodeView:
    view = EpisodeView(
        key=f"episode-{number}",
        title=judged.title,
        group="judged",
        instruction=episode.instruction,
        task=episode.task,
        outcome=episode.outcome,
        index=number,
        policy=episode.policy_id,
        fps=episode.fps * (len(plan.frames) - 1) / len(episode),
        frames={
            camera: _small(episodes, pixels, plan.frames, plan.sizes[camera])
            for camera, pixels in episode.images.items()
        },
        samples=len(episode) + 1,
        others=judged.progress,
        others_success=judged.success,
        true_progress=None if judged.truth is None else judged.truth.astype(np.float32),
        marks=judged.marks,
        note=episode.note,
    )
    episodes.forget_frames()
    return view


# ---- figures


def _figures(
    name: str, given: Sequence[RewardSignal | None], episodes: EpisodeSet, truths: Sequence[np.ndarray | None]
) -> JudgeFigures:
    """A judge on the episodes of the page. A frame without an answer counts with its neighbour's, as in training."""
    from reward_models.metrics import progress_mse

    signals = [signal for signal in given if signal is not None]
    if not signals:
        raise DataError(f"{name}: this judge skipped every episode that is to be shown; show others with --episodes")
    about: dict[str, str] = {}
    known = [(s.progress, t) for s, t in zip(given, truths, strict=True) if s is not None and t is not None]
    order = _order(given, [episode.success for episode in episodes], about)
    together = _together(known, about)
    squares = [progress_mse(p, t) for p, t in known]
    about["mse"] = _over(len(known), "annotated episode") if known else _NO_TRUTH
    frames = sum(estimate.count for estimate in squares)
    return JudgeFigures(
        name=name,
        model_id=signals[0].model_id,
        frames=sum(len(signal.progress) for signal in signals),
        abstained=sum(int(signal.abstained.sum()) for signal in signals if signal.abstained is not None),
        voc=order,
        pearson=together,
        mse=sum(estimate.value * estimate.count for estimate in squares) / frames if known else None,
        about=about,
    )


_NO_TRUTH = "no annotated progress; give the boundaries of sub-tasks with --subtasks"


def _over(count: int, what: str) -> str:
    return f"over {count} {what}{'s' if count != 1 else ''}"


def _order(given: Sequence[RewardSignal | None], success: Sequence[bool], about: dict[str, str]) -> float | None:
    from reward_models.metrics import voc

    each = [voc(signal.progress) for signal, won in zip(given, success, strict=True) if won and signal is not None]
    if not each:
        about["voc"] = "no episode that it scored here is marked a success"
        return None
    return _mean(each, "voc", "successful episode", about)


def _together(known: Sequence[tuple[np.ndarray, np.ndarray]], about: dict[str, str]) -> float | None:
    if not known:
        about["pearson"] = _NO_TRUTH
        return None
    return _mean([pearson(p, t) for p, t in known], "pearson", "annotated episode", about)


def _mean(each: Sequence[Estimate], key: str, what: str, about: dict[str, str]) -> float | None:
    """Mean over the episodes that have a value, and what to say about it."""
    values = [estimate.value for estimate in each if estimate.defined]
    reasons = ", ".join(dict.fromkeys(estimate.reason for estimate in each if not estimate.defined))
    if not values:
        about[key] = (
            f"{reasons} in {'the' if len(each) == 1 else f'all {len(each)}'} {what}{'s' if len(each) != 1 else ''}"
        )
        return None
    about[key] = f"mean {_over(len(values), what)}"
    if reasons:
        about[key] += f"; undefined in {len(each) - len(values)} ({reasons})"
    return float(np.mean(values))


def pearson(progress: np.ndarray, truth: np.ndarray) -> Estimate:
    """Pearson correlation of progress (n,) with the truth (n,) (Robometer, METHODS 8); undefined if one is constant."""
    for values, name in ((progress, "prediction"), (truth, "annotated progress")):
        if np.ptp(values) == 0:
            return Estimate(value=np.nan, count=len(values), reason=f"constant {name}")
    both = np.corrcoef(progress.astype(np.float64), truth.astype(np.float64))
    return Estimate(value=float(both[0, 1]), count=len(progress))
