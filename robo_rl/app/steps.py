"""The stages of the main loop, each a plain function `(folder, report, ...)` that fills its folder.

They run in processes of their own (see `robo_rl.loops.stages`), so their arguments are plain values.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from robo_rl.algorithms.weighted_bc import WeightedBC
from robo_rl.app import build
from robo_rl.app.config import RunConfig
from robo_rl.app.showcase import show_training
from robo_rl.batches import Anchors, ChunkBatches
from robo_rl.credit.baselines import filtered_bc_weights
from robo_rl.credit.kinds import WindowKind
from robo_rl.data import EpisodeSet, concat, read_episodes, read_reward_table, write_episodes, write_reward_table
from robo_rl.data.windows import find_windows
from robo_rl.errors import DataError, RewardError
from robo_rl.loops.weigh import WeighConfig, Weighing, weigh, weigh_config
from robo_rl.policies.storage import LoadedPolicy, load_policy, save_policy
from robo_rl.trainer import Trainer, TrainerConfig
from robo_rl.types import RewardSignal, Trajectory

Report = Callable[[int, int], None]

DATASET, POLICY, JUDGE = "dataset", "policy", "judge"


def single_thread() -> None:
    """One thread a process: the stages themselves run side by side."""
    torch.set_num_threads(1)


# --- experience ---------------------------------------------------------------------------------------


def collect_demos(folder: Path, report: Report, config: RunConfig, workers: int) -> None:
    """Demonstrations of the scripted expert. Failed ones are thrown away, as a person recording them would do."""
    wanted = config.demos.episodes
    _remove_killed(folder)
    kept = _first_successes(build.record_demos(config, workers=workers, report=report), wanted)
    write_episodes(folder / DATASET, kept)


def _remove_killed(folder: Path) -> None:
    """Recording starts again after a kill; what the killed attempt had written would stay for ever."""
    for left in folder.glob(f"{DATASET}.*"):
        shutil.rmtree(left, ignore_errors=True)


def _first_successes(episodes: Iterator[Trajectory], wanted: int) -> Iterator[Trajectory]:
    count = 0
    for episode in episodes:
        if episode.success:
            yield episode
            count += 1
        if count == wanted:
            return
    if count == 0:
        raise DataError("the expert never succeeded; check sim.options and demos.expert")


def collect_rollouts(folder: Path, report: Report, config: RunConfig, policy: Path, number: int, workers: int) -> None:
    """Episodes of a policy, from initial states of their own (never those of the evaluation)."""
    _remove_killed(folder)
    write_episodes(
        folder / DATASET,
        build.record_rollouts(config, policy, seed=rollout_seed(config, number), workers=workers, report=report),
    )


def rollout_seed(config: RunConfig, number: int) -> int:
    """Seed of the initial states of round `number`; demonstrations are round 0."""
    return config.seed * 1000 + number


# --- policies -----------------------------------------------------------------------------------------


def train_imitation(folder: Path, report: Report, config: RunConfig, demos: Path) -> None:
    """Behaviour cloning from scratch."""
    single_thread()
    episodes = read_episodes(demos)
    loaded = build.new_policy(config, episodes)
    frames = imitable_frames(episodes)
    if not len(frames):
        raise DataError(f"{demos}: nothing to imitate: no demonstration and no episode that succeeded")
    anchors = Anchors(frames=frames, weights=np.ones(len(frames), np.float32))
    _fit_policy(folder, report, loaded, episodes, [(1.0, anchors)], config.imitation, config)


def improve_policy(
    folder: Path,
    report: Report,
    config: RunConfig,
    policy: Path,
    demos: Path,
    rollouts: Sequence[Path],
    weights: Path | None,
    number: int,
) -> None:
    """One update on demonstrations and weighted rollouts; without weights, demonstrations alone."""
    single_thread()
    loaded = load_policy(policy, config.device)
    own = read_episodes(demos)
    if weights is None:
        frames = imitable_frames(own)
        sources = [(1.0, Anchors(frames=frames, weights=np.ones(len(frames), np.float32)))]
        episodes = own
    else:
        episodes = concat([own, *(read_episodes(path) for path in rollouts)])
        table = load_weighing(weights, episodes)
        sources = weighted_sources(table.weight, table.kind, config.update.demo_share)
    build.require_fit(policy, loaded, episodes)
    seed_offset = dataclasses.replace(config, seed=config.seed + 7919 * number)
    _fit_policy(folder, report, loaded, episodes, sources, config.update.trainer, seed_offset)


def imitable_frames(episodes: EpisodeSet) -> np.ndarray:
    """Global indices of the frames whose action may be imitated: demonstrations, interventions, successes."""
    return np.flatnonzero(filtered_bc_weights(find_windows(episodes).kind) > 0)


def weighted_sources(weight: np.ndarray, kind: np.ndarray, demo_share: float) -> list[tuple[float, Anchors]]:
    """Demonstrations and everything else as two sources; frames of weight zero are never drawn.

    Within a source the weights are scaled to mean 1 over what can be drawn, so the share decides how
    much demonstrations count and the weights decide which samples.
    """
    sources = []
    for share, chosen in ((demo_share, kind == WindowKind.DEMO), (1.0 - demo_share, kind != WindowKind.DEMO)):
        frames = np.flatnonzero(chosen & (weight > 0))
        if len(frames) and share > 0:
            drawn = weight[frames]
            sources.append((share, Anchors(frames=frames, weights=(drawn / drawn.mean()).astype(np.float32))))
    if not sources:
        raise DataError("no frame to learn from: every frame is masked or has weight zero")
    return sources


def _fit_policy(
    folder: Path,
    report: Report,
    loaded: LoadedPolicy,
    episodes: EpisodeSet,
    sources: Sequence[tuple[float, Anchors]],
    trainer: TrainerConfig,
    config: RunConfig,
) -> None:
    batches = ChunkBatches(
        episodes,
        sources,
        loaded.normaliser,
        chunk=loaded.policy.config.chunk_size,
        batch_size=trainer.batch_size,
        seed=config.seed,
        warmup_steps=config.update.warmup_steps,
    )
    run = dataclasses.replace(trainer, device=config.device)
    Trainer(run, folder / "training", seed=config.seed).fit(
        loaded.policy, WeightedBC(loaded.policy), batches, on_step=lambda step, _: report(step, trainer.steps)
    )
    save_policy(folder / POLICY, loaded.policy, loaded.normaliser)
    (folder / "training" / "training_state.pt").unlink(missing_ok=True)


def evaluate_policy(folder: Path, report: Report, config: RunConfig, policy: Path, workers: int) -> None:
    """Success over the fixed held-out states."""
    result = build.evaluate(config, policy, workers=workers, report=report)
    result.save(folder / "evaluation.json")


# --- judge and credit -----------------------------------------------------------------------------------


def fit_judge(
    folder: Path,
    report: Report,
    config: RunConfig,
    demos: Path,
    rollouts: Sequence[Path],
    policy: Path,
    previous: Path | None,
    number: int,
) -> None:
    """Fit the judge to demonstrations and rollouts, then audit it on rollouts of this round that it never saw."""
    single_thread()
    newest = read_episodes(rollouts[-1])
    held, seen = split_held_out(newest, config.judge.held_out)
    training = concat(
        [read_episodes(demos), *(_seen_part(path, config) for path in rollouts[:-1]), newest.select(seen)]
    )
    judge, result = build.fit_judge(
        config, training, policy=policy, previous=previous, seed=config.seed + number, report=report
    )
    judge.save(folder / JUDGE)
    (folder / "curves.json").write_text(json.dumps(result.curves))
    build.examine_judge(judge, newest.select(held), folder, seed=config.seed + number)


def split_held_out(episodes: EpisodeSet, share: float) -> tuple[list[int], list[int]]:
    """(held out, seen) episode numbers: every k-th episode is held out, so that tasks stay balanced."""
    count = max(1, round(len(episodes) * share)) if share > 0 else 0
    held = {int(number) for number in np.linspace(0, len(episodes) - 1, count)} if count else set()
    return sorted(held), [number for number in range(len(episodes)) if number not in held]


def _seen_part(path: Path, config: RunConfig) -> EpisodeSet:
    episodes = read_episodes(path)
    return episodes.select(split_held_out(episodes, config.judge.held_out)[1])


def score_and_weigh(
    folder: Path,
    report: Report,
    config: RunConfig,
    demos: Path,
    rollouts: Sequence[Path],
    judge: Path,
    policy: Path,
    number: int,
) -> None:
    """Score every episode, keep the tables, and turn the scores into sample weights."""
    single_thread()
    require_passed(judge.parent / "audit.json", config)
    sets = [read_episodes(path) for path in (demos, *rollouts)]
    model = build.load_judge(judge)
    signals: list[RewardSignal] = []
    features: list[np.ndarray] = []
    total = sum(len(part) for part in sets)
    for place, part in enumerate(sets):
        scored = []
        for signal, hidden in model.observe(part):
            scored.append(signal)
            features.append(hidden)
            report(len(signals) + len(scored), total)
        table = folder / f"rewards-{place}.parquet"
        write_reward_table(table, part, scored, judge={"id": model.model_id})
        signals += read_reward_table(table, part)
    episodes = concat(sets)
    seen = np.concatenate(features) if config.credit.features == "judge" else build.policy_features(policy, episodes)
    result, critics = weigh(episodes, signals, seen, weigh_config(config.credit), seed=config.seed + number)
    save_weighing(folder, result, episodes)
    if critics is not None:
        critics.save(folder / "critics")
    show_training(folder, episodes, signals, result)


def require_passed(path: Path, config: RunConfig) -> None:
    """A judge that failed its audit teaches nobody, unless the config says so."""
    if config.accept_failed_audit or not path.exists():
        return
    failed = [row["control"] for row in json.loads(path.read_text())["rows"] if row["verdict"] == "fail"]
    if failed:
        raise RewardError(
            f"{path}: the judge failed its audit ({', '.join(failed)}); improve the judge, "
            "or set accept_failed_audit=true to train with it all the same"
        )


def weigh_outcomes(folder: Path, report: Report, config: RunConfig, demos: Path, rollouts: Sequence[Path]) -> None:
    """Filtered BC: no judge, only how the episodes ended."""
    episodes = concat([read_episodes(path) for path in (demos, *rollouts)])
    result, _ = weigh(episodes, [], None, WeighConfig(type="filtered_bc"), seed=config.seed)
    save_weighing(folder, result, episodes)
    report(1, 1)


def save_weighing(folder: Path, result: Weighing, episodes: EpisodeSet) -> None:
    """`credit.npz` (one row a frame) with the dataset's fingerprint, and `credit.json` (figures, null if undefined)."""
    arrays = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name != "summary"}
    temporary = folder / "credit.partial.npz"
    np.savez_compressed(temporary, fingerprint=np.array(episodes.fingerprint), **arrays)
    temporary.rename(folder / "credit.npz")
    figures = {key: value if math.isfinite(value) else None for key, value in result.summary.items()}
    (folder / "credit.json").write_text(json.dumps(figures, indent=1, allow_nan=False))


def load_weighing(folder: Path, episodes: EpisodeSet) -> Weighing:
    """Read `credit.npz` back. Raises DataError when it belongs to other episodes."""
    with np.load(folder / "credit.npz") as kept:
        if str(kept["fingerprint"]) != episodes.fingerprint:
            raise DataError(f"{folder / 'credit.npz'}: made for other episodes; weigh these ones again")
        arrays = {key: kept[key] for key in kept.files if key != "fingerprint"}
    figures = json.loads((folder / "credit.json").read_text())
    return Weighing(**arrays, summary={key: math.nan if value is None else value for key, value in figures.items()})
