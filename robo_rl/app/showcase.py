"""Episodes worth looking at: the same starts before and after, seen by the final judge, drawn large."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from robo_rl.app import build
from robo_rl.app.config import RunConfig
from robo_rl.credit.kinds import WindowKind
from robo_rl.critics import Critics
from robo_rl.data import EpisodeSet
from robo_rl.errors import DataError
from robo_rl.evaluation import EvaluationResult
from robo_rl.loops.weigh import Weighing, episode_gate, weigh_config
from robo_rl.policies.acting import MakePolicyActor
from robo_rl.report.episode import EpisodeGroup, EpisodeView, write_episode
from robo_rl.rollout import RecordConfig, collect, replay
from robo_rl.types import Controller, RewardSignal, Trajectory

Report = Callable[[int, int], None]
GROUPS = 3  # so many groups of evaluation episodes are played again; the choice is made among them


def show_episodes(
    folder: Path,
    report: Report,
    config: RunConfig,
    policies: dict[str, Path],
    evaluations: dict[str, Path],
    judge: Path,
    critics: Path,
    workers: int,
) -> None:
    """Play evaluation episodes again with cameras on; they must end as they did. Writes `views.json` and arrays.

    The weight shown is the HABC gate by critics fitted to the training episodes.
    `policies` and `evaluations` have the keys "before" and "after".
    """
    results = {key: EvaluationResult.load(path) for key, path in evaluations.items()}
    indices = range(min(config.evaluation.episodes, GROUPS * config.group_size))
    chosen = choose(results["before"].success[: len(indices)], results["after"].success[: len(indices)], config)
    judge_model = build.load_judge(judge)
    shown = config.credit.features == "judge" and critics.exists()
    gates = Critics.load(critics) if shown else None
    rows: list[dict] = []
    total = sum(len(numbers) for numbers in chosen.values())
    for group, numbers in chosen.items():
        episodes = _play(config, policies[group], indices, numbers, results[group], workers)
        for episode, (signal, hidden) in zip(episodes, judge_model.observe(episodes), strict=True):
            view = _view(config, group, episode, signal)
            if gates is not None:
                z_v, v_e = gates.predict(hidden)
                view = replace(view, weight=episode_gate(episode, z_v, v_e, weigh_config(config.credit)))
            rows.append(write_episode(folder, view, episode.episode_id))
            report(len(rows), total)
    (folder / "views.json").write_text(json.dumps(rows, indent=1))


def choose(before: np.ndarray, after: np.ndarray, config: RunConfig) -> dict[str, list[int]]:
    """Starts where the outcome changed for the better, stayed good, stayed bad or changed for the worse."""
    wanted = config.report.episodes_per_group
    better, good = np.flatnonzero(~before & after), np.flatnonzero(before & after)
    bad = np.flatnonzero(~after)
    first = [*better[:wanted], *good[: max(1, wanted - 1)]]
    return {
        "before": sorted(int(n) for n in first),
        "after": sorted({int(n) for n in (*first, *bad[: max(1, wanted - 1)])}),
    }


def _play(
    config: RunConfig, policy: Path, indices: range, numbers: Sequence[int], known: EvaluationResult, workers: int
) -> list[Trajectory]:
    played = collect(
        build.MakeWorld(config),
        MakePolicyActor(folder=policy, policy_id=policy.resolve().parent.name),
        seed=config.evaluation.seed,
        indices=indices,
        workers=workers,
        group_size=config.group_size,
        record=RecordConfig(true_progress=True),
    )
    kept = []
    for number, episode in enumerate(played):
        if episode.success != bool(known.success[number]):
            raise DataError(
                f"episode {episode.episode_id!r} ended otherwise than in the evaluation; "
                "the simulator or the policy is not deterministic on this machine"
            )
        if number in numbers:
            kept.append(episode)
    return kept


def _view(config: RunConfig, group: str, episode: Trajectory, signal: RewardSignal) -> EpisodeView:
    large = replay(build.MakeWorld(config, size=config.report.frame_size), episode)
    kind: EpisodeGroup = "after" if group == "after" else "before"
    return EpisodeView(
        key=f"{group}-{episode.index}",
        title=f"{'After' if group == 'after' else 'Before'}: {episode.instruction}",
        group=kind,
        instruction=episode.instruction,
        task=episode.task,
        outcome=episode.outcome,
        index=episode.index,
        policy=episode.policy_id,
        fps=episode.fps,
        frames=large.images,
        progress=signal.progress,
        success_prob=signal.success_prob,
        tri_state=signal.tri_state,
        true_progress=episode.true_progress,
    )


def show_training(folder: Path, episodes: EpisodeSet, signals: Sequence[RewardSignal], credit: Weighing) -> None:
    """A few training episodes with the weight of every step: two demonstrations, two successes, two failures."""
    rows = []
    wanted = {WindowKind.DEMO: 2, WindowKind.AUTONOMOUS_SUCCESS: 2, WindowKind.AUTONOMOUS_FAILURE: 2}
    for number, episode in enumerate(episodes):
        start = int(episodes.first_frame[number])
        kind = WindowKind(int(credit.kind[start]))
        if wanted.get(kind, 0) == 0:
            continue
        wanted[kind] -= 1
        demo = episode.controller[0] != Controller.POLICY
        view = EpisodeView(
            key=f"training-{number}",
            title=f"{'Demonstration' if demo else 'Rollout'}: {episode.instruction}",
            group="demonstration" if demo else "before",
            instruction=episode.instruction,
            task=episode.task,
            outcome=episode.outcome,
            index=episode.index,
            policy=episode.policy_id,
            fps=episode.fps,
            frames={camera: np.asarray(frames) for camera, frames in episode.images.items()},
            progress=signals[number].progress,
            success_prob=signals[number].success_prob,
            tri_state=signals[number].tri_state,
            weight=credit.weight[start : start + len(episode)],
            true_progress=episode.true_progress,
            note=episode.note,
        )
        rows.append(write_episode(folder, view, episode.episode_id))
    (folder / "views.json").write_text(json.dumps(rows, indent=1))
