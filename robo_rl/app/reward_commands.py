"""What the `robo-rl reward` commands do: fit, audit and score with judges, exchange opinions with lerobot."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from robo_rl.app.commands import is_free, load, policy_exists, reporter
from robo_rl.errors import ConfigError, DataError


def reward_fit(options: argparse.Namespace) -> int:
    """`robo-rl reward fit`: a judge from datasets."""
    from robo_rl.app import build, fit_file, steps
    from robo_rl.data import concat, read_episodes

    if fit_file.is_judge_file(options.config):
        return fit_file.command(options, *reporter("fit"))
    config = load(options)
    policy_exists(options.policy)
    is_free(options.out)
    steps.single_thread()
    episodes = concat([read_episodes(path) for path in options.data])
    display, report = reporter("fit")
    if options.policy is None and options.judge is None and config.judge.trunk == "policy":
        raise ConfigError("reward fit: judge.trunk=policy needs --policy; or use --judge.trunk=scratch")
    judge, _ = build.fit_judge(
        config, episodes, policy=options.policy, previous=options.judge, seed=config.seed, report=report
    )
    judge.save(options.out)
    display.close()
    print(f"judge: {options.out} ({judge.model_id})")
    return 0


def reward_audit(options: argparse.Namespace) -> int:
    """`robo-rl reward audit`: exit code 1 when the judge fails."""
    from reward_models.audit import audit
    from reward_models.registry import load_judge
    from robo_rl.data import read_episodes

    judge, episodes = load_judge(options.judge), read_episodes(options.data)
    result = audit(judge, episodes, seed=options.seed)
    print(result.table())
    if options.out is not None:
        options.out.write_text(json.dumps(result.to_json(), indent=1))
    return 1 if result.verdict == "fail" else 0


def reward_score(options: argparse.Namespace) -> int:
    """`robo-rl reward score`: a reward table of a dataset, continued where an earlier run stopped."""
    from reward_models.registry import load_judge
    from reward_models.scoring import ScoreConfig, Work, score_dataset
    from reward_models.scoring_pool import score_in_processes
    from robo_rl.processes import preload, process_context

    config = ScoreConfig(skip_bad=options.skip_bad, shard=options.shard)
    if options.workers < 1:
        raise ConfigError(f"reward score: --workers must be at least 1, got {options.workers}")
    judge = load_judge(options.judge) if options.workers == 1 else None
    episodes, bad = _readable(options.data, skip_bad=options.skip_bad)
    out = options.out or options.data / "rewards" / f"{_judge_name(options.judge)}.parquet"
    work = Work(episodes=episodes, out=out, bad=tuple(bad), config=config)
    display, report = reporter("score")
    try:
        if judge is not None:
            summary = score_dataset(judge, work, progress_callback=report, say=display.say)
        else:
            preload("reward_models.scoring_pool", "torch")
            summary = score_in_processes(
                partial(load_judge, options.judge),
                work,
                workers=options.workers,
                context=process_context(),
                progress_callback=report,
                say=display.say,
            )
    finally:
        display.close()
    print("\n".join(summary.lines()))
    return 0


def _readable(data: Path, *, skip_bad: bool) -> tuple[Any, list[Any]]:
    from robo_rl.data import read_episodes

    return read_episodes(data, skip_bad=True) if skip_bad else (read_episodes(data), [])


def _judge_name(judge: Path) -> str:
    """What its table is called: the folder's name, or the YAML file's without the ending."""
    return judge.stem if judge.suffix in (".yaml", ".yml") else judge.resolve().name


def reward_merge(options: argparse.Namespace) -> int:
    """`robo-rl reward merge`: the parts of a table that several processes made, as one."""
    from reward_models.score_summary import counts, write_skipped
    from robo_rl.data.reward_parts import merge_reward_tables

    is_free(options.out)
    skipped = merge_reward_tables(options.parts, options.out)
    write_skipped(options.out, skipped)
    frames, abstained = counts(options.out)
    print(f"{options.out}: {frames} frames of {len(options.parts)} parts, {abstained} of them without an answer")
    for one in skipped:
        print(f"skipped: {one}")
    return 0


def reward_show(options: argparse.Namespace) -> int:
    """`robo-rl reward show`: several judges' curves on one page."""
    from robo_rl.app import show

    return show.command(options)


def reward_export(options: argparse.Namespace) -> int:
    """`robo-rl reward export`: a reward table as a progress file that lerobot's RA-BC weighting reads."""
    from robo_rl.data import read_episodes
    from robo_rl.data.progress_table import export_progress

    episodes = read_episodes(options.data)
    export_progress(options.table, episodes, options.out, column=options.column, overwrite=options.overwrite)
    print(f"{options.out}: progress of {episodes.num_frames} frames, for lerobot's sample_weighting.progress_path")
    return 0


def reward_import(options: argparse.Namespace) -> int:
    """`robo-rl reward import`: a progress file of lerobot (SARM, Robometer, TOPReward) as a reward table."""
    from robo_rl.data import read_episodes, write_reward_table
    from robo_rl.data.progress_table import import_progress

    if options.out.exists():
        raise DataError(f"{options.out}: already exists; choose another --out or remove it")
    episodes = read_episodes(options.data)
    signals = import_progress(options.progress, episodes, head=options.head, abstain=options.abstain)
    judge = {"id": signals[0].model_id, "imported_from": options.progress.name, "head": options.head}
    write_reward_table(options.out, episodes, signals, judge=judge)
    silent = sum(int(signal.abstained.sum()) for signal in signals if signal.abstained is not None)
    abstained = f", {silent} of them without an answer" if silent else ""
    print(f"{options.out}: {episodes.num_frames} frames{abstained}, judged by {signals[0].model_id}")
    return 0
