"""What each command does, after its arguments are read."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from robo_rl.errors import ConfigError, DataError, RoboRLError
from robo_rl.loops.progress import Display, spoken
from robo_rl.types import Trajectory


def load(options: argparse.Namespace) -> Any:
    """The experiment that a command line names."""
    from robo_rl.app.config import load_config

    return load_config(options.config, options.overrides)


def reporter(name: str) -> tuple[Display, Callable[[int, int], None]]:
    display = Display()
    display.started(name)
    return display, lambda done, total: display.progress(name, done, total)


def is_free(target: Path) -> None:
    if target.exists():
        raise DataError(f"{target}: already exists; choose another --out or remove it")


def _into(target: Path, work: Callable[[Path], None], inputs: str) -> None:
    """Run `work` on a temporary sibling of `target` and rename it: the folder is complete or absent.

    After a kill the same command goes on with what it finds there; one with other `inputs` starts afresh.
    """
    is_free(target)
    partial = target.with_name(target.name + ".partial")
    mark = partial / "inputs.json"
    if not mark.exists() or mark.read_text() != inputs:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        mark.write_text(inputs)
    try:
        work(partial)
    except RoboRLError:  # the same command would fail again
        shutil.rmtree(partial, ignore_errors=True)
        raise
    partial.rename(target)


def _promote(partial: Path, name: str) -> None:
    """A stage writes `<name>/` inside its folder; a command's --out is that inner folder."""
    inner = partial / name
    for entry in list(partial.iterdir()):
        if entry.name != name:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for entry in list(inner.iterdir()):
        entry.rename(partial / entry.name)
    inner.rmdir()


def run(options: argparse.Namespace) -> int:
    """`robo-rl run`: bring a run folder up to date and write its report."""
    from robo_rl.app import experiment

    config = load(options)
    out = options.out or Path("runs") / config.name
    experiment.run(config, out)
    return 0


def collect(options: argparse.Namespace) -> int:
    """`robo-rl collect`: episodes of the expert or of a policy, as a LeRobotDataset."""
    from robo_rl.app import build
    from robo_rl.data import write_episodes

    config = load(options)
    policy_exists(options.policy)
    is_free(options.out)
    display, report = reporter("collect")
    episodes: Iterator[Trajectory]
    shared = {"workers": config.processes, "report": report, "start": options.start}
    started = time.monotonic()
    if options.policy is None:
        from itertools import islice

        wanted = options.episodes or config.demos.episodes
        every = build.record_demos(config, episodes=wanted, **shared)
        episodes = islice((episode for episode in every if episode.success), wanted)
    else:
        episodes = build.record_rollouts(
            config, options.policy, seed=config.seed * 1000 + 1, episodes=options.episodes, **shared
        )
    write_episodes(options.out, episodes)
    display.close()
    print(f"{options.out}: written in {spoken(time.monotonic() - started)}")
    return 0


def import_dataset(options: argparse.Namespace) -> int:
    """`robo-rl import`: folders of videos without actions, as a LeRobotDataset."""
    from robo_rl.data.import_videos import ImportConfig, import_videos

    config = ImportConfig(size=options.size, fps=options.fps, instruction=options.instruction)
    display, report = reporter("import")
    found = import_videos(options.folder, options.out, config, progress_callback=report)
    display.close()
    named = f"; sub-tasks of {len(found.subtasks)} in labels/subtasks.csv" if found.subtasks else ""
    print(f"{options.out}: {found.episodes} episodes, {found.frames} frames{named}")
    return 0


def train(options: argparse.Namespace) -> int:
    """`robo-rl train`: imitation from scratch, or an update of `--policy` with the credit the config names."""
    from robo_rl.app import steps
    from robo_rl.app.config import dump_config

    config = load(options)
    policy_exists(options.policy)
    if options.policy is None and len(options.data) > 1:
        raise ConfigError("train: imitation takes one --data (the demonstrations); give --policy to update a policy")
    needs_judge = config.credit.type not in ("bc", "filtered_bc")
    if options.policy is not None and needs_judge and options.judge is None:
        raise ConfigError(f"train: credit.type={config.credit.type} needs --judge; or choose filtered_bc or bc")
    display, report = reporter("train")

    def work(partial: Path) -> None:
        demos, rollouts = options.data[0], list(options.data[1:])
        if options.policy is None:
            steps.train_imitation(partial, report, config, demos)
        else:
            _weigh(partial, options, config, demos, rollouts)
            steps.improve_policy(partial, report, config, options.policy, demos, rollouts, partial, number=1)
        _promote(partial, steps.POLICY)

    given = {name: str(getattr(options, name)) for name in ("data", "policy", "judge")}
    _into(options.out, work, json.dumps(given | {"config": dump_config(config)}, sort_keys=True, default=str))
    display.close()
    print(f"policy: {options.out}")
    return 0


def _weigh(partial: Path, options: argparse.Namespace, config: Any, demos: Path, rollouts: list[Path]) -> None:
    from robo_rl.app import steps

    if (partial / "credit.json").exists():
        return
    display, report = reporter("credit")
    if options.judge is None:
        steps.weigh_outcomes(partial, report, config, demos, rollouts)
    else:
        steps.score_and_weigh(
            partial, report, config, demos, rollouts, judge=options.judge, policy=options.policy, number=1
        )
    display.close()


def evaluate(options: argparse.Namespace) -> int:
    """`robo-rl eval`: success with intervals; a paired test with `--against`."""
    from robo_rl.app import build, results
    from robo_rl.evaluation import EvaluationResult, compare

    config = load(options)
    policy_exists(options.policy)
    display, report = reporter("eval")
    result = build.evaluate(config, options.policy, workers=config.processes, report=report)
    display.close()
    if options.out is not None:
        result.save(options.out)
    print(results.rate_table(result))
    if options.against is not None:
        print(results.comparison_sentence(compare(result, EvaluationResult.load(options.against))))
    return 0


def report(options: argparse.Namespace) -> int:
    """`robo-rl report`: the page again, from the run folder."""
    from robo_rl.report.render import write_report

    print(f"report: {write_report(options.run)}")
    return 0


def policy_exists(folder: Path | None) -> None:
    if folder is not None and not (folder / "config.json").exists():
        raise DataError(f"{folder}: not a policy folder, config.json is missing; train one with `robo-rl train`")
