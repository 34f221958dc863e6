"""Commands that exchange judges' opinions with lerobot."""

from __future__ import annotations

import argparse


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
    from robo_rl.errors import DataError

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
