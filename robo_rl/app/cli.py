"""The commands. Heavy imports stay inside them, so that `robo-rl --help` answers at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from robo_rl.errors import ConfigError, RoboRLError

DESCRIPTION = """Improve vision-language-action policies with learned, audited rewards.

A whole experiment is one YAML file:
  robo-rl run configs/tabletop.yaml --out=runs/demo

Any value of the file can be changed on the command line, with its dotted name:
  robo-rl run configs/tabletop.yaml --rounds=3 --rollouts.episodes=500"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="robo-rl",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(
        group: argparse._SubParsersAction,
        name: str,
        about: str,
        *,
        config: bool = False,
        file: str = "experiment file, e.g. configs/tabletop.yaml",
    ) -> argparse.ArgumentParser:
        child = group.add_parser(name, help=about, description=about, allow_abbrev=False)
        child.set_defaults(takes_overrides=config)
        if config:
            child.add_argument("config", type=Path, help=file)
        return child

    run = add(commands, "run", "the whole loop: imitate, roll out, judge, improve, evaluate, report", config=True)
    run.add_argument("--out", type=Path, help="run folder (default: runs/<name>)")

    collect = add(commands, "collect", "record episodes of the scripted expert or of a policy", config=True)
    collect.add_argument("--out", type=Path, required=True, help="dataset folder to write")
    collect.add_argument("--policy", type=Path, help="policy folder; the scripted expert acts when it is not given")
    collect.add_argument("--episodes", type=int, help="how many (default: as the experiment file says)")
    collect.add_argument("--start", type=int, default=0, help="index of the first initial state")

    train = add(commands, "train", "train a policy: imitation, or improvement with judged credit", config=True)
    train.add_argument("--data", type=Path, action="append", required=True, help="dataset folder; may be repeated")
    train.add_argument("--out", type=Path, required=True, help="policy folder to write")
    train.add_argument("--policy", type=Path, help="policy folder to start from")
    train.add_argument("--judge", type=Path, help="judge folder: credit comes from it")

    videos = add(commands, "import", "folders of videos, without actions, as a dataset for judges")
    videos.add_argument("folder", type=Path, help="one sub-folder an episode, one video a camera")
    videos.add_argument("--out", type=Path, required=True, help="dataset folder to write")
    videos.add_argument("--size", type=int, help="pixels of the longer side (default: as they are)")
    videos.add_argument("--fps", type=float, help="frames a second that are kept (default: all)")
    videos.add_argument("--instruction", type=int, default=0, help="which of the paraphrases, from 0")

    _reward_parser(commands, add)
    evaluate = add(commands, "eval", "success of a policy over fixed held-out initial states", config=True)
    evaluate.add_argument("--policy", type=Path, required=True, help="policy folder")
    evaluate.add_argument("--out", type=Path, help="write the result as JSON")
    evaluate.add_argument("--against", type=Path, help="an earlier result: paired comparison on the same states")

    report = add(commands, "report", "write report.html of a run folder again")
    report.add_argument("run", type=Path)
    doctor = add(commands, "doctor", "look for what is wrong with a dataset; exit code 1 when something is")
    _doctor_options(doctor)
    return parser


def _doctor_options(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("data", type=Path, help="dataset folder")
    doctor.add_argument("--policy", type=Path, help="policy folder: cameras, sizes and normalisation have to fit")
    doctor.add_argument("--judge", type=Path, help="judge folder or YAML file: its cameras have to be there")
    doctor.add_argument("--env", type=Path, metavar="CONFIG", help="experiment file: its simulator has to fit")
    doctor.add_argument("--against", type=Path, metavar="DATASET", help="another dataset, to share no episode with")
    doctor.add_argument("--frames", type=int, default=3000, help="of each camera that are decoded (default: 3000)")
    doctor.add_argument("--json", type=Path, metavar="FILE", help="also write facts and findings as JSON")


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"must be I/N with I from 1 to N, got {text!r}")
    return int(number), int(count)


def _reward_parser(commands: argparse._SubParsersAction, add: Callable[..., argparse.ArgumentParser]) -> None:
    reward = commands.add_parser("reward", help="reward models: fit, audit, score, exchange", allow_abbrev=False)
    actions = reward.add_subparsers(dest="action", metavar="ACTION", required=True)
    described = "judge file, e.g. configs/judges/progress.yaml, or experiment file"
    fit = add(actions, "fit", "fit a judge to datasets", config=True, file=described)
    fit.add_argument("--data", type=Path, action="append", required=True, help="dataset folder; may be repeated")
    fit.add_argument("--out", type=Path, required=True, help="judge folder to write")
    fit.add_argument("--judge", type=Path, help="judge folder to continue from")
    fit.add_argument("--policy", type=Path, help="policy folder whose image encoder the judge starts from")
    fit.add_argument("--episodes", help="numbers of the episodes to fit to, as 0,3-5 (default: all)")
    fit.add_argument("--directions", type=Path, help="csv or parquet: steps labelled +1, 0, -1 by people")
    fit.add_argument("--subtasks", type=Path, help="csv, parquet or annotated_keyframes.json: sub-task boundaries")
    fit.add_argument("--outcomes", type=Path, help="csv or parquet: success or not, of episodes without an outcome")
    fit.add_argument("--preferences", type=Path, help="csv or parquet: which of two episodes is better")
    audit = add(actions, "audit", "try to fool a judge; exit code 1 when it fails")
    audit.add_argument("judge", type=Path)
    audit.add_argument("data", type=Path)
    audit.add_argument("--out", type=Path, help="also write the result as JSON")
    audit.add_argument("--seed", type=int, default=0)
    score = add(actions, "score", "write a judge's opinion of every frame as a parquet table")
    score.add_argument("judge", type=Path)
    score.add_argument("data", type=Path)
    score.add_argument("--out", type=Path, help="default: <data>/rewards/<judge>.parquet")
    score.add_argument("--skip-bad", action="store_true", help="leave out and list episodes that cannot be scored")
    score.add_argument("--workers", type=int, default=1, help="processes on this machine (default: 1)")
    score.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="score part I of N, on this GPU say")
    merge = add(actions, "merge", "put the parts that --shard made together")
    merge.add_argument("parts", type=Path, nargs="+")
    merge.add_argument("--out", type=Path, required=True, help="reward table to write")
    show = add(actions, "show", "what several judges said about episodes, as one HTML page")
    show.add_argument("data", type=Path)
    show.add_argument("tables", type=Path, nargs="+", help="reward tables")
    show.add_argument("--out", type=Path, required=True, help="page to write")
    show.add_argument("--episodes", help="numbers of the episodes to show, as 0,3-5 (default: the first six)")
    show.add_argument("--subtasks", type=Path, help="sub-task boundaries: csv, parquet or annotated_keyframes.json")
    _exchange_parsers(actions, add)


def _exchange_parsers(actions: argparse._SubParsersAction, add: Callable[..., argparse.ArgumentParser]) -> None:
    export = add(actions, "export", "write a reward table as a progress file for lerobot's RA-BC weighting")
    export.add_argument("table", type=Path, help="reward table, e.g. data/rollouts/rewards/first.parquet")
    export.add_argument("data", type=Path)
    export.add_argument("--out", type=Path, required=True, help="lerobot looks for DATA/sarm_progress.parquet")
    export.add_argument("--column", default="progress_sparse", help="column of the table that is the progress")
    export.add_argument("--overwrite", action="store_true")
    read = add(actions, "import", "read a progress file of lerobot (SARM, Robometer, TOPReward) as a reward table")
    read.add_argument("progress", type=Path, help="e.g. sarm_progress.parquet")
    read.add_argument("data", type=Path)
    read.add_argument("--out", type=Path, required=True, help="reward table to write")
    read.add_argument("--head", default="sparse", choices=("sparse", "dense"))
    read.add_argument("--abstain", action="store_true", help="frames without an answer repeat the nearest one's")


def _commands() -> dict[str, Callable[[argparse.Namespace], int]]:
    from robo_rl.app import commands, doctor_command, reward_commands

    return {
        "run": commands.run,
        "collect": commands.collect,
        "import": commands.import_dataset,
        "train": commands.train,
        "reward fit": reward_commands.reward_fit,
        "reward audit": reward_commands.reward_audit,
        "reward score": reward_commands.reward_score,
        "reward merge": reward_commands.reward_merge,
        "reward show": reward_commands.reward_show,
        "reward export": reward_commands.reward_export,
        "reward import": reward_commands.reward_import,
        "eval": commands.evaluate,
        "report": commands.report,
        "doctor": doctor_command.doctor,
    }


def _one_thread() -> None:
    # Two contended threads make small networks many times slower than one; parallelism is by process.
    for name, value in (("OMP_NUM_THREADS", "1"), ("OMP_WAIT_POLICY", "passive"), ("MKL_NUM_THREADS", "1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `robo-rl`. Exit codes: 0 fine, 1 a check failed, 2 a user's mistake, 130 interrupted."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    name = " ".join(part for part in (options.command, getattr(options, "action", None)) if part)
    try:
        for text in rest:
            if not options.takes_overrides or not text.startswith("--") or "=" not in text:
                raise ConfigError(f"{name}: {text!r} is not understood; see `robo-rl {name} --help`")
        options.overrides = rest
        _one_thread()
        return _commands()[name](options)
    except RoboRLError as error:
        print(f"robo-rl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("robo-rl: interrupted; the same command continues", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
